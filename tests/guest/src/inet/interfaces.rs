//! Options that name an interface, ends of connections in each order, and addresses of both families.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{Shutdown, shutdown};

use super::{connection, raw_address, raw_socket};
use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    the_interface_of_groups_reads_back
    a_group_is_joined_at_an_interface_that_there_is
    what_stays_within_the_machine_loops
    a_device_has_its_name
    a_window_has_a_smallest_size
    small_numbers_of_ip_fit_into_a_byte
    an_end_that_was_first_keeps_its_place
    an_end_that_waits_for_the_other_waits_as_long_as_it_says
    any_address_of_ipv4_is_none_of_ipv6
    datagrams_of_ipv6_go_to_ipv4
    a_negative_length_of_an_address_is_refused
    filters_of_messages_are_of_their_family
    datagrams_tell_when_they_arrived
    the_last_arrival_is_told
}

fn set(socket: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: the value lives through the call.
    let result = unsafe {
        libc::setsockopt(socket, level, name, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    Errno::result(result).map(drop)
}

/// The value as far as there is room for it.
fn get(socket: RawFd, level: i32, name: i32, room: usize) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0xaa; room];
    let mut length = room as libc::socklen_t;
    // SAFETY: the call writes at most as many bytes as there are.
    let result = unsafe { libc::getsockopt(socket, level, name, value.as_mut_ptr().cast(), &raw mut length) };
    Errno::result(result)?;
    value.truncate(length as usize);
    Ok(value)
}

const LOOPBACK: [u8; 4] = [127, 0, 0, 1];
const NOBODYS: [u8; 4] = [203, 0, 113, 9];

fn the_interface_of_groups_reads_back() -> Outcome {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let socket = socket.as_raw_fd();
    let read = || get(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, 4);
    let write = |value: &[u8]| set(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, value);
    expect_eq!(read(), Ok(vec![0; 4]));
    expect_eq!(write(&LOOPBACK), Ok(()));
    expect_eq!(read(), Ok(LOOPBACK.to_vec()));
    expect_eq!(write(&[[0; 4], [0; 4], 1_i32.to_ne_bytes()].concat()), Ok(()));
    expect_eq!(read(), Ok(vec![0; 4]));
    expect_eq!(write(&[[224, 0, 0, 251], LOOPBACK].concat()), Ok(()));
    expect_eq!(read(), Ok(LOOPBACK.to_vec()));
    expect_eq!(write(&NOBODYS), Err(Errno::EADDRNOTAVAIL));
    expect_eq!(write(&[[0; 4], [0; 4], 99_i32.to_ne_bytes()].concat()), Err(Errno::EADDRNOTAVAIL));
    expect_eq!(write(&[127]), Err(Errno::EINVAL));
    expect_eq!(read(), Ok(LOOPBACK.to_vec()));
    let socket = raw_socket(libc::AF_INET6, libc::SOCK_DGRAM)?;
    let socket = socket.as_raw_fd();
    let read = || get(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, 4);
    expect_eq!(read(), Ok(vec![0; 4]));
    let write = |index: i32| set(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &index.to_ne_bytes());
    expect_eq!((write(1), write(99)), (Ok(()), Err(Errno::ENODEV)));
    expect_eq!(read(), Ok(1_i32.to_ne_bytes().to_vec()));
    Ok(())
}

fn a_group_is_joined_at_an_interface_that_there_is() -> Outcome {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).or_fail()?;
    let join = |rest: &[u8]| {
        let value = [&[224, 0, 0, 251], rest].concat();
        set(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &value)
    };
    expect_eq!(join(&NOBODYS), Err(Errno::ENODEV));
    expect_eq!(join(&[[0; 4], 99_i32.to_ne_bytes()].concat()), Err(Errno::ENODEV));
    expect_eq!(join(&LOOPBACK), Ok(()));
    Ok(())
}

fn what_stays_within_the_machine_loops() -> Outcome {
    let receiver = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).or_fail()?;
    let group = Ipv4Addr::new(239, 1, 2, 3);
    receiver.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).or_fail()?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    set(sender.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &LOOPBACK).or_fail()?;
    sender.set_multicast_loop_v4(false).or_fail()?;
    let port = receiver.local_addr().or_fail()?.port();
    sender.send_to(b"once", (group, port)).or_fail()?;
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(20))).or_fail()?;
    let mut buffer = [0; 16];
    expect_eq!(receiver.recv(&mut buffer).or_fail()?, 4);
    Ok(())
}

fn a_device_has_its_name() -> Outcome {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let socket = socket.as_raw_fd();
    let read = || get(socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, 16);
    let write = |name: &[u8]| set(socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name);
    expect_eq!(read(), Ok(vec![]));
    expect_eq!(write(b"nothing0\0"), Err(Errno::ENODEV));
    expect_eq!(write(b"lo\0"), Ok(()));
    expect_eq!(read(), Ok(b"lo\0".to_vec()));
    expect_eq!((write(b""), read()), (Ok(()), Ok(vec![])));
    Ok(())
}

