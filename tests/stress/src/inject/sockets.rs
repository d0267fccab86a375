//! Calls on sockets.

use super::{Shot, close, must, sys};

super::cases! {
    socket socket_pair bind listen connect accept send_bytes send_datagram send_descriptors receive_descriptors
    receive socket_option socket_name send_many packet_socket
}

type Outcome = Result<(), String>;

const STREAM: i32 = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
const DATAGRAM: i32 = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;

/// An address in the abstract name space.
struct Address {
    value: libc::sockaddr_un,
    length: usize,
}

impl Address {
    fn new() -> Self {
        let mut value = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
        for (to, from) in value.sun_path[1..].iter_mut().zip(b"heddle-inject") {
            *to = *from as libc::c_char;
        }
        Self { value, length: 2 + 1 + 13 }
    }
}

fn pair(kind: i32) -> Result<[i32; 2], String> {
    let mut ends = [0i32; 2];
    must("socketpair", sys!(SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()))?;
    Ok(ends)
}

fn close_both(ends: [i32; 2]) -> Outcome {
    close(ends[0].into())?;
    close(ends[1].into())
}

fn made() -> Result<i64, String> {
    must("socket", sys!(SYS_socket, libc::AF_UNIX, STREAM, 0))
}

fn listening(address: &Address) -> Result<i64, String> {
    let socket = made()?;
    must("bind", sys!(SYS_bind, socket, &raw const address.value, address.length))?;
    must("listen", sys!(SYS_listen, socket, 5))?;
    Ok(socket)
}

fn socket(shot: &mut Shot) -> Outcome {
    close(shot.fire(|| sys!(SYS_socket, libc::AF_UNIX, STREAM, 0))?)
}

fn socket_pair(shot: &mut Shot) -> Outcome {
    let mut ends = [0i32; 2];
    let pointer = ends.as_mut_ptr();
    shot.fire(|| sys!(SYS_socketpair, libc::AF_UNIX, STREAM, 0, pointer))?;
    close_both(ends)
}

fn bind(shot: &mut Shot) -> Outcome {
    let (socket, address) = (made()?, Address::new());
    shot.fire(|| sys!(SYS_bind, socket, &raw const address.value, address.length))?;
    close(socket)
}

fn listen(shot: &mut Shot) -> Outcome {
    let (socket, address) = (made()?, Address::new());
    must("bind", sys!(SYS_bind, socket, &raw const address.value, address.length))?;
    shot.fire(|| sys!(SYS_listen, socket, 5))?;
    close(socket)
}

fn connect(shot: &mut Shot) -> Outcome {
    let address = Address::new();
    let (server, client) = (listening(&address)?, made()?);
    shot.fire(|| sys!(SYS_connect, client, &raw const address.value, address.length))?;
    close(client)?;
    close(server)
}

fn accept(shot: &mut Shot) -> Outcome {
    let address = Address::new();
    let (server, client) = (listening(&address)?, made()?);
    must("connect", sys!(SYS_connect, client, &raw const address.value, address.length))?;
    // A second one, because a connection whose descriptor or address could not be told is gone, as in Linux.
    let second = made()?;
    must("connect", sys!(SYS_connect, second, &raw const address.value, address.length))?;
    let mut peer = [0u8; 128];
    let mut length = 128i32;
    let (peer, length) = (peer.as_mut_ptr(), &raw mut length);
    close(shot.fire(|| sys!(SYS_accept4, server, peer, length, 0))?)?;
    close(client)?;
    close(second)?;
    close(server)
}

fn send_bytes(shot: &mut Shot) -> Outcome {
    let (ends, data) = (pair(STREAM)?, [1u8; 3000]);
    shot.fire(|| sys!(SYS_sendto, ends[0], data.as_ptr(), 3000, 0, 0, 0))?;
    close_both(ends)
}

fn send_datagram(shot: &mut Shot) -> Outcome {
    let (ends, data) = (pair(DATAGRAM)?, [1u8; 3000]);
    shot.fire(|| sys!(SYS_sendto, ends[0], data.as_ptr(), 3000, 0, 0, 0))?;
    close_both(ends)
}

/// A message with descriptors, or with room for some.
struct Message {
    data: [u8; 16],
    part: libc::iovec,
    control: [u64; 4],
    header: libc::msghdr,
}

impl Message {
    fn new() -> Box<Self> {
        // SAFETY: zeros are valid for each of the fields.
        let mut message: Box<Self> = Box::new(unsafe { std::mem::zeroed() });
        message.part = libc::iovec { iov_base: message.data.as_mut_ptr().cast(), iov_len: 16 };
        message.header.msg_iov = &raw mut message.part;
        message.header.msg_iovlen = 1;
        message.header.msg_control = message.control.as_mut_ptr().cast();
        message.header.msg_controllen = 32;
        message
    }

