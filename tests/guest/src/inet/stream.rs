//! TCP.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};

use super::{bind, connect, connection, get, listener, raw_socket, ready, receive, send, set};
use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    bytes_go_both_ways
    nobody_listens
    nobody_answers_for_a_group
    a_connection_is_made_without_waiting
    a_refusal_is_found_without_waiting
    accept4_sets_flags
    half_a_connection_goes_on
    unread_bytes_make_a_reset
    lingering_for_no_time_makes_a_reset
    writing_to_a_closed_end_breaks
    peeking_leaves_bytes
    all_that_is_wanted_is_waited_for
    truncation_drops_bytes
    urgent_data_overtakes
    mapped_addresses
    only_v6
    names_of_both_ends
    ports_are_exclusive
    a_port_waits_after_a_close
    sharing_a_port_balances
    a_listener_ends_its_queue
    a_listener_is_shut_down
    large_streams_are_whole
    a_thousand_connections
    connections_one_after_the_other
    errors_of_unconnected_sockets
    bytes_are_counted
    files_are_sent
    closing_elsewhere_is_heard
    full_buffers_block
}

fn bytes_go_both_ways() -> Outcome {
    let (mut client, mut server) = connection()?;
    client.write_all(b"question").or_fail()?;
    let mut buffer = [0; 8];
    server.read_exact(&mut buffer).or_fail()?;
    expect_eq!(&buffer, b"question");
    server.write_all(b"answer!!").or_fail()?;
    client.read_exact(&mut buffer).or_fail()?;
    expect_eq!(&buffer, b"answer!!");
    drop(server);
    expect_eq!(client.read(&mut buffer).or_fail()?, 0);
    Ok(())
}

fn nobody_listens() -> Outcome {
    let (listener, address) = listener()?;
    drop(listener);
    let error = TcpStream::connect(address).err().and_then(|error| error.raw_os_error());
    expect_eq!(error, Some(libc::ECONNREFUSED));
    // The socket can be used again.
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    expect_eq!(connect(&socket, address), Err(Errno::ECONNREFUSED));
    let listener = TcpListener::bind(address).or_fail()?;
    expect_eq!(connect(&socket, address), Ok(()));
    expect_eq!(connect(&socket, address), Err(Errno::EISCONN));
    drop(listener);
    Ok(())
}

fn nobody_answers_for_a_group() -> Outcome {
    let everyone = ["255.255.255.255:9", "224.0.0.1:9", "239.1.2.3:9", "[ff05::1]:9"];
    for address in everyone {
        let address: SocketAddr = address.parse().or_fail()?;
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = raw_socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
        expect_eq!(connect(&socket, address), Err(Errno::ENETUNREACH));
    }
    Ok(())
}

fn a_connection_is_made_without_waiting() -> Outcome {
    let (listener, address) = listener()?;
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    expect_eq!(connect(&socket, address), Err(Errno::EINPROGRESS));
    expect_eq!(ready(&socket, libc::POLLOUT), libc::POLLOUT);
    expect_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    expect_eq!(connect(&socket, address), Ok(()));
    expect_eq!(connect(&socket, address), Err(Errno::EISCONN));
    listener.accept().or_fail()?;
    Ok(())
}

fn a_refusal_is_found_without_waiting() -> Outcome {
    let (listener, address) = listener()?;
    drop(listener);
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    expect_eq!(connect(&socket, address), Err(Errno::EINPROGRESS));
    let events = ready(&socket, libc::POLLIN | libc::POLLOUT);
    expect_eq!(events, libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP);
    expect_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_ERROR), Ok(libc::ECONNREFUSED));
    expect_eq!(get(&socket, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    Ok(())
}

fn accept4_sets_flags() -> Outcome {
    let (listener, address) = listener()?;
    let _client = TcpStream::connect(address).or_fail()?;
    let null = std::ptr::null_mut();
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the address is not wanted.
    let number = unsafe { libc::accept4(listener.as_raw_fd(), null, std::ptr::null_mut(), flags) };
    let number = Errno::result(number).or_fail()?;
    // SAFETY: the calls take no pointers.
    let (status, descriptor) =
        unsafe { (libc::fcntl(number, libc::F_GETFL), libc::fcntl(number, libc::F_GETFD)) };
    expect!(status & libc::O_NONBLOCK != 0);
    expect_eq!(descriptor, libc::FD_CLOEXEC);
    Ok(())
}

fn half_a_connection_goes_on() -> Outcome {
    let (mut client, mut server) = connection()?;
    client.write_all(b"all there is").or_fail()?;
    client.shutdown(Shutdown::Write).or_fail()?;
    expect_eq!(send(&client, b"more", 0), Err(Errno::EPIPE));
    let mut text = String::new();
    server.read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "all there is");
    server.write_all(b"the answer").or_fail()?;
    drop(server);
    text.clear();
    client.read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "the answer");
    Ok(())
}

