//! Packet sockets on the loopback: what they see, what they send, filters, and what is refused.

#![allow(unsafe_code)] // Addresses and options of packet sockets have no safe forms.

pub mod rings;

use std::mem::{size_of, zeroed};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_socket_sees_datagrams
    both_directions_are_seen
    what_is_sent_arrives
    names_of_sockets
    calls_that_are_refused
    sends_that_are_refused
    a_filter_chooses_packets
    a_filter_is_locked
    packets_are_counted
    auxiliary_data_come_along
    memberships_are_kept
    a_namespace_has_its_own
}

const IPV4: u16 = 0x0800;
const ALL: u16 = 3;
const SOL_PACKET: i32 = 263;
const HEADER: usize = 14;

fn socket(kind: i32, protocol: u16) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers.
    let made =
        unsafe { libc::socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC, i32::from(protocol.to_be())) };
    // SAFETY: a descriptor that has just been made.
    Errno::result(made).map(|made| unsafe { OwnedFd::from_raw_fd(made) })
}

fn loopback() -> i32 {
    // SAFETY: a valid name.
    unsafe { libc::if_nametoindex(c"lo".as_ptr()) as i32 }
}

fn address(protocol: u16, interface: i32) -> libc::sockaddr_ll {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface;
    address.sll_halen = 6;
    address
}

fn bind_with(socket: &OwnedFd, address: &libc::sockaddr_ll, length: usize) -> Result<(), Errno> {
    // SAFETY: the address is at least as long.
    let bound =
        unsafe { libc::bind(socket.as_raw_fd(), (&raw const *address).cast(), length as libc::socklen_t) };
    Errno::result(bound).map(drop)
}

fn bind(socket: &OwnedFd, protocol: u16, interface: i32) -> Result<(), Errno> {
    bind_with(socket, &address(protocol, interface), size_of::<libc::sockaddr_ll>())
}

/// A socket on the loopback that waits no longer than two seconds.
fn listener(kind: i32, protocol: u16) -> Result<OwnedFd, String> {
    let made = socket(kind, 0).or_fail()?;
    bind(&made, protocol, loopback()).or_fail()?;
    let limit = libc::timeval { tv_sec: 2, tv_usec: 0 };
    set(&made, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit).or_fail()?;
    Ok(made)
}

fn set<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> Result<(), Errno> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is as long as the call says.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const *value).cast(), length) };
    Errno::result(done).map(drop)
}

fn get<T: Copy>(socket: &OwnedFd, level: i32, name: i32, mut value: T) -> Result<T, Errno> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is as long as the call says.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    Errno::result(done).map(|_| value)
}

struct Packet {
    bytes: Vec<u8>,
    from: libc::sockaddr_ll,
    from_length: usize,
    control: Vec<u8>,
    flags: i32,
}

fn receive(socket: &OwnedFd, room: usize, flags: i32) -> Result<Packet, Errno> {
    let (mut bytes, mut control) = (vec![0; room], vec![0; 64]);
    let mut from = address(0, 0);
    // SAFETY: all zero is a valid header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: room };
    header.msg_name = (&raw mut from).cast();
    header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), control.len());
    // SAFETY: all that the header points to is as long as it says.
    let count = Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    bytes.truncate(count as usize);
    control.truncate(header.msg_controllen);
    Ok(Packet { bytes, from, from_length: header.msg_namelen as usize, control, flags: header.msg_flags })
}

/// The next packet that ends with these bytes.
fn receive_ending(socket: &OwnedFd, end: &[u8]) -> Result<Packet, String> {
    loop {
        let packet = receive(socket, 2048, 0).or_fail()?;
        if packet.bytes.ends_with(end) {
            return Ok(packet);
        }
    }
}

fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    to: Option<&libc::sockaddr_ll>,
    length: usize,
) -> Result<usize, Errno> {
    let name = to.map_or(std::ptr::null(), |to| (&raw const *to).cast());
    // SAFETY: bytes and address are as long as the call says.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
            name,
            if to.is_some() { length as libc::socklen_t } else { 0 },
        )
    };
    Errno::result(sent).map(|sent| sent as usize)
}

