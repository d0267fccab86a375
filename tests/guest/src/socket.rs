//! AF_UNIX sockets.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Uid, setresuid};

use crate::harness::{OrFail, Outcome, Scratch, in_child, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    pair_is_two_way
    stream_connects_by_path
    connection_errors
    datagrams_keep_boundaries
    shutdown_ends_one_direction
    descriptors_travel
    peer_credentials
    abstract_names
    nonblocking_accept
    large_stream
    circles_in_flight_are_collected
    circles_that_can_be_received_stay
    descriptors_in_flight_are_limited
    connections_stay_without_a_descriptor
}

fn pair_is_two_way() -> Outcome {
    let (mut left, mut right) = UnixStream::pair().or_fail()?;
    left.write_all(b"ping").or_fail()?;
    right.write_all(b"pong").or_fail()?;
    let mut buffer = [0; 4];
    right.read_exact(&mut buffer).or_fail()?;
    expect_eq!(&buffer, b"ping");
    left.read_exact(&mut buffer).or_fail()?;
    expect_eq!(&buffer, b"pong");
    drop(left);
    expect_eq!(right.read(&mut buffer).or_fail()?, 0);
    expect_eq!(right.write(b"x").err().map(|error| error.kind()), Some(std::io::ErrorKind::BrokenPipe));
    Ok(())
}

fn stream_connects_by_path() -> Outcome {
    let scratch = Scratch::new("stream")?;
    let path = scratch.path("socket");
    let listener = UnixListener::bind(&path).or_fail()?;
    let child = spawn_child(|| {
        let exchange = || -> std::io::Result<bool> {
            let mut stream = UnixStream::connect(&path)?;
            stream.write_all(b"request")?;
            stream.shutdown(Shutdown::Write)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer == "REQUEST")
        };
        i32::from(!exchange().unwrap_or(false))
    })?;
    let (mut stream, _) = listener.accept().or_fail()?;
    let mut request = String::new();
    stream.read_to_string(&mut request).or_fail()?;
    stream.write_all(request.to_uppercase().as_bytes()).or_fail()?;
    drop(stream);
    expect_eq!(waitpid(child, None).or_fail()?, nix::sys::wait::WaitStatus::Exited(child, 0));
    Ok(())
}

fn connection_errors() -> Outcome {
    let scratch = Scratch::new("connection")?;
    let path = scratch.path("socket");
    let code = |result: std::io::Result<UnixStream>| result.err().and_then(|error| error.raw_os_error());
    expect_eq!(code(UnixStream::connect(&path)), Some(libc::ENOENT));
    let listener = UnixListener::bind(&path).or_fail()?;
    let again = UnixListener::bind(&path).err().and_then(|error| error.raw_os_error());
    expect_eq!(again, Some(libc::EADDRINUSE));
    drop(listener);
    expect_eq!(code(UnixStream::connect(&path)), Some(libc::ECONNREFUSED));
    Ok(())
}

fn datagrams_keep_boundaries() -> Outcome {
    let scratch = Scratch::new("datagram")?;
    let receiver = UnixDatagram::bind(scratch.path("receiver")).or_fail()?;
    let sender = UnixDatagram::bind(scratch.path("sender")).or_fail()?;
    sender.send_to(b"one", scratch.path("receiver")).or_fail()?;
    sender.send_to(b"second", scratch.path("receiver")).or_fail()?;
    let mut buffer = [0; 4];
    let (count, from) = receiver.recv_from(&mut buffer).or_fail()?;
    let expected = scratch.path("sender");
    expect_eq!((count, from.as_pathname()), (3, Some(expected.as_path())));
    expect_eq!(receiver.recv(&mut buffer).or_fail()?, 4);
    expect_eq!(&buffer, b"seco");
    Ok(())
}

fn shutdown_ends_one_direction() -> Outcome {
    let (mut left, mut right) = UnixStream::pair().or_fail()?;
    left.shutdown(Shutdown::Write).or_fail()?;
    let mut buffer = [0; 4];
    expect_eq!(right.read(&mut buffer).or_fail()?, 0);
    right.write_all(b"back").or_fail()?;
    left.read_exact(&mut buffer).or_fail()?;
    expect_eq!(&buffer, b"back");
    Ok(())
}

