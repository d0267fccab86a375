//! Connections that are dissolved and made again, sockets that are their own peers, and reads that wait for much.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use nix::errno::Errno;
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{Gid, Uid, fchown};

use super::{bind, connect, connection, get, listener, raw_socket, ready, receive, send, set};
use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    a_connection_is_dissolved_and_another_made
    a_connection_is_made_any_number_of_times
    a_listener_becomes_a_client
    a_socket_connects_to_itself
    a_read_waits_for_the_low_water_mark
    peeks_go_on_where_the_last_one_ended
    metadata_of_a_socket_can_be_changed
    names_belong_to_a_type
    a_shut_down_datagram_socket
    a_connected_datagram_socket_takes_from_its_peer_only
    datagram_errors_are_those_of_the_peer
    a_close_that_lingers
}

/// Takes the peer of a socket away.
fn dissolve(socket: &impl AsRawFd) -> nix::Result<()> {
    let address = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: the address lives through the call.
    Errno::result(unsafe { libc::connect(socket.as_raw_fd(), &raw const address, 16) }).map(drop)
}

fn a_connection_is_dissolved_and_another_made() -> Outcome {
    let (listener, address) = listener()?;
    let client = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    for round in 0..5_u8 {
        connect(&client, address).or_fail()?;
        expect_eq!(connect(&client, address), Err(Errno::EISCONN));
        let (mut server, _) = listener.accept().or_fail()?;
        expect_eq!(send(&client, &[round], 0), Ok(1));
        let mut byte = [0];
        server.read_exact(&mut byte).or_fail()?;
        expect_eq!(byte, [round]);
        server.write_all(b"answer").or_fail()?;
        let mut answer = [0; 6];
        expect_eq!(receive(&client, &mut answer, libc::MSG_WAITALL), Ok(6));
        dissolve(&client).or_fail()?;
        // The socket's own end is told as reset, once.
        expect_eq!(get(&client, libc::SOL_SOCKET, libc::SO_ERROR), Ok(libc::ECONNRESET));
        let error = server.read(&mut byte).err().and_then(|error| error.raw_os_error());
        expect_eq!(error, Some(libc::ECONNRESET));
        expect_eq!(send(&client, b"x", 0), Err(Errno::EPIPE));
        expect_eq!(receive(&client, &mut byte, 0), Err(Errno::ENOTCONN));
    }
    Ok(())
}

fn a_connection_is_made_any_number_of_times() -> Outcome {
    let (listener, address) = listener()?;
    let client = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let mut kept = Vec::new();
    for round in 0..600_u16 {
        connect(&client, address).or_fail()?;
        let (mut server, _) = listener.accept().or_fail()?;
        expect_eq!(send(&client, &round.to_ne_bytes(), 0), Ok(2));
        let mut bytes = [0; 2];
        server.read_exact(&mut bytes).or_fail()?;
        expect_eq!(u16::from_ne_bytes(bytes), round);
        dissolve(&client).or_fail()?;
        expect_eq!(get(&client, libc::SOL_SOCKET, libc::SO_ERROR), Ok(libc::ECONNRESET));
        // Of some the other end is still there.
        if round % 10 == 0 {
            kept.push(server);
        }
    }
    for mut server in kept {
        let error = server.read(&mut [0]).err().and_then(|error| error.raw_os_error());
        expect_eq!(error, Some(libc::ECONNRESET));
    }
    Ok(())
}

fn a_listener_becomes_a_client() -> Outcome {
    let (listener, address) = listener()?;
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    // SAFETY: the call takes no pointers.
    Errno::result(unsafe { libc::listen(socket.as_raw_fd(), 1) }).or_fail()?;
    expect_eq!(connect(&socket, address), Err(Errno::EISCONN));
    dissolve(&socket).or_fail()?;
    // The port that was chosen for it is given up.
    bind(&socket, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).or_fail()?;
    connect(&socket, address).or_fail()?;
    let (_server, peer) = listener.accept().or_fail()?;
    expect!(peer.ip().is_loopback());
    Ok(())
}

fn a_socket_connects_to_itself() -> Outcome {
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?.local_addr().or_fail()?;
    set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).or_fail()?;
    bind(&socket, own).or_fail()?;
    connect(&socket, own).or_fail()?;
    let mut buffer = [0; 16];
    expect_eq!(receive(&socket, &mut buffer, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    expect_eq!(ready(&socket, libc::POLLIN | libc::POLLOUT), libc::POLLOUT);
    expect_eq!(send(&socket, b"to me", 0), Ok(5));
    expect_eq!(ready(&socket, libc::POLLIN | libc::POLLOUT), libc::POLLIN | libc::POLLOUT);
    expect_eq!(receive(&socket, &mut buffer, 0), Ok(5));
    expect_eq!(&buffer[..5], b"to me");
    expect_eq!(send(&socket, b"rest", 0), Ok(4));
    // SAFETY: the call takes no pointers.
    Errno::result(unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) }).or_fail()?;
    expect_eq!(receive(&socket, &mut buffer, 0), Ok(4));
    expect_eq!(receive(&socket, &mut buffer, 0), Ok(0));
    expect_eq!(send(&socket, b"more", 0), Err(Errno::EPIPE));
    Ok(())
}

