//! Waits of bytes, connections and datagrams: `TCP_CORK`, `TCP_DEFER_ACCEPT`, and the sizes of buffers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};

use nix::errno::Errno;

use super::{connection, get, listener, raw_socket, ready, receive, send, set};
use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    corked_bytes_come_together
    a_cork_does_not_wait_for_ever
    a_connection_without_bytes_is_not_accepted
    patience_for_silent_peers_is_rounded
    datagrams_fill_a_buffer
    a_small_buffer_stops_the_writer_soon
    a_type_of_service_brings_a_priority
}

/// Attempts at what only holds within 200 ms, which a busy machine may miss.
const ATTEMPTS: usize = 50;

fn corked_bytes_come_together() -> Outcome {
    let (mut client, mut server) = connection()?;
    let mut has_waited = false;
    for _ in 0..ATTEMPTS {
        set(&client, libc::IPPROTO_TCP, libc::TCP_CORK, 1).or_fail()?;
        client.write_all(b"head ").or_fail()?;
        let early = receive(&server, &mut [0; 16], libc::MSG_DONTWAIT | libc::MSG_PEEK);
        has_waited = early == Err(Errno::EAGAIN);
        client.write_all(b"body").or_fail()?;
        set(&client, libc::IPPROTO_TCP, libc::TCP_CORK, 0).or_fail()?;
        let mut bytes = [0; 9];
        server.read_exact(&mut bytes).or_fail()?;
        expect_eq!(&bytes, b"head body");
        if has_waited {
            break;
        }
    }
    expect!(has_waited);
    // More than a segment does not wait, and neither does what is there at the end.
    set(&client, libc::IPPROTO_TCP, libc::TCP_CORK, 1).or_fail()?;
    client.write_all(&[7; 100_000]).or_fail()?;
    server.read_exact(&mut [0; 50_000]).or_fail()?;
    drop(client);
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).or_fail()?;
    expect_eq!(rest.len(), 50_000);
    Ok(())
}

fn a_cork_does_not_wait_for_ever() -> Outcome {
    let (mut client, mut server) = connection()?;
    set(&client, libc::IPPROTO_TCP, libc::TCP_CORK, 1).or_fail()?;
    for _ in 0..3 {
        client.write_all(b"alone").or_fail()?;
        let mut bytes = [0; 5];
        server.read_exact(&mut bytes).or_fail()?;
        expect_eq!(&bytes, b"alone");
    }
    // Without delay, what waits goes.
    client.write_all(b"again").or_fail()?;
    set(&client, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).or_fail()?;
    server.read_exact(&mut [0; 5]).or_fail()?;
    Ok(())
}

fn a_connection_without_bytes_is_not_accepted() -> Outcome {
    let (listener, address) = listener()?;
    set(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 300).or_fail()?;
    let mut first = TcpStream::connect(address).or_fail()?;
    let second = TcpStream::connect(address).or_fail()?;
    listener.set_nonblocking(true).or_fail()?;
    expect_eq!(ready(&listener, libc::POLLIN), 0);
    expect_eq!(listener.accept().err().and_then(|error| error.raw_os_error()), Some(libc::EAGAIN));
    first.write_all(b"hello").or_fail()?;
    expect_eq!(ready(&listener, libc::POLLIN), libc::POLLIN);
    let (mut server, peer) = listener.accept().or_fail()?;
    expect_eq!(peer, first.local_addr().or_fail()?);
    server.set_nonblocking(false).or_fail()?;
    server.read_exact(&mut [0; 5]).or_fail()?;
    expect_eq!(ready(&listener, libc::POLLIN), 0);
    // The end counts as something to read.
    drop(second);
    expect_eq!(ready(&listener, libc::POLLIN), libc::POLLIN);
    let (mut server, _) = listener.accept().or_fail()?;
    server.set_nonblocking(false).or_fail()?;
    expect_eq!(server.read(&mut [0]).or_fail()?, 0);
    Ok(())
}

fn patience_for_silent_peers_is_rounded() -> Outcome {
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let name = libc::TCP_DEFER_ACCEPT;
    for (asked, told) in [(1, 1), (2, 3), (3, 3), (5, 7), (30, 31), (120, 127), (200, 247), (0, 0), (-5, 0)] {
        set(&socket, libc::IPPROTO_TCP, name, asked).or_fail()?;
        expect_eq!(get(&socket, libc::IPPROTO_TCP, name), Ok(told));
    }
    Ok(())
}

/// The memory that Linux counts for a datagram of so many bytes.
const fn cost(length: usize) -> usize {
    ((length + 59).next_multiple_of(64) + 320).next_power_of_two() + 256
}

fn datagrams_fill_a_buffer() -> Outcome {
    for (length, buffer) in [(1, 1), (1, 30_000), (500, 30_000), (1500, 5000), (1500, 30_000), (7000, 60_000)]
    {
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
        set(&receiver, libc::SOL_SOCKET, libc::SO_RCVBUF, buffer).or_fail()?;
        let bytes = get(&receiver, libc::SOL_SOCKET, libc::SO_RCVBUF).or_fail()?;
        receiver.set_nonblocking(true).or_fail()?;
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_fail()?;
        for _ in 0..300 {
            sender.send_to(&vec![0; length], receiver.local_addr().or_fail()?).or_fail()?;
        }
        let mut taken = 0;
        while receiver.recv(&mut [0; 8000]).is_ok() {
            taken += 1;
        }
        // Newer versions of Linux take one less, and in 6.1 the last one may go beyond the limit.
        let whole = bytes as usize / cost(length);
        expect!((whole.saturating_sub(1).max(1)..=whole + 1).contains(&taken));
    }
    Ok(())
}

/// Bytes that fit between two ends whose buffers are so large.
fn bytes_until_full(buffer: i32) -> Result<usize, String> {
    let (listener, address) = listener()?;
    set(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, buffer).or_fail()?;
    let client = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    set(&client, libc::SOL_SOCKET, libc::SO_SNDBUF, buffer).or_fail()?;
    super::connect(&client, address).or_fail()?;
    let (_server, _) = listener.accept().or_fail()?;
    let mut sent = 0;
    loop {
        match send(&client, &[0; 1000], libc::MSG_DONTWAIT) {
            Ok(count) => sent += count,
            Err(Errno::EAGAIN) => return Ok(sent),
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn a_small_buffer_stops_the_writer_soon() -> Outcome {
    let (small, large) = (bytes_until_full(8192)?, bytes_until_full(131_072)?);
    expect!(small >= 4096);
    // Both ends' buffers, which are twice what was asked for.
    expect!(small <= 4 * 8192 + 65_536);
    expect!(large > small + 65_536);
    expect!(large <= 4 * 131_072 + 65_536);
    Ok(())
}

fn a_type_of_service_brings_a_priority() -> Outcome {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
        let socket = raw_socket(libc::AF_INET, kind)?;
        for (service, priority) in [(0x10, 6), (0x08, 2), (0x04, 0), (0x18, 4), (0xb8, 4), (0, 0)] {
            set(&socket, libc::IPPROTO_IP, libc::IP_TOS, service).or_fail()?;
            expect_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY), Ok(priority));
        }
        set(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, 3).or_fail()?;
        expect_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY), Ok(3));
        expect_eq!(get(&socket, libc::IPPROTO_IP, libc::IP_TOS), Ok(0));
    }
    Ok(())
}