    fn with_descriptors(first: i32, second: i32) -> Box<Self> {
        let mut message = Self::new();
        let kind = (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64;
        message.control = [16 + 8, kind, (second as u64) << 32 | first as u64, 0];
        message.header.msg_controllen = 24;
        message
    }
}

fn send_descriptors(shot: &mut Shot) -> Outcome {
    for kind in [STREAM, DATAGRAM] {
        let (ends, message) = (pair(kind)?, Message::with_descriptors(1, 2));
        shot.fire(|| sys!(SYS_sendmsg, ends[0], &raw const message.header, 0))?;
        close_both(ends)?;
    }
    Ok(())
}

fn send_many(shot: &mut Shot) -> Outcome {
    let (ends, message) = (pair(DATAGRAM)?, Message::with_descriptors(1, 2));
    let mut all = [libc::mmsghdr { msg_hdr: message.header, msg_len: 0 }; 3];
    let pointer = all.as_mut_ptr();
    shot.fire(|| sys!(SYS_sendmmsg, ends[0], pointer, 3, 0))?;
    close_both(ends)
}

fn receive_descriptors(shot: &mut Shot) -> Outcome {
    let (ends, sent) = (pair(DATAGRAM)?, Message::with_descriptors(1, 2));
    // Two, because a message whose copy failed is gone, as in Linux.
    for _ in 0..2 {
        must("sendmsg", sys!(SYS_sendmsg, ends[0], &raw const sent.header, 0))?;
    }
    let mut got = Message::new();
    let header = &raw mut got.header;
    shot.fire(|| sys!(SYS_recvmsg, ends[1], header, 0))?;
    // Descriptors that came are the program's.
    if got.header.msg_controllen >= 24 && got.control[0] == 24 {
        close(i64::from(got.control[2] as u32))?;
        close((got.control[2] >> 32) as i64)?;
    } else if got.header.msg_controllen >= 20 && got.control[0] == 20 {
        close(i64::from(got.control[2] as u32))?;
    }
    close_both(ends)
}

fn receive(shot: &mut Shot) -> Outcome {
    let (ends, data) = (pair(STREAM)?, [1u8; 3000]);
    must("sendto", sys!(SYS_sendto, ends[0], data.as_ptr(), 3000, 0, 0, 0))?;
    let mut got = [0u8; 3000];
    let pointer = got.as_mut_ptr();
    shot.fire(|| sys!(SYS_recvfrom, ends[1], pointer, 1000, 0, 0, 0))?;
    close_both(ends)
}

fn socket_option(shot: &mut Shot) -> Outcome {
    let (ends, on) = (pair(STREAM)?, 1i32);
    shot.fire(|| {
        sys!(SYS_setsockopt, ends[0], libc::SOL_SOCKET, libc::SO_PASSCRED, &raw const on, size_of::<i32>())
    })?;
    let (mut value, mut length) = ([0u32; 4], 16i32);
    let (value, length) = (value.as_mut_ptr(), &raw mut length);
    shot.fire(|| sys!(SYS_getsockopt, ends[0], libc::SOL_SOCKET, libc::SO_PEERCRED, value, length))?;
    close_both(ends)
}

fn socket_name(shot: &mut Shot) -> Outcome {
    let address = Address::new();
    let server = listening(&address)?;
    let mut name = [0u8; 128];
    let mut length = 128i32;
    let (name, length) = (name.as_mut_ptr(), &raw mut length);
    shot.fire(|| sys!(SYS_getsockname, server, name, length))?;
    close(server)
}

fn packet_socket(shot: &mut Shot) -> Outcome {
    const ALL: u16 = 3;
    let protocol = i32::from(ALL.to_be());
    let socket = shot.fire(|| sys!(SYS_socket, libc::AF_PACKET, libc::SOCK_RAW, protocol))?;
    let lines = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0xffff }];
    let program = libc::sock_fprog { len: 1, filter: lines.as_ptr().cast_mut() };
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    shot.fire(|| sys!(SYS_setsockopt, socket, level, name, &raw const program, size_of_val(&program)))?;
    let request = [4096_u32, 1, 2048, 2];
    // SOL_PACKET and PACKET_RX_RING.
    shot.fire(|| sys!(SYS_setsockopt, socket, 263, 5, request.as_ptr(), 16))?;
    // A frame of no protocol to the first interface, the loopback.
    let mut to = [17_u16, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    to[5] = 6 << 8;
    let frame = [0_u8; 64];
    shot.fire(|| sys!(SYS_sendto, socket, frame.as_ptr(), frame.len(), 0, to.as_ptr(), 20))?;
    close(socket)
}
