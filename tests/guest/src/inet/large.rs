//! Receives of more than a kernel moves at once: a short count says that nothing is left, or that urgent data follows.

use std::io::{IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::{connect, connection, listener, raw_socket, ready, receive, send, set};
use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    one_receive_takes_all
    several_buffers_take_all
    a_reader_of_edges_is_never_stuck
    a_mark_ends_a_large_receive
    a_mark_ends_a_receive_of_all
    looking_ends_at_a_mark
}

/// Bytes that are queued at once: less than a window of Linux.
const BYTES: usize = 190_000;
/// A buffer with room for more.
const ROOM: usize = 400 << 10;
/// So many bytes Heddle moves at once.
const ATTEMPT: usize = 128 << 10;
/// Whether the next byte is the mark of urgent data.
const SIOCATMARK: libc::c_ulong = 0x8905;
/// A pause between two looks at a queue.
const PAUSE: Duration = Duration::from_millis(1);

/// Bytes that tell where they belong.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

/// Two ends of a connection with the largest buffers.
fn large_connection() -> Result<(TcpStream, TcpStream), String> {
    let (listener, address) = listener()?;
    set(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 30).or_fail()?;
    let client = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    set(&client, libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 30).or_fail()?;
    set(&client, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).or_fail()?;
    connect(&client, address).or_fail()?;
    let (server, _) = listener.accept().or_fail()?;
    Ok((TcpStream::from(client), server))
}

/// The answer of an ioctl about a socket.
fn asked(socket: &TcpStream, request: libc::c_ulong) -> Result<usize, String> {
    let mut value = 0_i32;
    // SAFETY: the value lives through the call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut value) }).or_fail()?;
    usize::try_from(value).or_fail()
}