fn unread_bytes_make_a_reset() -> Outcome {
    let (mut client, server) = connection()?;
    client.write_all(b"unread").or_fail()?;
    expect!(ready(&server, libc::POLLIN) & libc::POLLIN != 0);
    drop(server);
    let events = ready(&client, libc::POLLIN | libc::POLLRDHUP);
    expect!(events & libc::POLLERR != 0 && events & libc::POLLHUP != 0 && events & libc::POLLRDHUP != 0);
    expect_eq!(receive(&client, &mut [0; 8], 0), Err(Errno::ECONNRESET));
    expect_eq!(receive(&client, &mut [0; 8], 0), Ok(0));
    expect_eq!(send(&client, b"x", 0), Err(Errno::EPIPE));
    Ok(())
}

fn lingering_for_no_time_makes_a_reset() -> Outcome {
    let (client, server) = connection()?;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let pointer = (&raw const linger).cast();
    // SAFETY: the value lives through the call.
    let result =
        unsafe { libc::setsockopt(server.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, pointer, 8) };
    Errno::result(result).or_fail()?;
    drop(server);
    expect_eq!(receive(&client, &mut [0; 8], 0), Err(Errno::ECONNRESET));
    Ok(())
}

fn writing_to_a_closed_end_breaks() -> Outcome {
    let (client, server) = connection()?;
    drop(server);
    expect!(ready(&client, libc::POLLIN) & libc::POLLIN != 0);
    expect_eq!(send(&client, b"first", 0), Ok(5));
    std::thread::sleep(Duration::from_millis(20));
    expect_eq!(send(&client, b"second", 0), Err(Errno::EPIPE));
    Ok(())
}

