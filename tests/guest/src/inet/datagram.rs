//! UDP, ping sockets and raw sockets.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;

use super::{connect, get, raw_socket, ready, receive, send, set};
use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    datagrams_keep_boundaries
    a_peer_is_chosen
    nobody_receives
    long_datagrams_are_cut
    mapped_datagrams
    the_longest_datagram
    time_runs_out
    the_address_is_told
    many_at_once
    errors_are_queued
    broadcast_needs_leave
    groups_are_joined
    echo_is_answered
    raw_sockets_see_headers
    several_share_a_port
}

fn pair() -> Result<(UdpSocket, UdpSocket), String> {
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    Ok((one, other))
}

fn datagrams_keep_boundaries() -> Outcome {
    let (one, other) = pair()?;
    let to = other.local_addr().or_fail()?;
    for length in [3, 0, 5] {
        expect_eq!(one.send_to(&vec![length; usize::from(length)], to).or_fail()?, usize::from(length));
    }
    let mut buffer = [0; 16];
    for length in [3, 0, 5] {
        let (count, from) = other.recv_from(&mut buffer).or_fail()?;
        expect_eq!(count, length);
        expect_eq!(from, one.local_addr().or_fail()?);
    }
    expect_eq!(receive(&other, &mut buffer, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    Ok(())
}

fn a_peer_is_chosen() -> Outcome {
    let (one, other) = pair()?;
    let third = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    other.connect(one.local_addr().or_fail()?).or_fail()?;
    let to = other.local_addr().or_fail()?;
    third.send_to(b"from a stranger", to).or_fail()?;
    one.send_to(b"from the peer", to).or_fail()?;
    let mut buffer = [0; 32];
    expect_eq!(other.recv(&mut buffer).or_fail()?, 13);
    expect_eq!(other.peer_addr().or_fail()?, one.local_addr().or_fail()?);
    expect_eq!(other.send(b"back").or_fail()?, 4);
    expect_eq!(one.recv(&mut buffer).or_fail()?, 4);
    expect_eq!(send(&one, b"nowhere", 0), Err(Errno::EDESTADDRREQ));
    Ok(())
}

fn nobody_receives() -> Outcome {
    let (one, other) = pair()?;
    let address = other.local_addr().or_fail()?;
    drop(other);
    one.connect(address).or_fail()?;
    expect_eq!(send(&one, b"hello", 0), Ok(5));
    expect!(ready(&one, libc::POLLIN) & libc::POLLERR != 0);
    expect_eq!(receive(&one, &mut [0], 0), Err(Errno::ECONNREFUSED));
    expect_eq!(receive(&one, &mut [0], libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    expect_eq!(send(&one, b"again", 0), Ok(5));
    expect_eq!(get(&one, libc::SOL_SOCKET, libc::SO_ERROR), Ok(libc::ECONNREFUSED));
    Ok(())
}

fn long_datagrams_are_cut() -> Outcome {
    let (one, other) = pair()?;
    one.connect(other.local_addr().or_fail()?).or_fail()?;
    for _ in 0..3 {
        expect_eq!(send(&one, b"0123456789", 0), Ok(10));
    }
    let mut buffer = [0; 4];
    expect_eq!(receive(&other, &mut buffer, libc::MSG_PEEK | libc::MSG_TRUNC), Ok(10));
    expect_eq!(receive(&other, &mut buffer, 0), Ok(4));
    expect_eq!(receive(&other, &mut buffer, libc::MSG_TRUNC), Ok(10));
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 4 };
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    // SAFETY: all that the header names lives through the call.
    expect_eq!(unsafe { libc::recvmsg(other.as_raw_fd(), &raw mut header, 0) }, 4);
    expect_eq!(header.msg_flags, libc::MSG_TRUNC);
    Ok(())
}

fn mapped_datagrams() -> Outcome {
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let other = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).or_fail()?;
    let port = other.local_addr().or_fail()?.port();
    one.send_to(b"four", (Ipv4Addr::LOCALHOST, port)).or_fail()?;
    let (_, from) = other.recv_from(&mut [0; 8]).or_fail()?;
    expect_eq!(from.ip().to_string(), "::ffff:127.0.0.1");
    other.send_to(b"back", from).or_fail()?;
    expect_eq!(one.recv(&mut [0; 8]).or_fail()?, 4);
    Ok(())
}

fn the_longest_datagram() -> Outcome {
    let (one, other) = pair()?;
    one.connect(other.local_addr().or_fail()?).or_fail()?;
    let bytes: Vec<u8> = (0..65_507_u32).map(|at| at as u8).collect();
    expect_eq!(send(&one, &bytes, 0), Ok(65_507));
    let mut buffer = vec![0; 70_000];
    expect_eq!(receive(&other, &mut buffer, 0), Ok(65_507));
    expect!(buffer[..65_507] == bytes);
    expect_eq!(send(&one, &vec![0; 65_508], 0), Err(Errno::EMSGSIZE));
    Ok(())
}

fn time_runs_out() -> Outcome {
    let (one, _) = pair()?;
    one.set_read_timeout(Some(Duration::from_millis(20))).or_fail()?;
    expect_eq!(receive(&one, &mut [0], 0), Err(Errno::EAGAIN));
    expect_eq!(one.read_timeout().or_fail()?, Some(Duration::from_millis(20)));
    Ok(())
}

fn the_address_is_told() -> Outcome {
    let other = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).or_fail()?;
    let port = other.local_addr().or_fail()?.port();
    for option in [libc::IP_PKTINFO, libc::IP_RECVTTL, libc::IP_RECVTOS, libc::IP_RECVORIGDSTADDR] {
        expect_eq!(set(&other, libc::IPPROTO_IP, option, 1), Ok(()));
    }
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    expect_eq!(set(&one, libc::IPPROTO_IP, libc::IP_TTL, 33), Ok(()));
    expect_eq!(set(&one, libc::IPPROTO_IP, libc::IP_TOS, 0x10), Ok(()));
    one.send_to(b"x", (Ipv4Addr::new(127, 1, 2, 3), port)).or_fail()?;
    let (mut bytes, mut control) = ([0; 4], [0_u64; 16]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 4 };
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: all that the header names lives through the call.
    expect_eq!(unsafe { libc::recvmsg(other.as_raw_fd(), &raw mut header, 0) }, 1);
    let mut found = [false; 4];
    // SAFETY: the header is as the call left it.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !next.is_null() {
        // SAFETY: the macros keep within the control data.
        let (kind, data) = unsafe { ((*next).cmsg_type, libc::CMSG_DATA(next)) };
        // SAFETY: as many bytes as each kind has are there.
        unsafe {
            match kind {
                libc::IP_PKTINFO => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    found[0] = info.ipi_ifindex == 1 && info.ipi_addr.s_addr.to_ne_bytes() == [127, 1, 2, 3];
                }
                libc::IP_TTL => found[1] = data.cast::<i32>().read_unaligned() == 33,
                libc::IP_TOS => found[2] = *data == 0x10,
                libc::IP_ORIGDSTADDR => {
                    let to = data.cast::<libc::sockaddr_in>().read_unaligned();
                    found[3] = i32::from(to.sin_family) == libc::AF_INET
                        && to.sin_port == port.to_be()
                        && to.sin_addr.s_addr.to_ne_bytes() == [127, 1, 2, 3];
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(&raw const header, next);
        }
    }
    expect_eq!(found, [true; 4]);
    Ok(())
}

fn many_at_once() -> Outcome {
    let (one, other) = pair()?;
    one.connect(other.local_addr().or_fail()?).or_fail()?;
    let mut bytes = [[0_u8; 8]; 4];
    let mut pieces: Vec<libc::iovec> = bytes
        .iter_mut()
        .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: 8 })
        .collect();
    // SAFETY: zeroes are valid headers.
    let mut messages: [libc::mmsghdr; 4] = unsafe { std::mem::zeroed() };
    for (message, piece) in messages.iter_mut().zip(&mut pieces) {
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (piece, 1);
    }
    // SAFETY: all that the headers name lives through the calls.
    unsafe {
        expect_eq!(libc::sendmmsg(one.as_raw_fd(), messages.as_mut_ptr(), 3, 0), 3);
        let null = std::ptr::null_mut();
        let count = libc::recvmmsg(other.as_raw_fd(), messages.as_mut_ptr(), 4, libc::MSG_DONTWAIT, null);
        expect_eq!(count, 3);
    }
    expect!(messages[..3].iter().all(|message| message.msg_len == 8));
    Ok(())
}