/// A pair of sockets of UDP, and the port of the second.
fn datagrams() -> Result<(UdpSocket, UdpSocket, u16), String> {
    let (sender, receiver) =
        (UdpSocket::bind("127.0.0.1:0").or_fail()?, UdpSocket::bind("127.0.0.1:0").or_fail()?);
    receiver.set_read_timeout(Some(Duration::from_secs(2))).or_fail()?;
    let port = receiver.local_addr().or_fail()?.port();
    sender.connect(("127.0.0.1", port)).or_fail()?;
    Ok((sender, receiver, port))
}

/// An IPv4 packet of UDP on the loopback, without a sum of its payload.
fn packet(port: u16, payload: &[u8]) -> Vec<u8> {
    let length = 28 + payload.len() as u16;
    let mut bytes = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1];
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend_from_slice(&4321_u16.to_be_bytes());
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes.extend_from_slice(&(length - 20).to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(payload);
    bytes
}

fn a_socket_sees_datagrams() -> Outcome {
    let (raw, cooked) = (listener(libc::SOCK_RAW, IPV4)?, listener(libc::SOCK_DGRAM, IPV4)?);
    let (sender, receiver, port) = datagrams()?;
    sender.send(b"seen").or_fail()?;
    expect_eq!(receiver.recv(&mut [0; 8]).or_fail()?, 4);
    let seen = receive_ending(&raw, b"seen")?;
    expect_eq!(seen.bytes.len(), HEADER + 28 + 4);
    expect_eq!(seen.bytes[..HEADER], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
    let header = &seen.bytes[HEADER..];
    expect_eq!((header[0], header[9]), (0x45, 17));
    expect_eq!(header[12..20], [127, 0, 0, 1, 127, 0, 0, 1]);
    expect_eq!(header[20..22], sender.local_addr().or_fail()?.port().to_be_bytes());
    expect_eq!(header[22..24], port.to_be_bytes());
    expect_eq!(seen.from_length, size_of::<libc::sockaddr_ll>());
    let from = &seen.from;
    expect_eq!((from.sll_family, from.sll_protocol), (libc::AF_PACKET as u16, IPV4.to_be()));
    expect_eq!((from.sll_ifindex, from.sll_hatype), (loopback(), 772));
    expect_eq!((from.sll_pkttype, from.sll_halen), (0, 6));
    let seen = receive_ending(&cooked, b"seen")?;
    expect_eq!((seen.bytes.len(), seen.bytes[0]), (32, 0x45));
    // A packet that is too long for the buffer is cut, and can be looked at before.
    sender.send(b"again").or_fail()?;
    let peeked = receive(&cooked, 10, libc::MSG_PEEK | libc::MSG_TRUNC).or_fail()?;
    expect_eq!((peeked.bytes.len(), peeked.flags), (10, libc::MSG_TRUNC));
    let mut room = [0_u8; 10];
    // SAFETY: the buffer is as long as the call says.
    let length = unsafe { libc::recv(cooked.as_raw_fd(), room.as_mut_ptr().cast(), 10, libc::MSG_TRUNC) };
    expect_eq!(length, 33);
    expect_eq!(receive(&cooked, 10, libc::MSG_DONTWAIT).err(), Some(Errno::EAGAIN));
    Ok(())
}

fn both_directions_are_seen() -> Outcome {
    let every = listener(libc::SOCK_RAW, ALL)?;
    let incoming = listener(libc::SOCK_RAW, ALL)?;
    set(&incoming, SOL_PACKET, 23, &1).or_fail()?;
    let (sender, _receiver, _) = datagrams()?;
    sender.send(b"twice").or_fail()?;
    let kinds = [receive_ending(&every, b"twice")?.from, receive_ending(&every, b"twice")?.from];
    expect_eq!(
        kinds.map(|from| (from.sll_pkttype, from.sll_protocol)),
        [(4, IPV4.to_be()), (0, IPV4.to_be())]
    );
    expect_eq!(receive_ending(&incoming, b"twice")?.from.sll_pkttype, 0);
    expect_eq!(receive(&incoming, 64, libc::MSG_DONTWAIT).err(), Some(Errno::EAGAIN));
    // Of another protocol it sees nothing, and with none at all neither.
    let (other, none) = (listener(libc::SOCK_RAW, 0x0806)?, listener(libc::SOCK_RAW, 0)?);
    sender.send(b"unseen").or_fail()?;
    for socket in [other, none] {
        expect_eq!(receive(&socket, 64, libc::MSG_DONTWAIT).err(), Some(Errno::EAGAIN));
    }
    Ok(())
}

/// Lets packets that somebody sends on the loopback have its addresses, or not.
fn trust_loopback(word: &str) -> Outcome {
    for name in ["accept_local", "route_localnet"] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/lo/{name}"), word).or_fail()?;
    }
    Ok(())
}

