//! `io_uring`, by its system calls.
#![allow(unsafe_code, reason = "raw system calls, and memory that the kernel writes")]

mod edges;
mod features;
mod operations;
pub mod ring;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use linux_raw_sys::io_uring as abi;
use linux_raw_sys::io_uring::io_uring_op as Op;
use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::time::TimeValLike;
use nix::unistd::{pipe, read, write};

use crate::harness::{OrFail, Outcome, Scratch};
use crate::uring::ring::{Ring, Sqe, setup};
use crate::{expect, expect_eq};

pub use edges::TESTS as EDGE_TESTS;
pub use features::TESTS as FEATURE_TESTS;
pub use operations::TESTS as OPERATION_TESTS;

crate::tests! {
    setup_tells_sizes_and_refuses
    nothing_completes_in_order
    files_are_written_and_read
    a_read_waits_for_its_pipe
    a_failure_breaks_a_link
    a_drain_waits_for_all_before
    the_process_pays_for_its_requests
    timeouts_end_by_time_and_by_count
    a_linked_timeout_cancels
    requests_are_cancelled_by_data
    polls_tell_events
    connections_are_accepted_by_one_request
    messages_go_through_sockets
    completions_without_room_are_kept
    registered_files_and_buffers
    an_eventfd_counts_completions
    unknown_entries_end_the_batch
    waiting_ends_in_time
    the_end_of_a_process_ends_its_requests
    names_are_opened_and_closed
}

const LINK: u8 = 1 << 2;
const HARDLINK: u8 = 1 << 3;
const FIXED_FILE: u8 = 1;
const DRAIN: u8 = 1 << 1;

fn error(errno: Errno) -> i32 {
    -(errno as i32)
}

fn setup_tells_sizes_and_refuses() -> Outcome {
    let ring = Ring::new(5)?;
    expect_eq!((ring.parameters[0], ring.parameters[1]), (8, 16));
    let mut parameters = [0; 30];
    expect_eq!(setup(0, &mut parameters).err(), Some(Errno::EINVAL));
    expect_eq!(setup(1 << 16, &mut parameters).err(), Some(Errno::EINVAL));
    parameters[2] = 1 << 31;
    expect_eq!(setup(8, &mut parameters).err(), Some(Errno::EINVAL));
    let (reader, _writer) = pipe().or_fail()?;
    // SAFETY: nothing is passed.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_enter, reader.as_raw_fd(), 0, 0, 0, 0, 0) };
    expect_eq!(Errno::result(result), Err(Errno::EOPNOTSUPP));
    expect_eq!(ring.enter_with(0, 0, 1 << 30, std::ptr::null(), 0), Err(Errno::EINVAL));
    Ok(())
}

fn nothing_completes_in_order() -> Outcome {
    let ring = Ring::new(64)?;
    for round in 0..10 {
        for index in 0..64 {
            ring.push(Sqe::new(Op::IORING_OP_NOP, -1, round * 64 + index));
        }
        expect_eq!(ring.enter(64, 64), Ok(64));
        for index in 0..64 {
            expect_eq!(ring.take(), Some((round * 64 + index, 0, 0)));
        }
    }
    expect_eq!(ring.take(), None);
    Ok(())
}