fn peeking_leaves_bytes() -> Outcome {
    let (mut client, server) = connection()?;
    client.write_all(b"look").or_fail()?;
    let mut buffer = [0; 8];
    expect_eq!(receive(&server, &mut buffer, libc::MSG_PEEK), Ok(4));
    expect_eq!(receive(&server, &mut buffer[..2], libc::MSG_PEEK), Ok(2));
    expect_eq!(receive(&server, &mut buffer, 0), Ok(4));
    expect_eq!(&buffer[..4], b"look");
    expect_eq!(receive(&server, &mut buffer, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    Ok(())
}

fn all_that_is_wanted_is_waited_for() -> Outcome {
    let (mut client, server) = connection()?;
    let child = spawn_child(move || {
        for byte in 0..10_u8 {
            if client.write_all(&[byte; 100]).is_err() {
                return 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        0
    })?;
    let mut buffer = [0; 1000];
    expect_eq!(receive(&server, &mut buffer, libc::MSG_WAITALL), Ok(1000));
    expect_eq!(buffer[999], 9);
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    Ok(())
}

fn truncation_drops_bytes() -> Outcome {
    let (mut client, server) = connection()?;
    client.write_all(b"abcdef").or_fail()?;
    let mut buffer = *b"......";
    expect_eq!(receive(&server, &mut buffer[..4], libc::MSG_TRUNC), Ok(4));
    expect_eq!(&buffer, b"......");
    expect_eq!(receive(&server, &mut buffer, 0), Ok(2));
    expect_eq!(&buffer[..2], b"ef");
    Ok(())
}

fn urgent_data_overtakes() -> Outcome {
    let (client, server) = connection()?;
    expect_eq!(send(&client, b"abc", 0), Ok(3));
    expect_eq!(send(&client, b"!", libc::MSG_OOB), Ok(1));
    expect!(ready(&server, libc::POLLPRI) & libc::POLLPRI != 0);
    let mut buffer = [0; 8];
    expect_eq!(receive(&server, &mut buffer, libc::MSG_OOB), Ok(1));
    expect_eq!(buffer[0], b'!');
    expect_eq!(receive(&server, &mut buffer, libc::MSG_OOB), Err(Errno::EINVAL));
    expect_eq!(receive(&server, &mut buffer, 0), Ok(3));
    expect_eq!(send(&client, b"de", 0), Ok(2));
    expect_eq!(receive(&server, &mut buffer, 0), Ok(2));
    Ok(())
}

fn mapped_addresses() -> Outcome {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_fail()?;
    let port = listener.local_addr().or_fail()?.port();
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).or_fail()?;
    let (server, peer) = listener.accept().or_fail()?;
    expect_eq!(peer.ip().to_string(), "::ffff:127.0.0.1");
    expect_eq!(server.local_addr().or_fail()?.ip().to_string(), "::ffff:127.0.0.1");
    expect_eq!(client.peer_addr().or_fail()?.ip(), Ipv4Addr::LOCALHOST);
    let mapped = TcpStream::connect((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port)).or_fail()?;
    let (_, peer) = listener.accept().or_fail()?;
    expect_eq!(peer, mapped.local_addr().or_fail()?);
    let six = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).or_fail()?;
    let (_, peer) = listener.accept().or_fail()?;
    expect_eq!(peer, six.local_addr().or_fail()?);
    Ok(())
}

fn only_v6() -> Outcome {
    let socket = raw_socket(libc::AF_INET6, libc::SOCK_STREAM)?;
    expect_eq!(get(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), Ok(0));
    expect_eq!(set(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1), Ok(()));
    expect_eq!(bind(&socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))), Ok(()));
    expect_eq!(set(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0), Err(Errno::EINVAL));
    let listener = TcpListener::from(socket);
    // SAFETY: the call takes no pointers.
    Errno::result(unsafe { libc::listen(listener.as_raw_fd(), 1) }).or_fail()?;
    let port = listener.local_addr().or_fail()?.port();
    let error = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).err().and_then(|error| error.raw_os_error());
    expect_eq!(error, Some(libc::ECONNREFUSED));
    // The port is free for the other family.
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).or_fail()?;
    TcpStream::connect((Ipv6Addr::LOCALHOST, port)).or_fail()?;
    Ok(())
}

fn names_of_both_ends() -> Outcome {
    let (client, server) = connection()?;
    expect_eq!(client.local_addr().or_fail()?, server.peer_addr().or_fail()?);
    expect_eq!(client.peer_addr().or_fail()?, server.local_addr().or_fail()?);
    let fresh = TcpStream::from(raw_socket(libc::AF_INET, libc::SOCK_STREAM)?);
    expect_eq!(fresh.local_addr().or_fail()?, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    let error = fresh.peer_addr().err().and_then(|error| error.raw_os_error());
    expect_eq!(error, Some(libc::ENOTCONN));
    Ok(())
}

fn ports_are_exclusive() -> Outcome {
    let any = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let here = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (_listener, address) = listener()?;
    let port = address.port();
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    expect_eq!(bind(&socket, here(port)), Err(Errno::EADDRINUSE));
    expect_eq!(bind(&socket, any(port)), Err(Errno::EADDRINUSE));
    expect_eq!(set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1), Ok(()));
    expect_eq!(bind(&socket, here(port)), Err(Errno::EADDRINUSE));
    let elsewhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 0));
    expect_eq!(bind(&socket, elsewhere), Err(Errno::EADDRNOTAVAIL));
    expect_eq!(bind(&socket, here(0)), Ok(()));
    expect_eq!(bind(&socket, here(0)), Err(Errno::EINVAL));
    Ok(())
}

