//! Options of sockets tell what was set, or are refused.
#![allow(unsafe_code, reason = "options are read and written as bytes")]

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use nix::errno::Errno;

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    switches_read_back
    buffers_are_doubled_and_bounded
    linger_reads_back
    priority_is_bounded
    read_only_options_cannot_be_set
    a_negative_time_limit_is_none_at_all
    a_small_buffer_holds_little
    an_error_is_not_lost_in_a_page_that_is_missing
    a_plain_write_tells_who_it_is
}

fn set(socket: RawFd, option: i32, words: &[i32]) -> Result<(), Errno> {
    let length = size_of_val(words) as libc::socklen_t;
    // SAFETY: the words live through the call.
    let result = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, words.as_ptr().cast(), length) };
    Errno::result(result).map(drop)
}

fn get<const COUNT: usize>(socket: RawFd, option: i32) -> Result<[i32; COUNT], Errno> {
    let mut words = [-1; COUNT];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the call writes at most as many bytes as there are.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, option, words.as_mut_ptr().cast(), &raw mut length)
    };
    Errno::result(result).map(|_| words)
}

fn switches_read_back() -> Outcome {
    let (socket, _peer) = UnixStream::pair().or_fail()?;
    let socket = socket.as_raw_fd();
    for option in [
        libc::SO_KEEPALIVE,
        libc::SO_REUSEADDR,
        libc::SO_BROADCAST,
        libc::SO_OOBINLINE,
        libc::SO_DONTROUTE,
        libc::SO_PASSCRED,
    ] {
        expect_eq!(get(socket, option), Ok([0]));
        set(socket, option, &[9]).or_fail()?;
        expect_eq!(get(socket, option), Ok([1]));
        set(socket, option, &[0]).or_fail()?;
        expect_eq!(get(socket, option), Ok([0]));
    }
    Ok(())
}

fn buffers_are_doubled_and_bounded() -> Outcome {
    let (socket, _peer) = UnixStream::pair().or_fail()?;
    let socket = socket.as_raw_fd();
    for (option, least, force) in
        [(libc::SO_SNDBUF, 4608, libc::SO_SNDBUFFORCE), (libc::SO_RCVBUF, 2304, libc::SO_RCVBUFFORCE)]
    {
        expect_eq!(get(socket, option), Ok([212_992]));
        set(socket, option, &[4096]).or_fail()?;
        expect_eq!(get(socket, option), Ok([8192]));
        set(socket, option, &[1]).or_fail()?;
        expect_eq!(get(socket, option), Ok([least]));
        // As an unsigned number -1 is large.
        for large in [1 << 30, -1] {
            set(socket, option, &[large]).or_fail()?;
            expect_eq!(get(socket, option), Ok([425_984]));
        }
        set(socket, force, &[1 << 20]).or_fail()?;
        expect_eq!(get(socket, option), Ok([2 << 20]));
        set(socket, force, &[-1]).or_fail()?;
        expect_eq!(get(socket, option), Ok([least]));
    }
    let ended = in_child(|| {
        let user = nix::unistd::Uid::from_raw(12_345);
        let is_user = nix::unistd::setuid(user).is_ok();
        i32::from(!(is_user && set(socket, libc::SO_SNDBUFFORCE, &[1 << 20]) == Err(Errno::EPERM)))
    })?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}

fn linger_reads_back() -> Outcome {
    let (socket, _peer) = UnixStream::pair().or_fail()?;
    let socket = socket.as_raw_fd();
    expect_eq!(get(socket, libc::SO_LINGER), Ok([0, 0]));
    expect_eq!(set(socket, libc::SO_LINGER, &[1]), Err(Errno::EINVAL));
    set(socket, libc::SO_LINGER, &[5, 7]).or_fail()?;
    expect_eq!(get(socket, libc::SO_LINGER), Ok([1, 7]));
    set(socket, libc::SO_LINGER, &[0, 9]).or_fail()?;
    expect_eq!(get(socket, libc::SO_LINGER), Ok([0, 7]));
    Ok(())
}

fn priority_is_bounded() -> Outcome {
    let (socket, _peer) = UnixStream::pair().or_fail()?;
    let socket = socket.as_raw_fd();
    set(socket, libc::SO_PRIORITY, &[6]).or_fail()?;
    expect_eq!(get(socket, libc::SO_PRIORITY), Ok([6]));
    let ended = in_child(|| {
        let is_user = nix::unistd::setuid(nix::unistd::Uid::from_raw(12_345)).is_ok();
        let is_refused = set(socket, libc::SO_PRIORITY, &[7]) == Err(Errno::EPERM);
        i32::from(!(is_user && is_refused && set(socket, libc::SO_PRIORITY, &[5]).is_ok()))
    })?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    expect_eq!(get(socket, libc::SO_PRIORITY), Ok([5]));
    Ok(())
}