fn files_are_written_and_read() -> Outcome {
    let scratch = Scratch::new("uring")?;
    let file = File::options().read(true).write(true).create(true).truncate(true).open(scratch.path("x"));
    let file = file.or_fail()?;
    let ring = Ring::new(8)?;
    let mut text = *b"hello world";
    let written = Sqe { off: 3, ..Sqe::new(Op::IORING_OP_WRITE, file.as_raw_fd(), 1) }.buffer(&mut text);
    expect_eq!(ring.run(&[written])?, [(1, 11, 0)]);
    let mut back = [0; 20];
    let whole = Sqe::new(Op::IORING_OP_READ, file.as_raw_fd(), 2).buffer(&mut back);
    expect_eq!(ring.run(&[whole])?, [(2, 14, 0)]);
    expect_eq!(&back[..14], b"\0\0\0hello world");
    let (mut first, mut second) = ([0; 4], [0; 4]);
    let vectors = [
        libc::iovec { iov_base: first.as_mut_ptr().cast(), iov_len: 4 },
        libc::iovec { iov_base: second.as_mut_ptr().cast(), iov_len: 4 },
    ];
    let vector = Sqe { off: 3, addr: vectors.as_ptr() as u64, len: 2, ..Sqe::default() };
    let vector = Sqe { fd: file.as_raw_fd(), data: 3, operation: Op::IORING_OP_READV as u8, ..vector };
    expect_eq!(ring.run(&[vector])?, [(3, 8, 0)]);
    expect_eq!((&first, &second), (b"hell", b"o wo"));
    expect_eq!(ring.run(&[Sqe::new(Op::IORING_OP_FSYNC, file.as_raw_fd(), 4)])?, [(4, 0, 0)]);
    // At the file's own position.
    let current = Sqe { off: u64::MAX, ..Sqe::new(Op::IORING_OP_READ, file.as_raw_fd(), 5) };
    expect_eq!(ring.run(&[current.buffer(&mut back[..3])])?, [(5, 3, 0)]);
    expect_eq!(ring.run(&[Sqe { data: 6, ..current }.buffer(&mut back)])?, [(6, 11, 0)]);
    let bad = Sqe::new(Op::IORING_OP_READ, 999, 7).buffer(&mut back);
    expect_eq!(ring.run(&[bad])?, [(7, error(Errno::EBADF), 0)]);
    let fault = Sqe { addr: 8, len: 4, ..Sqe::new(Op::IORING_OP_READ, file.as_raw_fd(), 8) };
    expect_eq!(ring.run(&[fault])?, [(8, error(Errno::EFAULT), 0)]);
    Ok(())
}

fn a_read_waits_for_its_pipe() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let mut buffer = [0; 8];
    ring.submit(&[Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 1).buffer(&mut buffer)])?;
    expect_eq!(ring.take(), None);
    write(&writer, b"late").or_fail()?;
    expect_eq!(ring.await_completions(1)?, [(1, 4, 0)]);
    expect_eq!(&buffer[..4], b"late");
    // A file that does not let wait lets a request wait.
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(&reader, flags).or_fail()?;
    ring.submit(&[Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 2).buffer(&mut buffer)])?;
    expect_eq!(ring.take(), None);
    write(&writer, b"again").or_fail()?;
    expect_eq!(ring.await_completions(1)?, [(2, 5, 0)]);
    Ok(())
}

fn a_failure_breaks_a_link() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let (mut text, mut buffer) = (*b"abc", [0; 3]);
    // Each starts when the one before has ended.
    let chain = [
        Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 1).buffer(&mut buffer).flags(LINK),
        Sqe::new(Op::IORING_OP_WRITE, writer.as_raw_fd(), 2).buffer(&mut text).flags(LINK),
        Sqe::new(Op::IORING_OP_NOP, -1, 3),
    ];
    ring.submit(&chain)?;
    expect_eq!(ring.take(), None);
    write(&writer, b"xyz").or_fail()?;
    expect_eq!(ring.await_completions(3)?, [(1, 3, 0), (2, 3, 0), (3, 0, 0)]);
    expect_eq!((read(&reader, &mut buffer), &buffer), (Ok(3), b"abc"));
    let canceled = error(Errno::ECANCELED);
    let bad = Sqe::new(Op::IORING_OP_READ, 999, 1).buffer(&mut buffer);
    let rest = [Sqe::new(Op::IORING_OP_NOP, -1, 2).flags(LINK), Sqe::new(Op::IORING_OP_NOP, -1, 3)];
    let broken = ring.run(&[bad.flags(LINK), rest[0], rest[1]])?;
    expect_eq!(broken, [(1, error(Errno::EBADF), 0), (2, canceled, 0), (3, canceled, 0)]);
    let kept = ring.run(&[bad.flags(HARDLINK), rest[0], rest[1]])?;
    expect_eq!(kept, [(1, error(Errno::EBADF), 0), (2, 0, 0), (3, 0, 0)]);
    Ok(())
}

/// Processor time of this process, in microseconds.
fn used_us() -> Result<i64, String> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).or_fail()?;
    Ok((usage.user_time() + usage.system_time()).num_microseconds())
}