fn a_port_waits_after_a_close() -> Outcome {
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    expect_eq!(bind(&socket, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))), Ok(()));
    let listener = TcpListener::from(socket);
    // SAFETY: the call takes no pointers.
    Errno::result(unsafe { libc::listen(listener.as_raw_fd(), 1) }).or_fail()?;
    let address = listener.local_addr().or_fail()?;
    let mut client = TcpStream::connect(address).or_fail()?;
    let (server, _) = listener.accept().or_fail()?;
    drop(server);
    expect_eq!(client.read(&mut [0]).or_fail()?, 0);
    drop((client, listener));
    std::thread::sleep(Duration::from_millis(20));
    let again = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    expect_eq!(bind(&again, address), Err(Errno::EADDRINUSE));
    expect_eq!(set(&again, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1), Ok(()));
    // The old listener did not allow it.
    expect_eq!(bind(&again, address), Err(Errno::EADDRINUSE));
    Ok(())
}

fn sharing_a_port_balances() -> Outcome {
    let mut port = 0;
    let mut listeners = Vec::new();
    for _ in 0..4 {
        let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
        expect_eq!(set(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1), Ok(()));
        expect_eq!(bind(&socket, SocketAddr::from((Ipv4Addr::LOCALHOST, port))), Ok(()));
        let listener = TcpListener::from(socket);
        // SAFETY: the call takes no pointers.
        Errno::result(unsafe { libc::listen(listener.as_raw_fd(), 128) }).or_fail()?;
        port = listener.local_addr().or_fail()?.port();
        listeners.push(listener);
    }
    let clients: Result<Vec<_>, _> =
        (0..100).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port))).collect();
    let clients = clients.or_fail()?;
    let counts: Vec<usize> =
        listeners.iter().map(|listener| std::iter::from_fn(|| listener.accept().ok()).count()).collect();
    expect_eq!(counts.iter().sum::<usize>(), clients.len());
    expect!(counts.iter().all(|&count| count > 5));
    Ok(())
}

fn a_listener_ends_its_queue() -> Outcome {
    let (listener, address) = listener()?;
    let client = TcpStream::connect(address).or_fail()?;
    drop(listener);
    expect_eq!(receive(&client, &mut [0; 8], 0), Err(Errno::ECONNRESET));
    Ok(())
}

fn a_listener_is_shut_down() -> Outcome {
    let (listener, address) = listener()?;
    let descriptor = listener.as_raw_fd();
    let waiting = std::thread::spawn(move || listener.accept().err().and_then(|error| error.raw_os_error()));
    std::thread::sleep(Duration::from_millis(50));
    // SAFETY: the call takes no pointers.
    Errno::result(unsafe { libc::shutdown(descriptor, libc::SHUT_RD) }).or_fail()?;
    expect_eq!(waiting.join().map_err(|_| "the thread panicked".to_owned())?, Some(libc::EINVAL));
    let error = TcpStream::connect(address).err().and_then(|error| error.raw_os_error());
    expect_eq!(error, Some(libc::ECONNREFUSED));
    Ok(())
}

fn large_streams_are_whole() -> Outcome {
    const BYTES: usize = 5_000_000;
    let (mut client, mut server) = connection()?;
    let pattern = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    let writing = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
        client.write_all(&bytes).is_ok()
    });
    let mut received = Vec::new();
    server.read_to_end(&mut received).or_fail()?;
    expect!(writing.join().map_err(|_| "the thread panicked".to_owned())?);
    expect_eq!(received.len(), BYTES);
    expect!(received.iter().enumerate().all(|(at, &byte)| byte == pattern(at)));
    Ok(())
}

fn a_thousand_connections() -> Outcome {
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
    // SAFETY: the limit lives through the call.
    Errno::result(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).or_fail()?;
    let (listener, address) = listener()?;
    let mut pairs = Vec::new();
    for _ in 0..1000 {
        let client = TcpStream::connect(address).or_fail()?;
        pairs.push((client, listener.accept().or_fail()?.0));
    }
    for (number, (client, _)) in pairs.iter_mut().enumerate() {
        client.write_all(&number.to_le_bytes()).or_fail()?;
    }
    for (number, (_, server)) in pairs.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        server.read_exact(&mut bytes).or_fail()?;
        expect_eq!(usize::from_le_bytes(bytes), number);
    }
    Ok(())
}