fn errors_are_queued() -> Outcome {
    let (one, other) = pair()?;
    let address = other.local_addr().or_fail()?;
    drop(other);
    expect_eq!(set(&one, libc::IPPROTO_IP, libc::IP_RECVERR, 1), Ok(()));
    one.send_to(b"lost", address).or_fail()?;
    expect!(ready(&one, libc::POLLIN) & libc::POLLERR != 0);
    let (mut bytes, mut control) = ([0_u8; 8], [0_u64; 16]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 8 };
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: all that the header names lives through the call.
    expect_eq!(unsafe { libc::recvmsg(one.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE) }, 4);
    expect_eq!(&bytes[..4], b"lost");
    expect!(header.msg_flags & libc::MSG_ERRQUEUE != 0);
    // SAFETY: the header is as the call left it.
    let error = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        expect!(!first.is_null());
        libc::CMSG_DATA(first).cast::<libc::sock_extended_err>().read_unaligned()
    };
    expect_eq!(error.ee_errno, libc::ECONNREFUSED as u32);
    expect_eq!((error.ee_origin, error.ee_type, error.ee_code), (libc::SO_EE_ORIGIN_ICMP, 3, 3));
    Ok(())
}

fn broadcast_needs_leave() -> Outcome {
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let to = SocketAddr::from((Ipv4Addr::BROADCAST, 9));
    expect_eq!(connect(&one, to), Err(Errno::EACCES));
    Ok(())
}