/// Work that goes on after the call that asked for it counts as the process's, as the same work in a call does.
fn the_process_pays_for_its_requests() -> Outcome {
    const ROUNDS: usize = 8;
    let random = std::fs::File::open("/dev/urandom").or_fail()?;
    let mut memory = vec![0; 1 << 20];
    let before = used_us()?;
    for _ in 0..ROUNDS {
        let length = read(&random, &mut memory);
        expect_eq!(length, Ok(memory.len()));
    }
    let in_calls = used_us()? - before;
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(2 * ROUNDS as u32)?;
    let mut buffer = [0; 1];
    let mut chain = vec![Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 1).buffer(&mut buffer)];
    for _ in 0..ROUNDS {
        chain.push(Sqe::new(Op::IORING_OP_READ, random.as_raw_fd(), 2).buffer(&mut memory));
    }
    let last = chain.len() - 1;
    for entry in &mut chain[..last] {
        *entry = entry.flags(LINK);
    }
    ring.submit(&chain)?;
    let before = used_us()?;
    write(&writer, b"x").or_fail()?;
    let done = ring.await_completions(chain.len())?;
    expect!(done[1..].iter().all(|&(_, length, _)| length == memory.len() as i32));
    let by_itself = used_us()? - before;
    expect!(by_itself > in_calls / 4);
    Ok(())
}

fn a_drain_waits_for_all_before() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let mut buffer = [0; 3];
    let read = Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 1).buffer(&mut buffer);
    let nop = |data| Sqe::new(Op::IORING_OP_NOP, -1, data);
    ring.submit(&[read, nop(2), nop(3).flags(DRAIN), nop(4)])?;
    expect_eq!(ring.take(), Some((2, 0, 0)));
    expect_eq!(ring.take(), None);
    write(&writer, b"abc").or_fail()?;
    let mut order = Vec::new();
    while order.len() < 3 {
        match ring.take() {
            Some((data, ..)) => order.push(data),
            None => expect_eq!(ring.enter(0, 1), Ok(0)),
        }
    }
    // A request behind one that drains starts with it at the earliest.
    expect_eq!(order.remove(0), 1);
    order.sort_unstable();
    expect_eq!(order, [3, 4]);
    Ok(())
}

fn timeout(time: &[i64; 2], count: u64, data: u64) -> Sqe {
    Sqe { off: count, addr: time.as_ptr() as u64, len: 1, ..Sqe::new(Op::IORING_OP_TIMEOUT, -1, data) }
}

fn timeouts_end_by_time_and_by_count() -> Outcome {
    let ring = Ring::new(8)?;
    let (short, long) = ([0, 1_000_000], [1000, 0]);
    expect_eq!(ring.run(&[timeout(&short, 0, 1)])?, [(1, error(Errno::ETIME), 0)]);
    ring.submit(&[timeout(&long, 1, 2)])?;
    expect_eq!(ring.take(), None);
    ring.submit(&[Sqe::new(Op::IORING_OP_NOP, -1, 3)])?;
    expect_eq!(ring.await_completions(2)?, [(2, 0, 0), (3, 0, 0)]);
    ring.submit(&[timeout(&long, 0, 4)])?;
    let remove = |of, data| Sqe { addr: of, ..Sqe::new(Op::IORING_OP_TIMEOUT_REMOVE, -1, data) };
    expect_eq!(ring.run(&[remove(99, 6)])?, [(6, error(Errno::ENOENT), 0)]);
    ring.submit(&[remove(4, 5)])?;
    expect_eq!(ring.await_completions(2)?, [(4, error(Errno::ECANCELED), 0), (5, 0, 0)]);
    // Another time for one that waits.
    ring.submit(&[timeout(&long, 0, 7)])?;
    let update = abi::IORING_TIMEOUT_UPDATE;
    ring.submit(&[Sqe { op_flags: update, off: short.as_ptr() as u64, ..remove(7, 8) }])?;
    expect_eq!(ring.await_completions(2)?, [(7, error(Errno::ETIME), 0), (8, 0, 0)]);
    let bad = [-1, 0];
    expect_eq!(ring.run(&[timeout(&bad, 0, 9)])?, [(9, error(Errno::EINVAL), 0)]);
    Ok(())
}