/// Sends in two pieces, with a pause, what a read with a low-water mark of 6 is to return at once.
fn reads_six(mut writer: impl Write + Send, reader: &(impl AsRawFd + Sync)) -> Outcome {
    expect_eq!(set(reader, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 6), Ok(()));
    expect_eq!(get(reader, libc::SOL_SOCKET, libc::SO_RCVLOWAT), Ok(6));
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            writer.write_all(b"one")?;
            std::thread::sleep(std::time::Duration::from_millis(50));
            writer.write_all(b"two")?;
            Ok::<_, std::io::Error>(writer)
        });
        let mut buffer = [0; 16];
        let count = receive(reader, &mut buffer, 0);
        let mut writer = writing.join().map_err(|_| String::from("the writer panicked"))?.or_fail()?;
        expect_eq!(count, Ok(6));
        // A call that does not wait takes what is there.
        writer.write_all(b"1").or_fail()?;
        expect_eq!(receive(reader, &mut buffer, libc::MSG_DONTWAIT), Ok(1));
        Ok(())
    })
}

fn a_read_waits_for_the_low_water_mark() -> Outcome {
    let (client, server) = connection()?;
    reads_six(client, &server)?;
    let (one, other) = UnixStream::pair().or_fail()?;
    reads_six(one, &other)?;
    let (one, _other) = UnixStream::pair().or_fail()?;
    for (value, told) in [(0, 1), (-1, i32::MAX), (5, 5)] {
        set(&one, libc::SOL_SOCKET, libc::SO_RCVLOWAT, value).or_fail()?;
        expect_eq!(get(&one, libc::SOL_SOCKET, libc::SO_RCVLOWAT), Ok(told));
    }
    Ok(())
}