fn what_is_sent_arrives() -> Outcome {
    trust_loopback("1")?;
    let result = send_in_trust();
    trust_loopback("0")?;
    result?;
    // Otherwise it is seen, and that is all.
    let (_sender, receiver, port) = datagrams()?;
    let own = listener(libc::SOCK_DGRAM, ALL)?;
    let (to, bytes) = (address(IPV4, loopback()), packet(port, b"suspect"));
    expect_eq!(send(&own, &bytes, Some(&to), size_of::<libc::sockaddr_ll>()), Ok(bytes.len()));
    receive_ending(&own, b"suspect")?;
    receiver.set_nonblocking(true).or_fail()?;
    expect_eq!(
        receiver.recv(&mut [0; 16]).map_err(|error| error.kind()),
        Err(std::io::ErrorKind::WouldBlock)
    );
    Ok(())
}

fn send_in_trust() -> Outcome {
    let (_sender, receiver, port) = datagrams()?;
    let to = address(IPV4, loopback());
    let own = listener(libc::SOCK_DGRAM, ALL)?;
    let other = listener(libc::SOCK_RAW, ALL)?;
    let bytes = packet(port, b"cooked");
    expect_eq!(send(&own, &bytes, Some(&to), size_of::<libc::sockaddr_ll>()), Ok(bytes.len()));
    let mut received = [0; 16];
    let (count, from) = receiver.recv_from(&mut received).or_fail()?;
    expect_eq!((&received[..count], from.port()), (&b"cooked"[..], 4321));
    // The sender sees it come, others see it go as well.
    expect_eq!(receive_ending(&own, b"cooked")?.from.sll_pkttype, 0);
    expect_eq!(receive_ending(&other, b"cooked")?.from.sll_pkttype, 4);
    expect_eq!(receive_ending(&other, b"cooked")?.from.sll_pkttype, 0);
    let raw = listener(libc::SOCK_RAW, 0)?;
    let mut frame = vec![0; HEADER];
    frame[12..].copy_from_slice(&IPV4.to_be_bytes());
    frame.extend_from_slice(&packet(port, b"raw"));
    expect_eq!(send(&raw, &frame, None, 0), Ok(frame.len()));
    let count = receiver.recv(&mut received).or_fail()?;
    expect_eq!(&received[..count], b"raw");
    // A frame for another machine is seen and goes nowhere.
    frame[5] = 1;
    expect_eq!(send(&raw, &frame, None, 0), Ok(frame.len()));
    receive_ending(&other, b"raw")?;
    receive_ending(&other, b"raw")?;
    let seen =
        [receive_ending(&other, b"raw")?.from.sll_pkttype, receive_ending(&other, b"raw")?.from.sll_pkttype];
    expect_eq!(seen, [4, 3]);
    receiver.set_nonblocking(true).or_fail()?;
    expect_eq!(
        receiver.recv(&mut received).map_err(|error| error.kind()),
        Err(std::io::ErrorKind::WouldBlock)
    );
    Ok(())
}