fn a_linked_timeout_cancels() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let mut buffer = [0; 3];
    let (short, long) = ([0, 1_000_000], [1000, 0]);
    let read = Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 1).buffer(&mut buffer).flags(LINK);
    let limit = |time: &[i64; 2]| Sqe {
        addr: time.as_ptr() as u64,
        len: 1,
        ..Sqe::new(Op::IORING_OP_LINK_TIMEOUT, -1, 2)
    };
    let canceled = error(Errno::ECANCELED);
    let result = ring.run(&[read, limit(&short)])?;
    expect!(result[0] == (1, canceled, 0) || result[0] == (1, error(Errno::EINTR), 0));
    expect_eq!(result[1], (2, error(Errno::ETIME), 0));
    ring.submit(&[read, limit(&long)])?;
    write(&writer, b"abc").or_fail()?;
    expect_eq!(ring.await_completions(2)?, [(1, 3, 0), (2, canceled, 0)]);
    expect_eq!(ring.run(&[limit(&short)])?, [(2, error(Errno::EINVAL), 0)]);
    Ok(())
}

fn requests_are_cancelled_by_data() -> Outcome {
    let (reader, _writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let poll = |data| Sqe {
        op_flags: libc::POLLIN as u32,
        ..Sqe::new(Op::IORING_OP_POLL_ADD, reader.as_raw_fd(), data)
    };
    let cancel = |of, data| Sqe { addr: of, ..Sqe::new(Op::IORING_OP_ASYNC_CANCEL, -1, data) };
    let canceled = error(Errno::ECANCELED);
    ring.submit(&[poll(1), poll(2), poll(2)])?;
    expect_eq!(ring.run(&[cancel(9, 10)])?, [(10, error(Errno::ENOENT), 0)]);
    ring.submit(&[cancel(1, 11)])?;
    expect_eq!(ring.await_completions(2)?, [(1, canceled, 0), (11, 0, 0)]);
    ring.submit(&[Sqe { op_flags: abi::IORING_ASYNC_CANCEL_ALL, ..cancel(2, 12) }])?;
    expect_eq!(ring.await_completions(3)?, [(2, canceled, 0), (2, canceled, 0), (12, 2, 0)]);
    ring.submit(&[poll(3)])?;
    let by_file = Sqe { fd: reader.as_raw_fd(), op_flags: abi::IORING_ASYNC_CANCEL_FD, ..cancel(0, 13) };
    ring.submit(&[by_file])?;
    expect_eq!(ring.await_completions(2)?, [(3, canceled, 0), (13, 0, 0)]);
    let bad = Sqe { op_flags: 1 << 20, ..cancel(0, 14) };
    expect_eq!(ring.run(&[bad])?, [(14, error(Errno::EINVAL), 0)]);
    Ok(())
}

fn polls_tell_events() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let of = |fd: &OwnedFd, events: i16, data| Sqe {
        op_flags: events as u32,
        ..Sqe::new(Op::IORING_OP_POLL_ADD, fd.as_raw_fd(), data)
    };
    let ready = i32::from(libc::POLLOUT);
    expect_eq!(ring.run(&[of(&writer, libc::POLLOUT, 1)])?, [(1, ready, 0)]);
    ring.submit(&[of(&reader, libc::POLLIN, 2)])?;
    expect_eq!(ring.take(), None);
    write(&writer, b"x").or_fail()?;
    expect_eq!(ring.await_completions(1)?, [(2, i32::from(libc::POLLIN), 0)]);
    read(&reader, &mut [0; 8]).or_fail()?;
    let many = Sqe { len: abi::IORING_POLL_ADD_MULTI, ..of(&reader, libc::POLLIN, 3) };
    ring.submit(&[many])?;
    for _ in 0..3 {
        expect_eq!(ring.take(), None);
        write(&writer, b"x").or_fail()?;
        expect_eq!(ring.await_completions(1)?, [(3, i32::from(libc::POLLIN), abi::IORING_CQE_F_MORE)]);
        read(&reader, &mut [0; 8]).or_fail()?;
    }
    ring.submit(&[Sqe { addr: 3, ..Sqe::new(Op::IORING_OP_POLL_REMOVE, -1, 4) }])?;
    expect_eq!(ring.await_completions(2)?, [(3, error(Errno::ECANCELED), 0), (4, 0, 0)]);
    Ok(())
}