#[allow(unsafe_code, reason = "received descriptors are plain numbers")]
fn descriptors_travel() -> Outcome {
    let (left, right) = UnixStream::pair().or_fail()?;
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let numbers = [writer.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&numbers)];
    let data = [IoSlice::new(b"x")];
    sendmsg::<UnixAddr>(left.as_raw_fd(), &data, &message, MsgFlags::empty(), None).or_fail()?;
    drop(writer);
    let mut space = nix::cmsg_space!([i32; 2]);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<UnixAddr>(right.as_raw_fd(), &mut data, Some(&mut space), flags).or_fail()?;
    let mut passed = None;
    for message in received.cmsgs().or_fail()? {
        if let ControlMessageOwned::ScmRights(numbers) = message {
            passed = numbers.first().copied();
        }
    }
    let number = passed.ok_or("no descriptor arrived")?;
    // SAFETY: the kernel has just given this number to this process.
    let writer = unsafe { OwnedFd::from_raw_fd(number) };
    nix::unistd::write(&writer, b"through").or_fail()?;
    drop(writer);
    let mut text = String::new();
    std::fs::File::from(reader).read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "through");
    Ok(())
}

fn peer_credentials() -> Outcome {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    let (left, _right) = UnixStream::pair().or_fail()?;
    let credentials = getsockopt(&left, PeerCredentials).or_fail()?;
    expect_eq!(credentials.pid(), std::process::id() as i32);
    expect_eq!(credentials.uid(), nix::unistd::getuid().as_raw());
    Ok(())
}