fn names_of_sockets() -> Outcome {
    let name = |socket: &OwnedFd| {
        let mut found = address(0, 0);
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is as long as the call says.
        let done = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut found).cast(), &raw mut length) };
        Errno::result(done).map(|_| (found, length))
    };
    let made = socket(libc::SOCK_RAW, IPV4).or_fail()?;
    let (before, length) = name(&made).or_fail()?;
    expect_eq!((length, before.sll_protocol, before.sll_ifindex), (12, IPV4.to_be(), 0));
    expect_eq!((before.sll_family, before.sll_halen), (libc::AF_PACKET as u16, 0));
    bind(&made, 0, loopback()).or_fail()?;
    let (after, length) = name(&made).or_fail()?;
    expect_eq!((length, after.sll_protocol, after.sll_ifindex), (18, IPV4.to_be(), loopback()));
    expect_eq!((after.sll_hatype, after.sll_halen), (772, 6));
    expect_eq!(get(&made, libc::SOL_SOCKET, libc::SO_TYPE, 0), Ok(libc::SOCK_RAW));
    expect_eq!(get(&made, libc::SOL_SOCKET, libc::SO_DOMAIN, 0), Ok(libc::AF_PACKET));
    expect_eq!(get(&made, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, 1), Ok(0));
    Ok(())
}