fn groups_are_joined() -> Outcome {
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let other = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).or_fail()?;
    let port = other.local_addr().or_fail()?.port();
    other.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).or_fail()?;
    let again = other.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).err();
    expect_eq!(again.and_then(|error| error.raw_os_error()), Some(libc::EADDRINUSE));
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let here = libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) };
    let pointer = (&raw const here).cast();
    // SAFETY: the value lives through the call.
    let result =
        unsafe { libc::setsockopt(one.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, pointer, 4) };
    Errno::result(result).or_fail()?;
    one.send_to(b"to all", (group, port)).or_fail()?;
    other.set_read_timeout(Some(Duration::from_secs(2))).or_fail()?;
    let mut buffer = [0; 16];
    expect_eq!(other.recv(&mut buffer).or_fail()?, 6);
    other.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST).or_fail()?;
    let again = other.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST).err();
    expect_eq!(again.and_then(|error| error.raw_os_error()), Some(libc::EADDRNOTAVAIL));
    Ok(())
}

/// An echo request, or what came back, without the fields that the kernel fills in.
fn echo(socket: &impl AsRawFd, skip: usize) -> Result<(u8, Vec<u8>), String> {
    let mut buffer = [0; 128];
    let count = receive(socket, &mut buffer, 0).or_fail()?;
    Ok((buffer[skip], buffer[skip + 6..count].to_vec()))
}

fn echo_is_answered() -> Outcome {
    // SAFETY: the call takes no pointers.
    let number = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP) };
    Errno::result(number).or_fail()?;
    // SAFETY: nobody else has the descriptor.
    let raw =
        unsafe { UdpSocket::from(<std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number)) };
    connect(&raw, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).or_fail()?;
    // Type, code, checksum, identifier, number, bytes.
    let request = [8, 0, 0xf7 - 0x61, 0xff - 0x62 - 1, 0, 0, 0, 0, b'a', b'b'];
    let mut request = request;
    let sum: u32 = request.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>()
        - (u32::from(request[2]) << 8 | u32::from(request[3]));
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    request[2..4].copy_from_slice(&checksum.to_be_bytes());
    expect_eq!(send(&raw, &request, 0), Ok(10));
    let (first, second) = (echo(&raw, 20)?, echo(&raw, 20)?);
    expect_eq!(first, (8, vec![0, 0, b'a', b'b']));
    expect_eq!(second, (0, vec![0, 0, b'a', b'b']));
    Ok(())
}

fn raw_sockets_see_headers() -> Outcome {
    // SAFETY: the call takes no pointers.
    let number = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, 253) };
    Errno::result(number).or_fail()?;
    // SAFETY: nobody else has the descriptor.
    let raw =
        unsafe { UdpSocket::from(<std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number)) };
    connect(&raw, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).or_fail()?;
    expect_eq!(send(&raw, b"experiment", 0), Ok(10));
    let mut buffer = [0; 64];
    expect_eq!(receive(&raw, &mut buffer, 0), Ok(30));
    expect_eq!((buffer[0], buffer[9]), (0x45, 253));
    expect_eq!(&buffer[12..20], &[127, 0, 0, 1, 127, 0, 0, 1]);
    expect_eq!(&buffer[20..30], b"experiment");
    Ok(())
}

fn several_share_a_port() -> Outcome {
    let mut port = 0;
    let mut sockets = Vec::new();
    for _ in 0..3 {
        let socket = raw_socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK)?;
        expect_eq!(set(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1), Ok(()));
        super::bind(&socket, SocketAddr::from((Ipv4Addr::LOCALHOST, port))).or_fail()?;
        let socket = UdpSocket::from(socket);
        port = socket.local_addr().or_fail()?.port();
        sockets.push(socket);
    }
    let mut counts = [0; 3];
    for _ in 0..60 {
        let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
        one.send_to(b"x", (Ipv4Addr::LOCALHOST, port)).or_fail()?;
        for (socket, count) in sockets.iter().zip(&mut counts) {
            while socket.recv(&mut [0; 4]).is_ok() {
                *count += 1;
            }
        }
    }
    expect_eq!(counts.iter().sum::<i32>(), 60);
    expect!(counts.iter().all(|&count| count > 3));
    Ok(())
}