fn connections_are_accepted_by_one_request() -> Outcome {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").or_fail()?;
    let address = listener.local_addr().or_fail()?;
    let ring = Ring::new(8)?;
    let accept = Sqe {
        ioprio: abi::IORING_ACCEPT_MULTISHOT as u16,
        ..Sqe::new(Op::IORING_OP_ACCEPT, listener.as_raw_fd(), 1)
    };
    ring.submit(&[accept])?;
    for _ in 0..3 {
        let mut client = std::net::TcpStream::connect(address).or_fail()?;
        let (_, descriptor, flags) = ring.await_completions(1)?[0];
        expect!(descriptor > 2);
        expect_eq!(flags, abi::IORING_CQE_F_MORE);
        client.write_all(b"hi").or_fail()?;
        let mut buffer = [0; 2];
        let receive = Sqe::new(Op::IORING_OP_RECV, descriptor, 2).buffer(&mut buffer);
        expect_eq!(ring.run(&[receive])?, [(2, 2, 0)]);
        expect_eq!(ring.run(&[Sqe::new(Op::IORING_OP_CLOSE, descriptor, 3)])?, [(3, 0, 0)]);
    }
    ring.submit(&[Sqe { addr: 1, ..Sqe::new(Op::IORING_OP_ASYNC_CANCEL, -1, 4) }])?;
    expect_eq!(ring.await_completions(2)?, [(1, error(Errno::ECANCELED), 0), (4, 0, 0)]);
    Ok(())
}

fn messages_go_through_sockets() -> Outcome {
    let (one, other) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).or_fail()?;
    let ring = Ring::new(8)?;
    let (mut text, mut buffer) = (*b"message", [0; 16]);
    ring.submit(&[Sqe::new(Op::IORING_OP_RECV, one.as_raw_fd(), 1).buffer(&mut buffer)])?;
    let send = Sqe::new(Op::IORING_OP_SEND, other.as_raw_fd(), 2).buffer(&mut text);
    ring.submit(&[send])?;
    expect_eq!(ring.await_completions(2)?, [(1, 7, 0), (2, 7, 0)]);
    expect_eq!(&buffer[..7], b"message");
    let shut = Sqe { len: libc::SHUT_WR as u32, ..Sqe::new(Op::IORING_OP_SHUTDOWN, other.as_raw_fd(), 3) };
    expect_eq!(ring.run(&[shut])?, [(3, 0, 0)]);
    let end = Sqe::new(Op::IORING_OP_RECV, one.as_raw_fd(), 4).buffer(&mut buffer);
    expect_eq!(ring.run(&[end])?, [(4, 0, 0)]);
    Ok(())
}

fn completions_without_room_are_kept() -> Outcome {
    let ring = Ring::new(4)?;
    let overflow = |ring: &Ring| {
        ring.word(ring.parameters[14]).load(Ordering::Acquire) & abi::IORING_SQ_CQ_OVERFLOW != 0
    };
    for round in 0..5 {
        for index in 0..4 {
            ring.push(Sqe::new(Op::IORING_OP_NOP, -1, round * 4 + index));
        }
        expect_eq!(ring.enter_with(4, 0, 0, std::ptr::null(), 0), Ok(4));
    }
    expect!(overflow(&ring));
    for data in 0..8 {
        expect_eq!(ring.take(), Some((data, 0, 0)));
    }
    expect_eq!(ring.take(), None);
    expect_eq!(ring.enter(0, 0), Ok(0));
    for data in 8..16 {
        expect_eq!(ring.take(), Some((data, 0, 0)));
    }
    expect_eq!(ring.enter(0, 4), Ok(0));
    for data in 16..20 {
        expect_eq!(ring.take(), Some((data, 0, 0)));
    }
    expect!(!overflow(&ring));
    Ok(())
}