fn a_window_has_a_smallest_size() -> Outcome {
    let (client, _server) = connection()?;
    let socket = client.as_raw_fd();
    let clamp = |value: i32| set(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, &value.to_ne_bytes());
    expect_eq!(clamp(0), Err(Errno::EINVAL));
    expect_eq!(clamp(1), Ok(()));
    let read = get(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 4).or_fail()?;
    expect_eq!(read, 1152_i32.to_ne_bytes().to_vec());
    let fresh = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let clamp = set(fresh.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, &0_i32.to_ne_bytes());
    expect_eq!(clamp, Ok(()));
    Ok(())
}

fn small_numbers_of_ip_fit_into_a_byte() -> Outcome {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let socket = socket.as_raw_fd();
    set(socket, libc::IPPROTO_IP, libc::IP_TOS, &8_i32.to_ne_bytes()).or_fail()?;
    for (room, expected) in [(0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (8, 4)] {
        let value = get(socket, libc::IPPROTO_IP, libc::IP_TOS, room).or_fail()?;
        expect_eq!((room, value.len()), (room, expected));
        expect!(value.first().is_none_or(|first| *first == 8));
    }
    Ok(())
}

/// Whether a socket can be bound to an address.
fn can_bind(address: SocketAddr, reuses: bool) -> Result<bool, String> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = raw_socket(family, libc::SOCK_STREAM)?;
    if reuses {
        set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32.to_ne_bytes()).or_fail()?;
    }
    let (storage, length) = raw_address(address);
    // SAFETY: the address lives through the call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const storage).cast(), length) };
    match Errno::result(result) {
        Ok(_) => Ok(true),
        Err(Errno::EADDRINUSE) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

fn an_end_that_was_first_keeps_its_place() -> Outcome {
    for client_is_first in [true, false] {
        let (client, server) = connection()?;
        let address = client.local_addr().or_fail()?;
        let (first, second) = if client_is_first { (&client, &server) } else { (&server, &client) };
        for end in [first, second] {
            shutdown(end.as_raw_fd(), Shutdown::Write).or_fail()?;
        }
        drop((client, server));
        expect_eq!((client_is_first, can_bind(address, false)?), (client_is_first, !client_is_first));
    }
    Ok(())
}

fn an_end_that_waits_for_the_other_waits_as_long_as_it_says() -> Outcome {
    let (client, server) = connection()?;
    let address = client.local_addr().or_fail()?;
    set(client.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_LINGER2, &1_i32.to_ne_bytes()).or_fail()?;
    drop(client);
    expect!(!can_bind(address, false)?);
    let start = std::time::Instant::now();
    while !can_bind(address, false)? {
        // A minute is what it waits after both have ended.
        expect!(start.elapsed().as_secs() < 40);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    drop(server);
    Ok(())
}

fn any_address_of_ipv4_is_none_of_ipv6() -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), 0)).or_fail()?;
    let port = listener.local_addr().or_fail()?.port();
    expect!(!can_bind((Ipv4Addr::LOCALHOST, port).into(), false)?);
    expect!(can_bind((Ipv6Addr::LOCALHOST, port).into(), false)?);
    let refused = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).map_err(|error| error.kind());
    expect_eq!(refused.err(), Some(ErrorKind::ConnectionRefused));
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).or_fail().map(drop)
}

fn datagrams_of_ipv6_go_to_ipv4() -> Outcome {
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let (storage, length) = raw_address(receiver.local_addr().or_fail()?);
    for only_v6 in [false, true] {
        let socket = raw_socket(libc::AF_INET6, libc::SOCK_DGRAM)?;
        let flag = i32::from(only_v6).to_ne_bytes();
        set(socket.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &flag).or_fail()?;
        // SAFETY: the address lives through the call.
        let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const storage).cast(), length) };
        expect_eq!(Errno::result(result).is_ok(), !only_v6);
        if !only_v6 {
            // SAFETY: the bytes live through the call.
            let sent = unsafe { libc::send(socket.as_raw_fd(), b"word".as_ptr().cast(), 4, 0) };
            expect_eq!(sent, 4);
            expect_eq!(receiver.recv(&mut [0; 16]).or_fail()?, 4);
        }
    }
    Ok(())
}

fn a_negative_length_of_an_address_is_refused() -> Outcome {
    let (listener, address) = super::listener()?;
    let _client = TcpStream::connect(address).or_fail()?;
    let mut storage = [0_u8; 128];
    let mut length = -1_i32;
    // SAFETY: the call refuses the length, and with a valid one it would write at most so many bytes.
    let result =
        unsafe { libc::accept(listener.as_raw_fd(), storage.as_mut_ptr().cast(), (&raw mut length).cast()) };
    expect_eq!(Errno::result(result), Err(Errno::EINVAL));
    Ok(())
}