/// Peeks twice at what was sent, and reads; the next peek starts at `left` then.
fn peeks_twice(reader: &impl AsRawFd, left: i32) -> Outcome {
    let mut buffer = [0; 4];
    set(reader, libc::SOL_SOCKET, libc::SO_PEEK_OFF, 0).or_fail()?;
    for expected in [&b"abcd"[..], b"ef"] {
        let count = receive(reader, &mut buffer, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        expect_eq!(count, Ok(expected.len()));
        expect_eq!(&buffer[..expected.len()], expected);
    }
    expect_eq!(receive(reader, &mut buffer, libc::MSG_PEEK | libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    expect_eq!(get(reader, libc::SOL_SOCKET, libc::SO_PEEK_OFF), Ok(6));
    expect_eq!(receive(reader, &mut buffer, 0), Ok(4));
    expect_eq!(get(reader, libc::SOL_SOCKET, libc::SO_PEEK_OFF), Ok(left));
    set(reader, libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1).or_fail()?;
    Ok(())
}

fn peeks_go_on_where_the_last_one_ended() -> Outcome {
    let (mut one, other) = UnixStream::pair().or_fail()?;
    expect_eq!(get(&other, libc::SOL_SOCKET, libc::SO_PEEK_OFF), Ok(-1));
    one.write_all(b"abcdef").or_fail()?;
    peeks_twice(&other, 2)?;
    let (one, other) = UnixDatagram::pair().or_fail()?;
    one.send(b"abcdef").or_fail()?;
    peeks_twice(&other, 0)?;
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    sender.send_to(b"abcdef", receiver.local_addr().or_fail()?).or_fail()?;
    // As in Linux, of these only the bytes that were copied count.
    peeks_twice(&receiver, 2)
}

fn metadata_of_a_socket_can_be_changed() -> Outcome {
    let (stream, _peer) = UnixStream::pair().or_fail()?;
    let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    for number in [stream.as_fd(), datagrams.as_fd()] {
        expect_eq!(fstat(number).or_fail()?.st_mode & 0o7777, 0o777);
        fchmod(number, Mode::from_bits_truncate(0o640)).or_fail()?;
        expect_eq!(fstat(number).or_fail()?.st_mode & 0o7777, 0o640);
        fchown(number, Some(Uid::from_raw(12)), Some(Gid::from_raw(34))).or_fail()?;
        let metadata = fstat(number).or_fail()?;
        expect_eq!((metadata.st_uid, metadata.st_gid), (12, 34));
    }
    Ok(())
}

/// The address of an abstract name.
fn abstract_name(name: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: zeroes are a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (place, &byte) in address.sun_path[1..].iter_mut().zip(name) {
        *place = byte as libc::c_char;
    }
    (address, (3 + name.len()) as libc::socklen_t)
}

fn names_belong_to_a_type() -> Outcome {
    let name = format!("heddle-type-{}", std::process::id());
    let (address, length) = abstract_name(name.as_bytes());
    let mut sockets = Vec::new();
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let socket = raw_socket(libc::AF_UNIX, kind)?;
        let other = raw_socket(libc::AF_UNIX, kind)?;
        let pointer = (&raw const address).cast();
        // SAFETY: the address lives through the calls.
        let bind = |socket: i32| Errno::result(unsafe { libc::bind(socket, pointer, length) }).map(drop);
        expect_eq!(bind(socket.as_raw_fd()), Ok(()));
        expect_eq!(bind(other.as_raw_fd()), Err(Errno::EADDRINUSE));
        sockets.push(socket);
    }
    // Nobody listens: the stream of that name is found, and refuses.
    let client = raw_socket(libc::AF_UNIX, libc::SOCK_STREAM)?;
    let pointer = (&raw const address).cast();
    // SAFETY: the address lives through the call.
    let result = Errno::result(unsafe { libc::connect(client.as_raw_fd(), pointer, length) });
    expect_eq!(result, Err(Errno::ECONNREFUSED));
    Ok(())
}

fn a_shut_down_datagram_socket() -> Outcome {
    let (one, other) = UnixDatagram::pair().or_fail()?;
    one.shutdown(std::net::Shutdown::Write).or_fail()?;
    expect_eq!(send(&one, b"x", 0), Err(Errno::EPIPE));
    // The peer is not told, and may still send.
    expect_eq!(ready(&other, libc::POLLIN | libc::POLLOUT), libc::POLLOUT);
    expect_eq!(send(&other, b"abc", 0), Ok(3));
    one.shutdown(std::net::Shutdown::Read).or_fail()?;
    expect_eq!(send(&other, b"abc", 0), Err(Errno::EPIPE));
    let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    expect_eq!(ready(&one, all), all | libc::POLLHUP);
    let mut buffer = [0; 8];
    expect_eq!(receive(&one, &mut buffer, 0), Ok(3));
    expect_eq!(receive(&one, &mut buffer, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    expect_eq!(receive(&one, &mut buffer, 0), Ok(0));
    // Also one without a peer can be shut down.
    let lone = UnixDatagram::unbound().or_fail()?;
    lone.shutdown(std::net::Shutdown::Both).or_fail()?;
    expect_eq!(ready(&lone, all), all | libc::POLLHUP);
    Ok(())
}

fn a_connected_datagram_socket_takes_from_its_peer_only() -> Outcome {
    let name = format!("heddle-peer-{}", std::process::id());
    let (address, length) = abstract_name(name.as_bytes());
    let (one, _other) = UnixDatagram::pair().or_fail()?;
    let pointer = (&raw const address).cast();
    // SAFETY: the address lives through the calls.
    Errno::result(unsafe { libc::bind(one.as_raw_fd(), pointer, length) }).or_fail()?;
    let stranger = UnixDatagram::unbound().or_fail()?;
    // SAFETY: the address lives through the call.
    let result = Errno::result(unsafe { libc::connect(stranger.as_raw_fd(), pointer, length) });
    expect_eq!(result, Err(Errno::EPERM));
    Ok(())
}

fn datagram_errors_are_those_of_the_peer() -> Outcome {
    let nobody = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?.local_addr().or_fail()?;
    let friend = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
    socket.connect(friend.local_addr().or_fail()?).or_fail()?;
    socket.send_to(b"hello", nobody).or_fail()?;
    expect_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    socket.connect(nobody).or_fail()?;
    socket.send(b"hello").or_fail()?;
    expect_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_ERROR), Ok(libc::ECONNREFUSED));
    Ok(())
}

fn a_close_that_lingers() -> Outcome {
    let (mut client, mut server) = connection()?;
    let linger = libc::linger { l_onoff: 1, l_linger: 30 };
    let length = size_of_val(&linger) as libc::socklen_t;
    let (number, pointer) = (client.as_raw_fd(), (&raw const linger).cast());
    // SAFETY: the value lives through the call.
    let result = unsafe { libc::setsockopt(number, libc::SOL_SOCKET, libc::SO_LINGER, pointer, length) };
    Errno::result(result).or_fail()?;
    client.write_all(&[7; 1000]).or_fail()?;
    // The peer's kernel has all bytes, and that is enough.
    drop(client);
    let mut all = Vec::new();
    server.read_to_end(&mut all).or_fail()?;
    expect_eq!(all.len(), 1000);
    Ok(())
}