fn registered_files_and_buffers() -> Outcome {
    const BUFFERS: u32 = 0;
    const UNREGISTER_BUFFERS: u32 = 1;
    const FILES: u32 = 2;
    const UNREGISTER_FILES: u32 = 3;
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let files = [reader.as_raw_fd(), -1, writer.as_raw_fd()];
    expect_eq!(ring.register(UNREGISTER_FILES, std::ptr::null(), 0), Err(Errno::ENXIO));
    expect_eq!(ring.register(FILES, files.as_ptr().cast(), 3), Ok(0));
    expect_eq!(ring.register(FILES, files.as_ptr().cast(), 3), Err(Errno::EBUSY));
    let mut memory = [0_u8; 64];
    memory[..5].copy_from_slice(b"fixed");
    let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    expect_eq!(ring.register(BUFFERS, (&raw const vector).cast(), 1), Ok(0));
    let start = memory.as_ptr() as u64;
    let write = Sqe { addr: start, len: 5, ..Sqe::new(Op::IORING_OP_WRITE_FIXED, 2, 1) };
    expect_eq!(ring.run(&[write.flags(FIXED_FILE)])?, [(1, 5, 0)]);
    let read = Sqe { addr: start + 32, len: 5, ..Sqe::new(Op::IORING_OP_READ_FIXED, 0, 2) };
    expect_eq!(ring.run(&[read.flags(FIXED_FILE)])?, [(2, 5, 0)]);
    expect_eq!(&memory[32..37], b"fixed");
    let outside = Sqe { addr: start + 60, ..read };
    expect_eq!(ring.run(&[outside.flags(FIXED_FILE)])?, [(2, error(Errno::EFAULT), 0)]);
    let absent = Sqe { fd: 1, ..read };
    expect_eq!(ring.run(&[absent.flags(FIXED_FILE)])?, [(2, error(Errno::EBADF), 0)]);
    expect_eq!(ring.register(UNREGISTER_BUFFERS, std::ptr::null(), 0), Ok(0));
    expect_eq!(ring.register(UNREGISTER_FILES, std::ptr::null(), 0), Ok(0));
    let probe = [0_u8; 16 + 8 * 64];
    expect_eq!(ring.register(8, probe.as_ptr(), 64), Ok(0));
    Ok(())
}

fn an_eventfd_counts_completions() -> Outcome {
    let counter = nix::sys::eventfd::EventFd::from_value(0).or_fail()?;
    let ring = Ring::new(8)?;
    let descriptor = std::os::fd::AsFd::as_fd(&counter).as_raw_fd();
    expect_eq!(ring.register(4, (&raw const descriptor).cast(), 1), Ok(0));
    expect_eq!(ring.run(&[Sqe::new(Op::IORING_OP_NOP, -1, 1)])?, [(1, 0, 0)]);
    expect!(counter.read().or_fail()? >= 1);
    expect_eq!(ring.register(5, std::ptr::null(), 0), Ok(0));
    expect_eq!(ring.register(5, std::ptr::null(), 0), Err(Errno::ENXIO));
    Ok(())
}

fn unknown_entries_end_the_batch() -> Outcome {
    let ring = Ring::new(8)?;
    let nop = Sqe::new(Op::IORING_OP_NOP, -1, 2);
    ring.push(Sqe { operation: 200, data: 1, ..Sqe::default() });
    ring.push(nop);
    expect_eq!(ring.enter(2, 0), Ok(1));
    expect_eq!(ring.take(), Some((1, error(Errno::EINVAL), 0)));
    expect_eq!(ring.enter(1, 1), Ok(1));
    expect_eq!(ring.take(), Some((2, 0, 0)));
    ring.push(nop.flags(0x80));
    expect_eq!(ring.enter(1, 1), Ok(1));
    expect_eq!(ring.take(), Some((2, error(Errno::EINVAL), 0)));
    // An index that names no entry is dropped.
    let tail = ring.word(ring.parameters[11]);
    let index = tail.load(Ordering::Relaxed) & 7;
    ring.word(ring.parameters[16] + index * 4).store(1000, Ordering::Relaxed);
    tail.fetch_add(1, Ordering::Release);
    expect_eq!(ring.enter(1, 0).unwrap_or(0), 0);
    expect_eq!(ring.word(ring.parameters[15]).load(Ordering::Relaxed), 1);
    expect_eq!(ring.take(), None);
    Ok(())
}