fn filters_of_messages_are_of_their_family() -> Outcome {
    const ICMP6_FILTER: i32 = 1;
    let open = |family: i32, protocol: i32| -> Result<std::os::fd::OwnedFd, Errno> {
        // SAFETY: the call takes no pointers.
        let number = Errno::result(unsafe { libc::socket(family, libc::SOCK_RAW, protocol) })?;
        // SAFETY: nobody else has the descriptor.
        Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(number) })
    };
    let v4 = open(libc::AF_INET, libc::IPPROTO_ICMP).or_fail()?;
    let refused = set(v4.as_raw_fd(), libc::IPPROTO_ICMPV6, ICMP6_FILTER, &[0xff; 32]);
    expect_eq!(refused, Err(Errno::ENOPROTOOPT));
    let v6 = open(libc::AF_INET6, libc::IPPROTO_ICMPV6).or_fail()?;
    let read = || get(v6.as_raw_fd(), libc::IPPROTO_ICMPV6, ICMP6_FILTER, 32);
    expect_eq!(read(), Ok(vec![0; 32]));
    set(v6.as_raw_fd(), libc::IPPROTO_ICMPV6, ICMP6_FILTER, &[0x5a; 32]).or_fail()?;
    expect_eq!(read(), Ok(vec![0x5a; 32]));
    let (storage, length) = raw_address((Ipv6Addr::LOCALHOST, 0).into());
    // SAFETY: the bytes and the address live through the call.
    let sent = unsafe {
        libc::sendto(v6.as_raw_fd(), [128_u8, 0].as_ptr().cast(), 2, 0, (&raw const storage).cast(), length)
    };
    expect_eq!(Errno::result(sent), Err(Errno::EINVAL));
    Ok(())
}

/// The kind of the first control message, and the time in it in nanoseconds.
fn received_with_time(socket: RawFd) -> Result<Option<(i32, i64)>, String> {
    let (mut bytes, mut control) = ([0_u8; 16], [0_u64; 8]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: all that the header names lives through the call.
    Errno::result(unsafe { libc::recvmsg(socket, &raw mut header, 0) }).or_fail()?;
    if header.msg_controllen == 0 {
        return Ok(None);
    }
    let (level, kind) = ((control[1] & 0xffff_ffff) as i32, (control[1] >> 32) as i32);
    expect_eq!((level, control[0]), (libc::SOL_SOCKET, 32));
    let factor = if kind == libc::SO_TIMESTAMP { 1000 } else { 1 };
    Ok(Some((kind, control[2] as i64 * 1_000_000_000 + control[3] as i64 * factor)))
}

fn now_ns() -> Result<i64, String> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME).or_fail()?;
    Ok(now.tv_sec() * 1_000_000_000 + now.tv_nsec())
}

fn datagrams_tell_when_they_arrived() -> Outcome {
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let (socket, address) = (receiver.as_raw_fd(), receiver.local_addr().or_fail()?);
    let read = |name: i32| get(socket, libc::SOL_SOCKET, name, 4).map(|value| value[0]);
    for name in [libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS] {
        set(socket, libc::SOL_SOCKET, name, &1_i32.to_ne_bytes()).or_fail()?;
        let is_micro = u8::from(name == libc::SO_TIMESTAMP);
        expect_eq!((read(libc::SO_TIMESTAMP), read(libc::SO_TIMESTAMPNS)), (Ok(is_micro), Ok(1 - is_micro)));
        let before = now_ns()? / 1000 * 1000;
        receiver.send_to(b"word", address).or_fail()?;
        let between = now_ns()?;
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (kind, time) = received_with_time(socket)?.ok_or("no time")?;
        expect_eq!(kind, name);
        expect!((before..=between + 1_000_000).contains(&time));
    }
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &0_i32.to_ne_bytes()).or_fail()?;
    receiver.send_to(b"word", address).or_fail()?;
    expect_eq!(received_with_time(socket)?, None);
    Ok(())
}

fn the_last_arrival_is_told() -> Outcome {
    const SIOCGSTAMP: libc::c_ulong = 0x8906;
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let address = receiver.local_addr().or_fail()?;
    let tell = || {
        let mut time = [0_i64; 2];
        // SAFETY: the call writes so many bytes at most.
        let result = unsafe { libc::ioctl(receiver.as_raw_fd(), SIOCGSTAMP, time.as_mut_ptr()) };
        Errno::result(result).map(|_| time[0] * 1_000_000 + time[1])
    };
    expect_eq!(tell(), Err(Errno::ENOENT));
    let mut last = 0;
    for _ in 0..2 {
        receiver.send_to(b"word", address).or_fail()?;
        receiver.recv(&mut [0; 16]).or_fail()?;
        let told = tell().or_fail()?;
        expect!(told > last);
        expect_eq!(tell(), Ok(told));
        last = told;
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Ok(())
}
