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
    a_timeout_ends_a_wait_for_more
    a_thread_registers_rings
    a_poll_tells_each_event_before_its_end
    a_removed_poll_ends_as_its_removal_says
    registered_rings_end_with_their_thread
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

/// A wait for several completions is over with the first timeout that ends by itself.
fn a_timeout_ends_a_wait_for_more() -> Outcome {
    let ring = Ring::new(8)?;
    let times = [[0_u64, 1_000_000], [1, 0]];
    let timeout = |data: usize| {
        let sqe = Sqe::new(Op::IORING_OP_TIMEOUT, -1, data as u64);
        Sqe { addr: times[data].as_ptr() as u64, len: 1, ..sqe }
    };
    // If the first was over before the wait, the other ends it.
    ring.submit(&[timeout(0), timeout(1)])?;
    expect_eq!(ring.enter(0, 4), Ok(0));
    expect_eq!(ring.take(), Some((0, error(Errno::ETIME), 0)));
    Ok(())
}

/// `struct io_uring_rsrc_update` of a ring's descriptor: the number, and the descriptor.
type RingUpdate = [u64; 2];

const REGISTER_RINGS: u32 = 20;
const UNREGISTER_RINGS: u32 = 21;
const ANY: u64 = u32::MAX as u64;

/// io_uring_enter(2) by the number of a registered ring.
fn enter_registered(number: u32, submit: u32) -> Result<i64, Errno> {
    let flags = abi::IORING_ENTER_REGISTERED_RING | abi::IORING_ENTER_GETEVENTS;
    // SAFETY: no address is passed.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_io_uring_enter, number, submit, submit, flags, 0_usize, 0)
    })
}

fn a_thread_registers_rings() -> Outcome {
    let ring = Ring::new(8)?;
    // The kernel may write to a list.
    let register = |operation, list: &[RingUpdate]| {
        let mut list = list.to_vec();
        ring.register(operation, list.as_mut_ptr().cast(), list.len() as u32)
    };
    expect_eq!(enter_registered(0, 0), Err(Errno::EBADF));
    let own = ring.file.as_raw_fd() as u64;
    let mut list: [RingUpdate; 3] = [[ANY, own], [7, own], [ANY, own]];
    expect_eq!(ring.register(REGISTER_RINGS, list.as_mut_ptr().cast(), 3), Ok(3));
    // The chosen numbers have been written.
    expect_eq!(list.map(|update| update[0]), [0, 7, 1]);
    for number in [0, 1, 7] {
        ring.push(Sqe::new(Op::IORING_OP_NOP, -1, number.into()));
        expect_eq!(enter_registered(number, 1), Ok(1));
        expect_eq!(ring.take(), Some((number.into(), 0, 0)));
    }
    expect_eq!(enter_registered(2, 0), Err(Errno::EBADF));
    expect_eq!(enter_registered(16, 0), Err(Errno::EINVAL));
    expect_eq!(register(REGISTER_RINGS, &[[7, own]]), Err(Errno::EBUSY));
    expect_eq!(register(REGISTER_RINGS, &[[16, own]]), Err(Errno::EINVAL));
    expect_eq!(register(REGISTER_RINGS, &[[ANY, 999]]), Err(Errno::EBADF));
    expect_eq!(register(REGISTER_RINGS, &[[ANY | 1 << 32, own]]), Err(Errno::EINVAL));
    expect_eq!(register(REGISTER_RINGS, &[]), Err(Errno::EINVAL));
    let (reader, _writer) = pipe().or_fail()?;
    expect_eq!(register(REGISTER_RINGS, &[[ANY, reader.as_raw_fd() as u64]]), Err(Errno::EOPNOTSUPP));
    // Other threads have numbers of their own. Linux says EINVAL to one that has never used a ring.
    let elsewhere = std::thread::spawn(|| enter_registered(0, 0)).join().map_err(|_| "a panic")?;
    expect!(matches!(elsewhere, Err(Errno::EINVAL | Errno::EBADF)));
    expect_eq!(register(UNREGISTER_RINGS, &[[7, own]]), Err(Errno::EINVAL));
    expect_eq!(register(UNREGISTER_RINGS, &[[7, 0], [3, 0]]), Ok(2));
    expect_eq!(enter_registered(7, 0), Err(Errno::EBADF));
    // A ring stays when its descriptor is closed.
    nix::unistd::close(own as RawFd).or_fail()?;
    ring.push(Sqe::new(Op::IORING_OP_NOP, -1, 5));
    expect_eq!(enter_registered(1, 1), Ok(1));
    expect_eq!(ring.take(), Some((5, 0, 0)));
    // The descriptor is another file's from here on, which the ring closes in its place.
    let other = std::fs::File::open("/dev/null").or_fail()?;
    expect_eq!(std::os::fd::IntoRawFd::into_raw_fd(other), own as RawFd);
    Ok(())
}