fn abstract_names() -> Outcome {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("heddle-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).or_fail()?;
    let listener = UnixListener::bind_addr(&address).or_fail()?;
    let mut stream = UnixStream::connect_addr(&address).or_fail()?;
    let (mut accepted, _) = listener.accept().or_fail()?;
    stream.write_all(b"x").or_fail()?;
    let mut byte = [0];
    accepted.read_exact(&mut byte).or_fail()?;
    drop(listener);
    expect!(UnixStream::connect_addr(&address).is_err());
    Ok(())
}

fn nonblocking_accept() -> Outcome {
    let scratch = Scratch::new("accept")?;
    let listener = UnixListener::bind(scratch.path("socket")).or_fail()?;
    listener.set_nonblocking(true).or_fail()?;
    let code = listener.accept().err().and_then(|error| error.raw_os_error());
    expect_eq!(code, Some(Errno::EAGAIN as i32));
    let (left, _right) = UnixStream::pair().or_fail()?;
    left.set_nonblocking(true).or_fail()?;
    let code = (&left).read(&mut [0]).err().and_then(|error| error.raw_os_error());
    expect_eq!(code, Some(Errno::EAGAIN as i32));
    Ok(())
}

fn large_stream() -> Outcome {
    let (left, mut right) = UnixStream::pair().or_fail()?;
    let child = spawn_child(|| {
        let data: Vec<u8> = (0..2_000_000u32).map(|index| (index % 249) as u8).collect();
        i32::from((&left).write_all(&data).is_err())
    })?;
    drop(left);
    let mut data = Vec::new();
    right.read_to_end(&mut data).or_fail()?;
    waitpid(child, None).or_fail()?;
    expect_eq!(data.len(), 2_000_000);
    expect!(data.iter().enumerate().all(|(index, &byte)| byte == (index % 249) as u8));
    Ok(())
}

/// Sends descriptors over a socket.
fn pass(over: &impl AsRawFd, files: &[&dyn AsRawFd]) -> Result<(), String> {
    let numbers: Vec<i32> = files.iter().map(|file| file.as_raw_fd()).collect();
    let message = [ControlMessage::ScmRights(&numbers)];
    sendmsg::<UnixAddr>(over.as_raw_fd(), &[IoSlice::new(b"x")], &message, MsgFlags::empty(), None)
        .or_fail()
        .map(drop)
}

/// Receives one descriptor.
#[allow(unsafe_code, reason = "received descriptors are plain numbers")]
fn receive(from: &impl AsRawFd) -> Result<OwnedFd, String> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut control = nix::cmsg_space!([i32; 2]);
    let received =
        recvmsg::<UnixAddr>(from.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT)
            .or_fail()?;
    for message in received.cmsgs().or_fail()? {
        if let ControlMessageOwned::ScmRights(numbers) = message
            && let Some(&number) = numbers.first()
        {
            // SAFETY: the kernel has just made it for this process, and nobody else owns it.
            return Ok(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
    Err(String::from("no descriptor came"))
}

/// Linux looks for circles when a socket ends.
fn end_a_socket() -> Outcome {
    UnixStream::pair().or_fail().map(drop)
}

fn circles_in_flight_are_collected() -> Outcome {
    let scratch = Scratch::new("circle")?;
    let path = scratch.path("socket");
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    {
        // One in itself, two in each other, and one in a connection to itself that nobody accepts.
        let (left, right) = UnixStream::pair().or_fail()?;
        pass(&left, &[&right, &writer])?;
        let (first, second) = UnixDatagram::pair().or_fail()?;
        pass(&first, &[&first, &writer])?;
        pass(&second, &[&second, &writer])?;
        let listener = UnixListener::bind(&path).or_fail()?;
        let client = UnixStream::connect(&path).or_fail()?;
        pass(&client, &[&listener, &writer])?;
    }
    drop(writer);
    for _ in 0..500 {
        end_a_socket()?;
        let mut poll = [nix::poll::PollFd::new(reader.as_fd(), nix::poll::PollFlags::POLLIN)];
        if nix::poll::poll(&mut poll, 20_u8).or_fail()? > 0 {
            expect_eq!(nix::unistd::read(&reader, &mut [0]).or_fail()?, 0);
            return Ok(());
        }
    }
    Err(String::from("something still has the pipe's other end"))
}

fn circles_that_can_be_received_stay() -> Outcome {
    let (keeper, other) = UnixDatagram::pair().or_fail()?;
    let (left, right) = UnixDatagram::pair().or_fail()?;
    pass(&left, &[&right])?;
    pass(&left, &[&left])?;
    // Now both are in the inbox of `right`, which is in that of `other`.
    pass(&keeper, &[&right])?;
    drop((left, right));
    for _ in 0..20 {
        end_a_socket()?;
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let right = receive(&other)?;
    let own = receive(&right)?;
    let left = receive(&own)?;
    nix::unistd::write(&left, b"still there").or_fail()?;
    let mut text = [0; 20];
    let length = nix::unistd::read(&right, &mut text).or_fail()?;
    expect_eq!(&text[..length], b"still there");
    Ok(())
}

fn limit_descriptors(count: u64) -> Outcome {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).or_fail()?;
    setrlimit(Resource::RLIMIT_NOFILE, count, most).or_fail()
}

/// A user may have one more in flight than a process of his may have open, as the check comes before the message.
fn descriptors_in_flight_are_limited() -> Outcome {
    const LIMIT: u64 = 40;
    let (left, right) = UnixStream::pair().or_fail()?;
    let status = in_child(|| {
        let send_all = || -> Outcome {
            limit_descriptors(LIMIT)?;
            for _ in 0..60 {
                // One with the right to does not stop there.
                pass(&left, &[&right])?;
            }
            for _ in 0..60 {
                receive(&right)?;
            }
            let user = Uid::from_raw(12_345);
            setresuid(user, user, user).or_fail()?;
            let sent = (0..100).take_while(|_| pass(&left, &[&right]).is_ok()).count();
            expect_eq!(sent as u64, LIMIT + 1);
            let numbers = [right.as_raw_fd()];
            let message = [ControlMessage::ScmRights(&numbers)];
            let part = [IoSlice::new(b"x")];
            let refused = sendmsg::<UnixAddr>(left.as_raw_fd(), &part, &message, MsgFlags::empty(), None);
            expect_eq!(refused, Err(Errno::ETOOMANYREFS));
            receive(&right)?;
            pass(&left, &[&right])
        };
        match send_all() {
            Ok(()) => 0,
            Err(reason) => {
                eprintln!("{reason}");
                1
            }
        }
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn connections_stay_without_a_descriptor() -> Outcome {
    let scratch = Scratch::new("accept-later")?;
    let listener = UnixListener::bind(scratch.path("socket")).or_fail()?;
    let mut client = UnixStream::connect(scratch.path("socket")).or_fail()?;
    client.write_all(b"first").or_fail()?;
    let before = getrlimit(Resource::RLIMIT_NOFILE).or_fail()?.0;
    // As many as are open.
    let next = listener.try_clone().or_fail()?;
    limit_descriptors(next.as_raw_fd() as u64 + 1)?;
    for _ in 0..3 {
        let code = listener.accept().err().and_then(|error| error.raw_os_error());
        expect_eq!(code, Some(Errno::EMFILE as i32));
    }
    limit_descriptors(before)?;
    let (mut accepted, _) = listener.accept().or_fail()?;
    let mut bytes = [0; 5];
    accepted.read_exact(&mut bytes).or_fail()?;
    expect_eq!(&bytes, b"first");
    Ok(())
}