/// Sends bytes without waiting for the reader, and waits until they are queued at the other end, which has none.
fn queue(client: &TcpStream, server: &TcpStream, bytes: &[u8]) -> Outcome {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(client, &bytes[sent..], libc::MSG_DONTWAIT) {
            Ok(count) => sent += count,
            Err(Errno::EAGAIN) => std::thread::sleep(PAUSE),
            Err(error) => return Err(error.to_string()),
        }
    }
    while asked(server, libc::FIONREAD)? < bytes.len() {
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn one_receive_takes_all() -> Outcome {
    let (client, server) = large_connection()?;
    let bytes = pattern(BYTES);
    for flags in [0, libc::MSG_DONTWAIT, libc::MSG_PEEK] {
        queue(&client, &server, &bytes)?;
        let mut buffer = vec![0; ROOM];
        expect_eq!(receive(&server, &mut buffer, flags), Ok(BYTES));
        expect!(buffer[..BYTES] == bytes[..]);
    }
    // They were only looked at.
    let mut buffer = vec![0; BYTES];
    expect_eq!(receive(&server, &mut buffer, libc::MSG_WAITALL), Ok(BYTES));
    expect!(buffer == bytes);
    expect_eq!(receive(&server, &mut buffer, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    Ok(())
}

fn several_buffers_take_all() -> Outcome {
    let (client, mut server) = large_connection()?;
    let bytes = pattern(BYTES);
    for is_message in [false, true] {
        queue(&client, &server, &bytes)?;
        let mut buffer = vec![0; ROOM];
        let (first, rest) = buffer.split_at_mut(70_000);
        let (second, third) = rest.split_at_mut(1);
        let mut parts = [first, second, third].map(IoSliceMut::new);
        let count = if is_message {
            // SAFETY: zeroes are a header without anything.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_iov = parts.as_mut_ptr().cast();
            header.msg_iovlen = parts.len();
            // SAFETY: the header and what it names live through the call, and the parts are laid out as `iovec`.
            let count = unsafe { libc::recvmsg(server.as_raw_fd(), &raw mut header, 0) };
            expect_eq!(header.msg_flags, 0);
            Errno::result(count).or_fail()? as usize
        } else {
            server.read_vectored(&mut parts).or_fail()?
        };
        expect_eq!(count, BYTES);
        expect!(buffer[..BYTES] == bytes[..]);
    }
    Ok(())
}

/// The reader takes a short count for the end of what is there, as tokio does.
fn a_reader_of_edges_is_never_stuck() -> Outcome {
    const TOTAL: usize = 6_000_000;
    const PATIENCE_MS: u16 = 20_000;
    let (mut client, server) = large_connection()?;
    server.set_nonblocking(true).or_fail()?;
    let epoll = Epoll::new(EpollCreateFlags::empty()).or_fail()?;
    let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
    epoll.add(&server, EpollEvent::new(interest, 1)).or_fail()?;
    let bytes = pattern(TOTAL);
    let writing = std::thread::spawn({
        let bytes = bytes.clone();
        move || -> std::io::Result<()> {
            let mut sent = 0;
            for piece in [BYTES, 1, ATTEMPT, 70_001, 300_000].into_iter().cycle() {
                let end = TOTAL.min(sent + piece);
                client.write_all(&bytes[sent..end])?;
                sent = end;
                if sent == TOTAL {
                    break;
                }
            }
            // The end is waited for, so that it is not what tells of the last bytes.
            client.read_exact(&mut [0])
        }
    });
    let (mut received, mut buffer) = (Vec::new(), vec![0; ROOM]);
    while received.len() < TOTAL {
        let mut events = [EpollEvent::empty(); 1];
        let count = epoll.wait(&mut events, EpollTimeout::from(PATIENCE_MS)).or_fail()?;
        if count == 0 {
            return Err(format!("no event after {} bytes", received.len()));
        }
        loop {
            match receive(&server, &mut buffer, 0) {
                Ok(count) => {
                    received.extend_from_slice(&buffer[..count]);
                    if count < ROOM {
                        break;
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(error) => return Err(error.to_string()),
            }
        }
    }
    expect!(received == bytes);
    expect_eq!(send(&server, b"x", 0), Ok(1));
    writing.join().map_err(|_| "the writer panicked")?.or_fail()?;
    Ok(())
}

fn a_mark_ends_a_large_receive() -> Outcome {
    for before in [ATTEMPT, ATTEMPT - 1, ATTEMPT + 5000] {
        let (client, server) = large_connection()?;
        let (head, tail) = (pattern(before), pattern(1000));
        queue(&client, &server, &head)?;
        expect_eq!(send(&client, b"!", libc::MSG_OOB), Ok(1));
        expect_eq!(send(&client, &tail, 0), Ok(1000));
        expect!(ready(&server, libc::POLLPRI) & libc::POLLPRI != 0);
        expect_eq!(asked(&server, libc::FIONREAD)?, before);
        let mut buffer = vec![0; ROOM];
        expect_eq!(receive(&server, &mut buffer, 0), Ok(before));
        expect!(buffer[..before] == head[..]);
        expect_eq!(asked(&server, SIOCATMARK)?, 1);
        expect_eq!(receive(&server, &mut buffer, libc::MSG_OOB), Ok(1));
        expect_eq!(buffer[0], b'!');
        expect_eq!(receive(&server, &mut buffer[..1000], libc::MSG_WAITALL), Ok(1000));
        expect!(buffer[..1000] == tail[..]);
        expect_eq!(asked(&server, SIOCATMARK)?, 0);
    }
    Ok(())
}

fn a_mark_ends_a_receive_of_all() -> Outcome {
    for is_late in [false, true] {
        let (client, server) = connection()?;
        expect_eq!(send(&client, b"abc", 0), Ok(3));
        let writing = std::thread::spawn(move || {
            if is_late {
                std::thread::sleep(20 * PAUSE);
            }
            let urgent = send(&client, b"!", libc::MSG_OOB);
            if is_late {
                std::thread::sleep(20 * PAUSE);
            }
            [urgent, send(&client, b"de", 0)]
        });
        let mut buffer = [0; 5];
        expect_eq!(receive(&server, &mut buffer, libc::MSG_WAITALL), Ok(3));
        expect_eq!(receive(&server, &mut buffer[3..], libc::MSG_WAITALL), Ok(2));
        expect_eq!(&buffer, b"abcde");
        expect_eq!(writing.join().map_err(|_| "the writer panicked")?, [Ok(1), Ok(2)]);
    }
    Ok(())
}

fn looking_ends_at_a_mark() -> Outcome {
    let (client, server) = connection()?;
    expect_eq!(send(&client, b"abc", 0), Ok(3));
    expect_eq!(send(&client, b"!", libc::MSG_OOB), Ok(1));
    expect_eq!(send(&client, b"de", 0), Ok(2));
    expect!(ready(&server, libc::POLLPRI) & libc::POLLPRI != 0);
    let mut buffer = [0; 8];
    for flags in [libc::MSG_PEEK, libc::MSG_PEEK | libc::MSG_WAITALL, 0] {
        expect_eq!(receive(&server, &mut buffer, flags), Ok(3));
    }
    expect_eq!(receive(&server, &mut buffer[..2], libc::MSG_PEEK | libc::MSG_WAITALL), Ok(2));
    expect_eq!(&buffer[..2], b"de");
    expect_eq!(receive(&server, &mut buffer[..2], libc::MSG_WAITALL), Ok(2));
    Ok(())
}