/// Events of a poll of many shots that a program asks for are completions of their own, and the last one comes before
/// the end that is asked for after it.
fn a_poll_tells_each_event_before_its_end() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let multishot = abi::IORING_POLL_ADD_MULTI;
    let poll =
        Sqe { op_flags: IN, len: multishot, ..Sqe::new(Op::IORING_OP_POLL_ADD, reader.as_raw_fd(), 1) };
    ring.submit(&[poll])?;
    for round in 0..3 {
        expect_eq!(write(&writer, b"x"), Ok(1));
        expect_eq!(read(&reader, &mut [0; 8]), Ok(1));
        if round < 2 {
            expect_eq!(ring.enter(0, 0), Ok(0));
        }
    }
    ring.submit(&[Sqe { addr: 1, ..Sqe::new(Op::IORING_OP_POLL_REMOVE, -1, 2) }])?;
    let (event, end) = ((1, IN as i32, abi::IORING_CQE_F_MORE), (1, error(Errno::ECANCELED), 0));
    let (mut events, mut is_over, mut is_removed) = (0, false, false);
    while !(is_over && is_removed) {
        for completion in ring.await_completions(1)? {
            expect!(!is_over || completion.0 == 2);
            events += usize::from(completion == event);
            is_over |= completion == end;
            is_removed |= completion == (2, 0, 0);
        }
    }
    // On several CPUs the request may look late, and sees several events as one.
    let is_alone = std::thread::available_parallelism().or_fail()?.get() == 1;
    expect!(events == 3 || !is_alone && events > 0);
    Ok(())
}

/// A poll of one shot that has had its event ends with that, or its removal says that it has been cancelled and it has.
fn a_removed_poll_ends_as_its_removal_says() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    ring.submit(&[Sqe { op_flags: IN, ..Sqe::new(Op::IORING_OP_POLL_ADD, reader.as_raw_fd(), 1) }])?;
    expect_eq!(write(&writer, b"x"), Ok(1));
    ring.submit(&[Sqe { addr: 1, ..Sqe::new(Op::IORING_OP_POLL_REMOVE, -1, 2) }])?;
    let completions = ring.await_completions(2)?;
    let is_removed = completions[1] == (2, 0, 0);
    let result = if is_removed { error(Errno::ECANCELED) } else { IN as i32 };
    expect_eq!(completions[0], (1, result, 0));
    Ok(())
}

/// A ring without a descriptor is the thread's that has registered it, and its files are closed when that ends.
fn registered_rings_end_with_their_thread() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let hold = move || {
        let ring = Ring::new(8)?;
        expect_eq!(ring.register(2, (&raw const writer).cast(), 1), Ok(0));
        let mut list: [RingUpdate; 1] = [[ANY, ring.file.as_raw_fd() as u64]];
        expect_eq!(ring.register(REGISTER_RINGS, list.as_mut_ptr().cast(), 1), Ok(1));
        drop((ring, writer));
        expect_eq!(enter_registered(0, 0), Ok(0));
        Ok(())
    };
    std::thread::spawn(hold).join().map_err(|_| "a panic")??;
    expect_eq!(read(&reader, &mut [0; 8]), Ok(0));
    Ok(())
}