fn read_only_options_cannot_be_set() -> Outcome {
    let (socket, _peer) = UnixStream::pair().or_fail()?;
    let socket = socket.as_raw_fd();
    for option in [libc::SO_TYPE, libc::SO_DOMAIN, libc::SO_PROTOCOL, libc::SO_ERROR, libc::SO_ACCEPTCONN] {
        expect_eq!(set(socket, option, &[1]), Err(Errno::ENOPROTOOPT));
        expect!(get::<1>(socket, option).is_ok());
    }
    expect_eq!(set(socket, libc::SO_SNDLOWAT, &[1]), Err(Errno::ENOPROTOOPT));
    expect_eq!(get(socket, libc::SO_SNDLOWAT), Ok([1]));
    expect_eq!(set(socket, libc::SO_KEEPALIVE, &[]), Err(Errno::EINVAL));
    Ok(())
}

fn a_negative_time_limit_is_none_at_all() -> Outcome {
    let (mut socket, _peer) = UnixStream::pair().or_fail()?;
    let limit = libc::timeval { tv_sec: -1, tv_usec: 0 };
    let length = size_of_val(&limit) as libc::socklen_t;
    // SAFETY: the structure lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const limit).cast(),
            length,
        )
    };
    expect_eq!(result, 0);
    expect_eq!(socket.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    Ok(())
}

fn a_small_buffer_holds_little() -> Outcome {
    let (left, right) = UnixDatagram::pair().or_fail()?;
    let message = vec![0; 100_000];
    expect_eq!(left.send(&message).or_fail()?, message.len());
    set(left.as_raw_fd(), libc::SO_SNDBUF, &[4096]).or_fail()?;
    let too_long = left.send(&message).map_err(|error| error.raw_os_error());
    expect_eq!(too_long, Err(Some(libc::EMSGSIZE)));
    expect_eq!(right.recv(&mut vec![0; 200_000]).or_fail()?, message.len());
    let (mut left, mut right) = UnixStream::pair().or_fail()?;
    set(left.as_raw_fd(), libc::SO_SNDBUF, &[8192]).or_fail()?;
    left.set_nonblocking(true).or_fail()?;
    let mut sent = 0;
    while let Ok(count) = left.write(&message) {
        sent += count;
    }
    expect!(sent > 0 && sent <= 65_536);
    let mut received = vec![0; sent];
    right.read_exact(&mut received).or_fail()?;
    expect!(left.write(&[0; 100]).is_ok());
    Ok(())
}

fn an_error_is_not_lost_in_a_page_that_is_missing() -> Outcome {
    const PAGE: usize = 4096;
    let (socket, mut peer) = UnixStream::pair().or_fail()?;
    (&socket).write_all(b"unread").or_fail()?;
    peer.set_nonblocking(true).or_fail()?;
    peer.read_exact(&mut [0; 2]).or_fail()?;
    // Bytes left unread when it ends are an error for the other side.
    drop(peer);
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let fresh = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, -1, 0) };
    expect!(fresh != libc::MAP_FAILED);
    let mut length: libc::socklen_t = 4;
    // SAFETY: four bytes of the new mapping, and a length that lives through the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, fresh, &raw mut length)
    };
    expect_eq!(result, 0);
    // SAFETY: the mapping is this function's own.
    expect_eq!(unsafe { fresh.cast::<i32>().read() }, libc::ECONNRESET);
    expect_eq!(get(socket.as_raw_fd(), libc::SO_ERROR), Ok([0]));
    Ok(())
}

fn a_plain_write_tells_who_it_is() -> Outcome {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt::PassCred};
    use std::io::IoSliceMut;
    // Which end has the option is the same, for the receiver must have it to be told.
    for sender_has_it in [false, true] {
        let (mut sender, receiver) = UnixStream::pair().or_fail()?;
        setsockopt(&receiver, PassCred, &true).or_fail()?;
        setsockopt(&sender, PassCred, &sender_has_it).or_fail()?;
        sender.write_all(b"word").or_fail()?;
        let (mut bytes, mut control) = ([0; 16], nix::cmsg_space!(libc::ucred));
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message = recvmsg::<()>(receiver.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty());
        let message = message.or_fail()?;
        let told = message.cmsgs().or_fail()?.next();
        let Some(ControlMessageOwned::ScmCredentials(who)) = told else { return Err("no sender".into()) };
        expect_eq!((who.pid(), who.uid()), (std::process::id() as i32, nix::unistd::getuid().as_raw()));
    }
    Ok(())
}