fn calls_that_are_refused() -> Outcome {
    expect_eq!(socket(libc::SOCK_STREAM, IPV4).err(), Some(Errno::ESOCKTNOSUPPORT));
    let made = socket(libc::SOCK_RAW, IPV4).or_fail()?;
    let full = size_of::<libc::sockaddr_ll>();
    expect_eq!(bind_with(&made, &address(IPV4, loopback()), full - 1), Err(Errno::EINVAL));
    let mut other = address(IPV4, loopback());
    other.sll_family = libc::AF_INET as u16;
    expect_eq!(bind_with(&made, &other, full), Err(Errno::EINVAL));
    expect_eq!(bind(&made, IPV4, 4000), Err(Errno::ENODEV));
    let to = address(IPV4, loopback());
    let descriptor: RawFd = made.as_raw_fd();
    // SAFETY: the address is as long as the call says.
    let connected = unsafe { libc::connect(descriptor, (&raw const to).cast(), full as libc::socklen_t) };
    expect_eq!(Errno::result(connected), Err(Errno::EOPNOTSUPP));
    // SAFETY: no pointers.
    expect_eq!(Errno::result(unsafe { libc::listen(descriptor, 1) }), Err(Errno::EOPNOTSUPP));
    // SAFETY: no pointers.
    expect_eq!(Errno::result(unsafe { libc::shutdown(descriptor, libc::SHUT_RD) }), Err(Errno::EOPNOTSUPP));
    expect_eq!(receive(&made, 64, libc::MSG_OOB).err(), Some(Errno::EINVAL));
    expect_eq!(get(&made, SOL_PACKET, 99, 0), Err(Errno::ENOPROTOOPT));
    expect_eq!(set(&made, SOL_PACKET, 99, &0), Err(Errno::ENOPROTOOPT));
    let status = in_child(|| {
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_setresuid, 1000, 1000, 1000) };
        i32::from(socket(libc::SOCK_RAW, IPV4).err() != Some(Errno::EPERM))
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn sends_that_are_refused() -> Outcome {
    let (raw, cooked) = (socket(libc::SOCK_RAW, 0).or_fail()?, socket(libc::SOCK_DGRAM, 0).or_fail()?);
    let (to, full) = (address(IPV4, loopback()), size_of::<libc::sockaddr_ll>());
    expect_eq!(send(&raw, &[0; 64], None, 0), Err(Errno::ENXIO));
    expect_eq!(send(&raw, &[0; 64], Some(&address(IPV4, 4000)), full), Err(Errno::ENXIO));
    expect_eq!(send(&raw, &[0; 64], Some(&to), full - 1), Err(Errno::EINVAL));
    let mut long = to;
    long.sll_halen = 20;
    expect_eq!(send(&cooked, &[0; 64], Some(&long), full), Err(Errno::EINVAL));
    expect_eq!(send(&raw, &[0; 10], Some(&to), full), Err(Errno::EINVAL));
    expect_eq!(send(&raw, &vec![0; 66_000], Some(&to), full), Err(Errno::EMSGSIZE));
    expect_eq!(send(&cooked, &vec![0; 66_000], Some(&to), full), Err(Errno::EMSGSIZE));
    Ok(())
}

fn attach(socket: &OwnedFd, lines: &[(u16, u8, u8, u32)]) -> Result<(), Errno> {
    let mut lines: Vec<_> =
        lines.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

const RETURN: u16 = 6;

fn a_filter_chooses_packets() -> Outcome {
    let raw = listener(libc::SOCK_RAW, IPV4)?;
    let cooked = listener(libc::SOCK_DGRAM, IPV4)?;
    let (sender, _receiver, port) = datagrams()?;
    let (other, _, _) = datagrams()?;
    // The port of UDP, where the socket's bytes begin; the first 20 bytes of such packets.
    for (socket, at) in [(&raw, HEADER as u32), (&cooked, 0)] {
        attach(
            socket,
            &[
                (0xb1, 0, 0, at),
                (0x48, 0, 0, at + 2),
                (0x15, 0, 1, port.into()),
                (RETURN, 0, 0, 20),
                (RETURN, 0, 0, 0),
            ],
        )
        .or_fail()?;
    }
    other.send(b"other").or_fail()?;
    sender.send(b"chosen").or_fail()?;
    for socket in [&raw, &cooked] {
        let packet = receive(socket, 64, 0).or_fail()?;
        expect_eq!((packet.bytes.len(), packet.flags & libc::MSG_TRUNC), (20, 0));
        expect_eq!(receive(socket, 64, libc::MSG_DONTWAIT).err(), Some(Errno::EAGAIN));
    }
    // A filter can ask for a packet's kind, too.
    let every = listener(libc::SOCK_RAW, ALL)?;
    let kind = 0xffff_f000 + 4;
    attach(&every, &[(0x28, 0, 0, kind), (0x15, 0, 1, 4), (RETURN, 0, 0, 0xffff), (RETURN, 0, 0, 0)])
        .or_fail()?;
    sender.send(b"going").or_fail()?;
    expect_eq!(receive_ending(&every, b"going")?.from.sll_pkttype, 4);
    expect_eq!(receive(&every, 64, libc::MSG_DONTWAIT).err(), Some(Errno::EAGAIN));
    Ok(())
}

fn a_filter_is_locked() -> Outcome {
    let made = listener(libc::SOCK_RAW, IPV4)?;
    let detach = || set(&made, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0);
    expect_eq!(detach(), Err(Errno::ENOENT));
    expect_eq!(attach(&made, &[]), Err(Errno::EINVAL));
    expect_eq!(attach(&made, &[(0, 0, 0, 0)]), Err(Errno::EINVAL));
    expect_eq!(attach(&made, &[(0x15, 0, 9, 0), (RETURN, 0, 0, 0)]), Err(Errno::EINVAL));
    expect_eq!(set(&made, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &0_u64), Err(Errno::EINVAL));
    expect_eq!(attach(&made, &[(RETURN, 0, 0, 0)]), Ok(()));
    expect_eq!(attach(&made, &[(RETURN, 0, 0, 1)]), Ok(()));
    expect_eq!((detach(), detach()), (Ok(()), Err(Errno::ENOENT)));
    expect_eq!(attach(&made, &[(RETURN, 0, 0, 1)]), Ok(()));
    expect_eq!(set(&made, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1), Ok(()));
    expect_eq!(detach(), Err(Errno::EPERM));
    expect_eq!(attach(&made, &[(RETURN, 0, 0, 1)]), Err(Errno::EPERM));
    expect_eq!(set(&made, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &0), Err(Errno::EPERM));
    Ok(())
}

fn packets_are_counted() -> Outcome {
    let made = listener(libc::SOCK_RAW, IPV4)?;
    set(&made, libc::SOL_SOCKET, libc::SO_RCVBUF, &1).or_fail()?;
    let (sender, _receiver, _) = datagrams()?;
    let counts = || get(&made, SOL_PACKET, 6, [0_u32; 2]);
    for _ in 0..64 {
        sender.send(&[7; 512]).or_fail()?;
    }
    let [packets, drops] = counts().or_fail()?;
    expect_eq!(packets, 64);
    expect!((1..64).contains(&drops));
    expect_eq!(counts(), Ok([0, 0]));
    let mut waiting = 0;
    while receive(&made, 2048, libc::MSG_DONTWAIT).is_ok() {
        waiting += 1;
    }
    expect_eq!(waiting + drops, 64);
    Ok(())
}

fn auxiliary_data_come_along() -> Outcome {
    let (raw, cooked) = (listener(libc::SOCK_RAW, IPV4)?, listener(libc::SOCK_DGRAM, IPV4)?);
    let (sender, _receiver, _) = datagrams()?;
    for socket in [&raw, &cooked] {
        expect_eq!(get(socket, SOL_PACKET, 8, 7), Ok(0));
        set(socket, SOL_PACKET, 8, &1).or_fail()?;
        expect_eq!(get(socket, SOL_PACKET, 8, 7), Ok(1));
    }
    attach(&raw, &[(RETURN, 0, 0, 30)]).or_fail()?;
    sender.send(b"sixteen of bytes").or_fail()?;
    for (socket, network, length, kept) in [(&raw, 14, 58_u32, 30_u32), (&cooked, 0, 44, 44)] {
        let packet = receive(socket, 64, 0).or_fail()?;
        let control = &packet.control;
        expect_eq!(control.len(), 40);
        expect_eq!(control[..8], 36_usize.to_ne_bytes());
        expect_eq!(control[8..12], SOL_PACKET.to_ne_bytes());
        expect_eq!(control[12..16], 8_i32.to_ne_bytes());
        expect_eq!(control[16] & 1, 1);
        expect_eq!(control[20..24], length.to_ne_bytes());
        expect_eq!(control[24..28], kept.to_ne_bytes());
        expect_eq!(control[28..32], [0, 0, network, 0]);
    }
    Ok(())
}

fn memberships_are_kept() -> Outcome {
    let made = socket(libc::SOCK_RAW, 0).or_fail()?;
    let change = |name, interface, kind, length| {
        // SAFETY: all zero is a valid request.
        let mut request: libc::packet_mreq = unsafe { zeroed() };
        (request.mr_ifindex, request.mr_type, request.mr_alen) = (interface, kind, length);
        set(&made, SOL_PACKET, name, &request)
    };
    expect_eq!(change(1, loopback(), 1, 0), Ok(()));
    expect_eq!(change(1, 4000, 1, 0), Err(Errno::ENODEV));
    expect_eq!(change(1, loopback(), 0, 7), Err(Errno::EINVAL));
    expect_eq!(set(&made, SOL_PACKET, 1, &0_u32), Err(Errno::EINVAL));
    expect_eq!(change(2, loopback(), 0, 0), Ok(()));
    expect_eq!(change(2, loopback(), 1, 0), Ok(()));
    Ok(())
}

fn a_namespace_has_its_own() -> Outcome {
    let outside = listener(libc::SOCK_RAW, ALL)?;
    let status = in_child(|| {
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_setresuid, 1000, 1000, 1000) };
        if unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).is_err() {
            return 1;
        }
        // The owner of a network may look at it. Its loopback is down.
        let Ok(made) = socket(libc::SOCK_RAW, ALL) else { return 2 };
        if bind(&made, ALL, loopback()).is_err() {
            return 3;
        }
        let error = get(&made, libc::SOL_SOCKET, libc::SO_ERROR, 0);
        if error != Ok(libc::ENETDOWN) {
            return 4;
        }
        let mut frame = [0; 60];
        frame[12] = 8;
        let sent = send(&made, &frame, Some(&address(IPV4, loopback())), size_of::<libc::sockaddr_ll>());
        if sent == Err(Errno::ENETDOWN) { 0 } else { 5 }
    })?;
    expect_eq!(status, WaitStatus::Exited(status.pid().ok_or("no child")?, 0));
    expect_eq!(receive(&outside, 64, libc::MSG_DONTWAIT).err(), Some(Errno::EAGAIN));
    Ok(())
}