fn connections_one_after_the_other() -> Outcome {
    let (listener, address) = listener()?;
    for round in 0..3000_u32 {
        let mut client = TcpStream::connect(address).or_fail()?;
        let (mut server, _) = listener.accept().or_fail()?;
        client.write_all(&round.to_le_bytes()).or_fail()?;
        let mut bytes = [0; 4];
        server.read_exact(&mut bytes).or_fail()?;
        expect_eq!(u32::from_le_bytes(bytes), round);
    }
    Ok(())
}

fn errors_of_unconnected_sockets() -> Outcome {
    let socket = raw_socket(libc::AF_INET, libc::SOCK_STREAM)?;
    expect_eq!(ready(&socket, libc::POLLIN | libc::POLLOUT), libc::POLLOUT | libc::POLLHUP);
    expect_eq!(send(&socket, b"x", 0), Err(Errno::EPIPE));
    expect_eq!(receive(&socket, &mut [0], 0), Err(Errno::ENOTCONN));
    // SAFETY: the calls take no pointers.
    let (shut, accepted) = unsafe {
        let null = std::ptr::null_mut();
        (libc::shutdown(socket.as_raw_fd(), 2), libc::accept(socket.as_raw_fd(), null, std::ptr::null_mut()))
    };
    expect_eq!(shut, -1);
    expect_eq!(accepted, -1);
    expect_eq!(Errno::last(), Errno::EINVAL);
    Ok(())
}

fn bytes_are_counted() -> Outcome {
    let (client, server) = connection()?;
    let count = |socket: &TcpStream, request: libc::c_ulong| -> Result<i32, String> {
        let mut value = 0;
        // SAFETY: the value lives through the call.
        Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut value) }).or_fail()?;
        Ok(value)
    };
    expect_eq!(send(&client, &[1; 1234], 0), Ok(1234));
    expect!(ready(&server, libc::POLLIN) & libc::POLLIN != 0);
    expect_eq!(count(&server, libc::FIONREAD)?, 1234);
    expect_eq!(count(&client, libc::TIOCOUTQ)?, 0);
    Ok(())
}

fn files_are_sent() -> Outcome {
    let (client, mut server) = connection()?;
    let file = std::fs::File::open("/proc/self/exe").or_fail()?;
    let length = 300_000;
    let writing = std::thread::spawn(move || {
        let mut sent = 0;
        while sent < length {
            // SAFETY: the position is the file's own.
            let count = unsafe {
                libc::sendfile(client.as_raw_fd(), file.as_raw_fd(), std::ptr::null_mut(), length - sent)
            };
            if count <= 0 {
                return false;
            }
            sent += count as usize;
        }
        true
    });
    let mut received = Vec::new();
    server.read_to_end(&mut received).or_fail()?;
    expect!(writing.join().map_err(|_| "the thread panicked".to_owned())?);
    expect!(received == std::fs::read("/proc/self/exe").or_fail()?[..length]);
    Ok(())
}

fn closing_elsewhere_is_heard() -> Outcome {
    let (mut client, server) = connection()?;
    let child = spawn_child(move || {
        drop(server);
        0
    })?;
    expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
    // The child had a copy of the client's end, and took the server's with it: this process has closed its own.
    expect_eq!(client.read(&mut [0]).or_fail()?, 0);
    Ok(())
}

fn full_buffers_block() -> Outcome {
    let (client, server) = connection()?;
    client.set_nonblocking(true).or_fail()?;
    let mut sent = 0;
    let error = loop {
        match send(&client, &[7; 65_536], 0) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
        expect!(sent < 64 << 20);
    };
    expect_eq!(error, Errno::EAGAIN);
    expect_eq!(ready(&client, libc::POLLOUT) & libc::POLLOUT, 0);
    let mut received = 0;
    let mut buffer = vec![0; 65_536];
    while received < sent {
        received += receive(&server, &mut buffer, 0).or_fail()?;
    }
    expect_eq!(received, sent);
    expect_eq!(ready(&client, libc::POLLOUT) & libc::POLLOUT, libc::POLLOUT);
    Ok(())
}