fn waiting_ends_in_time() -> Outcome {
    let ring = Ring::new(8)?;
    let time = [0_i64, 1_000_000];
    let argument = [0, 0, time.as_ptr() as u64];
    let flags = abi::IORING_ENTER_GETEVENTS | abi::IORING_ENTER_EXT_ARG;
    expect_eq!(ring.enter_with(0, 1, flags, argument.as_ptr(), 24), Err(Errno::ETIME));
    expect_eq!(ring.enter_with(0, 1, flags, argument.as_ptr(), 8), Err(Errno::EINVAL));
    ring.push(Sqe::new(Op::IORING_OP_NOP, -1, 1));
    expect_eq!(ring.enter_with(1, 2, flags, argument.as_ptr(), 24), Ok(1));
    expect_eq!(ring.take(), Some((1, 0, 0)));
    Ok(())
}

fn the_end_of_a_process_ends_its_requests() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let child = crate::harness::spawn_child(|| {
        let Ok(ring) = Ring::new(8) else { return 1 };
        let mut buffer = [0; 8];
        let read = Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 1).buffer(&mut buffer).flags(LINK);
        let nop = Sqe::new(Op::IORING_OP_NOP, -1, 2);
        let entries = [read, read, nop, nop.flags(DRAIN)];
        i32::from(ring.submit(&entries).is_err())
    })?;
    let status = nix::sys::wait::waitpid(child, None);
    expect_eq!(status, Ok(nix::sys::wait::WaitStatus::Exited(child, 0)));
    write(&writer, b"mine").or_fail()?;
    let mut buffer = [0; 8];
    expect_eq!(read(&reader, &mut buffer), Ok(4));
    Ok(())
}

fn names_are_opened_and_closed() -> Outcome {
    let scratch = Scratch::new("uring-names")?;
    let ring = Ring::new(8)?;
    let name = |name: &str| std::ffi::CString::new(scratch.path(name).to_string_lossy().as_bytes());
    let (file, directory) = (name("file").or_fail()?, name("directory").or_fail()?);
    let flags = (libc::O_RDWR | libc::O_CREAT) as u32;
    let open = Sqe {
        addr: file.as_ptr() as u64,
        len: 0o600,
        op_flags: flags,
        ..Sqe::new(Op::IORING_OP_OPENAT, libc::AT_FDCWD, 1)
    };
    let (_, descriptor, _) = ring.run(&[open])?[0];
    expect!(descriptor > 2);
    let mut about = [0_u8; 256];
    let status = Sqe {
        addr: file.as_ptr() as u64,
        len: libc::STATX_SIZE,
        off: about.as_mut_ptr() as u64,
        ..Sqe::new(Op::IORING_OP_STATX, libc::AT_FDCWD, 2)
    };
    expect_eq!(ring.run(&[status])?, [(2, 0, 0)]);
    expect_eq!(ring.run(&[Sqe::new(Op::IORING_OP_CLOSE, descriptor, 3)])?, [(3, 0, 0)]);
    let again = ring.run(&[Sqe::new(Op::IORING_OP_CLOSE, descriptor, 4)])?;
    expect_eq!(again, [(4, error(Errno::EBADF), 0)]);
    let at = |operation, path: &std::ffi::CString, data| Sqe {
        addr: path.as_ptr() as u64,
        ..Sqe::new(operation, libc::AT_FDCWD, data)
    };
    let make = Sqe { len: 0o700, ..at(Op::IORING_OP_MKDIRAT, &directory, 5) };
    expect_eq!(ring.run(&[make])?, [(5, 0, 0)]);
    let remove = Sqe { op_flags: libc::AT_REMOVEDIR as u32, ..at(Op::IORING_OP_UNLINKAT, &directory, 6) };
    expect_eq!(ring.run(&[remove])?, [(6, 0, 0)]);
    expect_eq!(ring.run(&[at(Op::IORING_OP_UNLINKAT, &file, 7)])?, [(7, 0, 0)]);
    let gone = ring.run(&[at(Op::IORING_OP_UNLINKAT, &file, 8)])?;
    expect_eq!(gone, [(8, error(Errno::ENOENT), 0)]);
    Ok(())
}
