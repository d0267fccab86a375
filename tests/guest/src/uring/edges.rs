//! `io_uring`: what liburing's own tests found.
#![allow(unsafe_code, reason = "raw system calls")]

use std::os::fd::{AsRawFd, RawFd};

use linux_raw_sys::io_uring as abi;
use linux_raw_sys::io_uring::io_uring_op as Op;
use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use nix::unistd::{pipe, read, write};

use crate::harness::{OrFail, Outcome, Scratch};
use crate::uring::error;
use crate::uring::ring::{Ring, Sqe};
use crate::{expect, expect_eq};

crate::tests! {
    an_event_counts_though_the_file_is_drained
    who_asks_for_events_lets_requests_go_on
    tags_come_behind_earlier_requests
    a_ring_is_sent_to_nobody
    growing_beyond_the_limit_is_no_signal
}

const IN: u32 = libc::POLLIN as u32;

fn an_event_counts_though_the_file_is_drained() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let poll =
        |data, len| Sqe { op_flags: IN, len, ..Sqe::new(Op::IORING_OP_POLL_ADD, reader.as_raw_fd(), data) };
    ring.submit(&[poll(1, abi::IORING_POLL_ADD_MULTI), poll(2, 0)])?;
    for round in 0..3 {
        expect_eq!(write(&writer, b"x"), Ok(1));
        expect_eq!(read(&reader, &mut [0; 8]), Ok(1));
        let mut completions = ring.await_completions(if round == 0 { 2 } else { 1 })?;
        completions.sort_unstable();
        expect_eq!(completions[0], (1, IN as i32, abi::IORING_CQE_F_MORE));
        expect!(round > 0 || completions[1] == (2, IN as i32, 0));
    }
    Ok(())
}

/// A request that has been woken posts its completion before a call that waits for none returns.
fn who_asks_for_events_lets_requests_go_on() -> Outcome {
    let (one, other) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).or_fail()?;
    let ring = Ring::new(8)?;
    let mut text = [0; 8];
    let receive = Sqe::new(Op::IORING_OP_RECV, one.as_raw_fd(), 1);
    ring.submit(&[receive.buffer(&mut text)])?;
    let is_alone = std::thread::available_parallelism().or_fail()?.get() == 1;
    expect_eq!(write(&other, b"abc"), Ok(3));
    loop {
        expect_eq!(ring.enter(0, 0), Ok(0));
        match ring.take() {
            Some(completion) => {
                expect_eq!(completion, (1, 3, 0));
                return Ok(());
            }
            // On several CPUs it may be going on just now.
            None => expect!(!is_alone),
        }
    }
}

fn tags_come_behind_earlier_requests() -> Outcome {
    let ((reader, writer), ring) = (pipe().or_fail()?, Ring::new(8)?);
    let (mut one, mut other) = ([0_u8; 64], [0_u8; 64]);
    let vectors = [[one.as_mut_ptr() as u64, 64], [other.as_mut_ptr() as u64, 64]];
    let tags = [77_u64, 78];
    let list = [2, 0, vectors.as_ptr() as u64, tags.as_ptr() as u64];
    expect_eq!(ring.register(15, list.as_ptr().cast(), 32), Ok(0));
    ring.submit(&[Sqe::new(Op::IORING_OP_READ_FIXED, reader.as_raw_fd(), 1).buffer(&mut one)])?;
    // Nothing uses the other buffer, but what was submitted before comes first.
    let (same, new_tag) = ([vectors[1]], [79_u64]);
    let update = [1, same.as_ptr() as u64, new_tag.as_ptr() as u64, 1];
    expect_eq!(ring.register(16, update.as_ptr().cast(), 32), Ok(1));
    expect_eq!(ring.enter(0, 0), Ok(0));
    expect_eq!(ring.take(), None);
    expect_eq!(write(&writer, b"abc"), Ok(3));
    expect_eq!(ring.enter(0, 2), Ok(0));
    expect_eq!([ring.take(), ring.take()], [Some((1, 3, 0)), Some((78, 0, 0))]);
    // From then on tags come at once.
    expect_eq!(ring.register(16, update.as_ptr().cast(), 32), Ok(1));
    expect_eq!(ring.await_completions(1)?, [(79, 0, 0)]);
    Ok(())
}

fn a_ring_is_sent_to_nobody() -> Outcome {
    let ring = Ring::new(1)?;
    let (one, _other) =
        socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::empty()).or_fail()?;
    let files = [ring.file.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&files)];
    let piece = [std::io::IoSlice::new(b"x")];
    let sent = sendmsg::<()>(one.as_raw_fd(), &piece, &rights, MsgFlags::empty(), None);
    expect_eq!(sent, Err(Errno::EINVAL));
    Ok(())
}

fn growing_beyond_the_limit_is_no_signal() -> Outcome {
    let directory = Scratch::new("uring")?;
    let file = std::fs::File::create(directory.path("file")).or_fail()?;
    setrlimit(Resource::RLIMIT_FSIZE, 65_536, 65_536).or_fail()?;
    let ring = Ring::new(1)?;
    let fd: RawFd = file.as_raw_fd();
    let allocate = Sqe { addr: 131_072, ..Sqe::new(Op::IORING_OP_FALLOCATE, fd, 1) };
    expect_eq!(ring.run(&[allocate])?, [(1, error(Errno::EFBIG), 0)]);
    Ok(())
}
