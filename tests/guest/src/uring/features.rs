//! `io_uring`: buffers that the kernel chooses, direct descriptors, tags, and rings of special kinds.
#![allow(unsafe_code, reason = "memory that the kernel writes")]

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};

use linux_raw_sys::io_uring as abi;
use linux_raw_sys::io_uring::io_uring_op as Op;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{pipe, read, write};

use crate::harness::{OrFail, Outcome, Scratch};
use crate::uring::ring::{Completion, Ring, Sqe};
use crate::uring::{FIXED_FILE, LINK, error};
use crate::{expect, expect_eq};

crate::tests! {
    provided_buffers_are_taken_in_their_order
    a_waiting_request_holds_no_buffer
    one_request_receives_many_messages
    framed_messages_have_a_header
    opened_files_become_registered_ones
    registered_files_are_added_and_changed
    tags_say_that_nothing_uses_a_file
    tags_say_that_nothing_uses_a_buffer
    a_ring_is_polled_without_calls
    restrictions_hold_from_the_start
    polls_and_linked_timeouts_are_changed
    messages_go_to_other_rings
    deferred_completions_wait_for_their_issuer
    wide_entries_and_completions
    completions_are_skipped
    cancelling_waits_for_the_end
}

const BUFFER_SELECT: u8 = 1 << 5;
const SKIP: u8 = 1 << 6;
const GROUP: u16 = 7;

fn stream() -> Result<(OwnedFd, OwnedFd), String> {
    socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).or_fail()
}

fn provide(memory: &mut [u8], count: i32, first: u64) -> Sqe {
    let length = memory.len() as u32 / count as u32;
    let operation = Sqe::new(Op::IORING_OP_PROVIDE_BUFFERS, count, 100);
    Sqe { addr: memory.as_mut_ptr() as u64, len: length, off: first, buffer: GROUP, ..operation }
}

fn receive(fd: &OwnedFd, data: u64) -> Sqe {
    Sqe { buffer: GROUP, flags: BUFFER_SELECT, ..Sqe::new(Op::IORING_OP_RECV, fd.as_raw_fd(), data) }
}

/// The flags of a completion that has taken a buffer.
const fn took(number: u32) -> u32 {
    abi::IORING_CQE_F_BUFFER | number << abi::IORING_CQE_BUFFER_SHIFT
}

fn provided_buffers_are_taken_in_their_order() -> Outcome {
    let (one, other) = stream()?;
    let ring = Ring::new(8)?;
    let mut memory = [0_u8; 64];
    expect_eq!(ring.run(&[provide(&mut memory, 4, 10)])?, [(100, 0, 0)]);
    for number in 10..14 {
        write(&other, b"hello").or_fail()?;
        expect_eq!(ring.run(&[receive(&one, 1)])?, [(1, 5, took(number))]);
    }
    expect_eq!(&memory[16..21], b"hello");
    write(&other, b"x").or_fail()?;
    expect_eq!(ring.run(&[receive(&one, 2)])?, [(2, error(Errno::ENOBUFS), 0)]);
    expect_eq!(ring.run(&[provide(&mut memory, 4, 10)])?, [(100, 0, 0)]);
    let short = Sqe { len: 3, ..receive(&one, 3) };
    expect_eq!(ring.run(&[short])?, [(3, 1, took(10))]);
    let remove = |count, group| Sqe { buffer: group, ..Sqe::new(Op::IORING_OP_REMOVE_BUFFERS, count, 4) };
    expect_eq!(ring.run(&[remove(2, GROUP)])?, [(4, 2, 0)]);
    expect_eq!(ring.run(&[remove(5, GROUP)])?, [(4, 1, 0)]);
    expect_eq!(ring.run(&[remove(1, 99)])?, [(4, error(Errno::ENOENT), 0)]);
    expect_eq!(ring.run(&[remove(0, GROUP)])?, [(4, error(Errno::EINVAL), 0)]);
    let none = Sqe { fd: 0, ..provide(&mut memory, 4, 0) };
    expect_eq!(ring.run(&[none])?, [(100, error(Errno::E2BIG), 0)]);
    let select = Sqe { flags: BUFFER_SELECT, ..Sqe::new(Op::IORING_OP_NOP, -1, 5) };
    expect_eq!(ring.run(&[select])?, [(5, error(Errno::EOPNOTSUPP), 0)]);
    Ok(())
}

fn a_waiting_request_holds_no_buffer() -> Outcome {
    let (one, other) = stream()?;
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let mut memory = [0_u8; 16];
    expect_eq!(ring.run(&[provide(&mut memory, 1, 3)])?, [(100, 0, 0)]);
    let from_pipe = Sqe {
        buffer: GROUP,
        flags: BUFFER_SELECT,
        len: 16,
        ..Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 2)
    };
    ring.submit(&[receive(&one, 1), from_pipe])?;
    expect_eq!(ring.take(), None);
    write(&writer, b"pipe").or_fail()?;
    expect_eq!(ring.await_completions(1)?, [(2, 4, took(3))]);
    expect_eq!(&memory[..4], b"pipe");
    write(&other, b"late").or_fail()?;
    expect_eq!(ring.await_completions(1)?, [(1, error(Errno::ENOBUFS), 0)]);
    Ok(())
}

/// A ring of buffers in memory of its own.
struct BufferRing {
    ring: Vec<u64>,
    at: usize,
    memory: Vec<u8>,
    tail: u16,
}

impl BufferRing {
    const ENTRIES: usize = 4;
    const LENGTH: usize = 64;

    fn register(ring: &Ring) -> Result<Self, String> {
        let words = vec![0_u64; 1024];
        let at = words.as_ptr().align_offset(4096);
        let start = (words.as_ptr() as u64) + at as u64 * 8;
        let description = [start, Self::ENTRIES as u64 | u64::from(GROUP) << 32, 0, 0, 0];
        expect_eq!(ring.register(22, description.as_ptr().cast(), 1), Ok(0));
        expect_eq!(ring.register(22, description.as_ptr().cast(), 1), Err(Errno::EEXIST));
        let memory = vec![0; Self::ENTRIES * Self::LENGTH];
        Ok(Self { ring: words, at, memory, tail: 0 })
    }

    fn add(&mut self, number: u16) {
        let index = usize::from(self.tail) % Self::ENTRIES;
        let buffer = &raw mut self.memory[usize::from(number) * Self::LENGTH];
        let entry = &raw mut self.ring[self.at + index * 2];
        // SAFETY: inside the vector; the tail is in the last two bytes of the first entry.
        unsafe {
            entry.write_volatile(buffer as u64);
            entry.add(1).cast::<u32>().write_volatile(Self::LENGTH as u32);
            entry.add(1).cast::<u16>().add(2).write_volatile(number);
            self.tail += 1;
            let tail = (&raw mut self.ring[self.at]).cast::<u16>().add(7).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    fn text(&self, number: u32, length: usize) -> &[u8] {
        &self.memory[number as usize * Self::LENGTH..][..length]
    }
}

fn one_request_receives_many_messages() -> Outcome {
    const MORE: u32 = abi::IORING_CQE_F_MORE;
    let (one, other) = stream()?;
    let ring = Ring::new(8)?;
    let mut buffers = BufferRing::register(&ring)?;
    let many = Sqe { ioprio: abi::IORING_RECV_MULTISHOT as u16, ..receive(&one, 1) };
    expect_eq!(ring.run(&[Sqe { flags: 0, ..many }])?, [(1, error(Errno::EINVAL), 0)]);
    for number in 0..3 {
        buffers.add(number);
    }
    ring.submit(&[many])?;
    expect_eq!(ring.take(), None);
    for (number, text) in [&b"first"[..], b"second", b"the third"].into_iter().enumerate() {
        write(&other, text).or_fail()?;
        let number = number as u32;
        expect_eq!(ring.await_completions(1)?, [(1, text.len() as i32, took(number) | MORE)]);
        expect_eq!(buffers.text(number, text.len()), text);
    }
    // It ends as soon as there is no buffer to wait with.
    expect_eq!(ring.await_completions(1)?, [(1, error(Errno::ENOBUFS), 0)]);
    write(&other, b"none left").or_fail()?;
    buffers.add(3);
    buffers.add(0);
    ring.submit(&[many])?;
    expect_eq!(ring.await_completions(1)?, [(1, 9, took(3) | MORE)]);
    drop(other);
    let (data, result, flags) = ring.await_completions(1)?[0];
    expect_eq!((data, result, flags & MORE), (1, 0, 0));
    let description = [0, u64::from(GROUP) << 32, 0, 0, 0];
    expect_eq!(ring.register(23, description.as_ptr().cast(), 1), Ok(0));
    expect!(ring.register(23, description.as_ptr().cast(), 1).is_err());
    Ok(())
}

fn framed_messages_have_a_header() -> Outcome {
    let flags = SockFlag::empty();
    let (one, other) = socketpair(AddressFamily::Unix, SockType::Datagram, None, flags).or_fail()?;
    let ring = Ring::new(8)?;
    let mut buffers = BufferRing::register(&ring)?;
    buffers.add(0);
    buffers.add(1);
    // SAFETY: all zeros are a header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_namelen = 4;
    header.msg_controllen = 8;
    let many = Sqe {
        ioprio: abi::IORING_RECV_MULTISHOT as u16,
        operation: Op::IORING_OP_RECVMSG as u8,
        addr: (&raw const header) as u64,
        ..receive(&one, 1)
    };
    ring.submit(&[many])?;
    for number in 0..2 {
        write(&other, b"datagram").or_fail()?;
        let flags = took(number) | abi::IORING_CQE_F_MORE;
        expect_eq!(ring.await_completions(1)?, [(1, 16 + 4 + 8 + 8, flags)]);
        let text = buffers.text(number, 36);
        let word = |at: usize| u32::from_ne_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]]);
        expect_eq!((word(4), word(8), word(12)), (0, 8, 0));
        expect_eq!(&text[28..], b"datagram");
    }
    Ok(())
}

/// Registers a table of so many empty slots.
fn register_slots(ring: &Ring, count: u32) -> Outcome {
    let sparse = [u64::from(count) | u64::from(abi::IORING_RSRC_REGISTER_SPARSE) << 32, 0, 0, 0];
    expect_eq!(ring.register(13, sparse.as_ptr().cast(), 32), Ok(0));
    Ok(())
}

fn opened_files_become_registered_ones() -> Outcome {
    let scratch = Scratch::new("uring-direct")?;
    std::fs::write(scratch.path("file"), b"contents").or_fail()?;
    let path = std::ffi::CString::new(scratch.path("file").to_string_lossy().as_bytes()).or_fail()?;
    let ring = Ring::new(8)?;
    let open = |slot, data| Sqe {
        addr: path.as_ptr() as u64,
        slot,
        ..Sqe::new(Op::IORING_OP_OPENAT, libc::AT_FDCWD, data)
    };
    expect_eq!(ring.run(&[open(1, 1)])?, [(1, error(Errno::ENXIO), 0)]);
    register_slots(&ring, 3)?;
    let mut text = [0; 16];
    let mut read =
        |slot: i32| ring.run(&[Sqe::new(Op::IORING_OP_READ, slot, 2).buffer(&mut text).flags(FIXED_FILE)]);
    expect_eq!(read(1)?, [(2, error(Errno::EBADF), 0)]);
    let lowest = std::fs::File::open("/").or_fail()?.as_raw_fd();
    expect_eq!(ring.run(&[open(2, 1)])?, [(1, 0, 0)]);
    expect_eq!(std::fs::File::open("/").or_fail()?.as_raw_fd(), lowest);
    expect_eq!(read(1)?, [(2, 8, 0)]);
    expect_eq!(ring.run(&[open(4, 1)])?, [(1, error(Errno::EINVAL), 0)]);
    let closing = Sqe { op_flags: libc::O_CLOEXEC as u32, ..open(1, 1) };
    expect_eq!(ring.run(&[closing])?, [(1, error(Errno::EINVAL), 0)]);
    let chosen = |data| open(u32::MAX, data);
    expect_eq!(ring.run(&[chosen(1)])?.len(), 1);
    let (_, slot, _) = ring.run(&[chosen(2)])?[0];
    expect!((0..3).contains(&slot) && slot != 1);
    expect_eq!(ring.run(&[chosen(3)])?, [(3, error(Errno::ENFILE), 0)]);
    let close = |slot, data| Sqe { slot, ..Sqe::new(Op::IORING_OP_CLOSE, 0, data) };
    expect_eq!(ring.run(&[close(2, 4)])?, [(4, 0, 0)]);
    expect_eq!(ring.run(&[close(2, 4)])?, [(4, error(Errno::EBADF), 0)]);
    expect_eq!(ring.run(&[close(9, 4)])?, [(4, error(Errno::EINVAL), 0)]);
    // A socket, and a connection.
    let socket = Sqe {
        off: libc::SOCK_STREAM as u64,
        slot: u32::MAX,
        ..Sqe::new(Op::IORING_OP_SOCKET, libc::AF_UNIX, 5)
    };
    expect_eq!(ring.run(&[socket])?, [(5, 1, 0)]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").or_fail()?;
    let mut client = std::net::TcpStream::connect(listener.local_addr().or_fail()?).or_fail()?;
    client.write_all(b"hi").or_fail()?;
    let accept = Sqe { slot: 2, ..Sqe::new(Op::IORING_OP_ACCEPT, listener.as_raw_fd(), 6) };
    expect_eq!(ring.run(&[accept])?, [(6, 0, 0)]);
    expect_eq!(read(1)?, [(2, 2, 0)]);
    Ok(())
}

fn registered_files_are_added_and_changed() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let mut files = [reader.as_raw_fd(), writer.as_raw_fd()];
    let update = |files: &mut [i32], first: u64| Sqe {
        addr: files.as_mut_ptr() as u64,
        len: files.len() as u32,
        off: first,
        ..Sqe::new(Op::IORING_OP_FILES_UPDATE, -1, 1)
    };
    expect_eq!(ring.run(&[update(&mut files, 0)])?, [(1, error(Errno::ENXIO), 0)]);
    register_slots(&ring, 4)?;
    expect_eq!(ring.run(&[update(&mut files, 1)])?, [(1, 2, 0)]);
    expect_eq!(ring.run(&[update(&mut files, 3)])?, [(1, error(Errno::EINVAL), 0)]);
    let mut text = *b"abc";
    let write_it = Sqe::new(Op::IORING_OP_WRITE, 2, 2).buffer(&mut text).flags(FIXED_FILE);
    expect_eq!(ring.run(&[write_it])?, [(2, 3, 0)]);
    let mut chosen = files;
    expect_eq!(ring.run(&[update(&mut chosen, u64::from(u32::MAX))])?, [(1, 2, 0)]);
    expect_eq!((chosen[0].min(chosen[1]), chosen[0].max(chosen[1])), (0, 3));
    let range = [u64::from(1_u32) | 2 << 32, 0];
    expect_eq!(ring.register(25, range.as_ptr().cast(), 0), Ok(0));
    let mut bad = [-1, 999];
    expect_eq!(ring.run(&[update(&mut bad, 0)])?, [(1, 1, 0)]);
    expect_eq!(ring.run(&[update(&mut bad[1..], 0)])?, [(1, error(Errno::EBADF), 0)]);
    Ok(())
}

fn tags_say_that_nothing_uses_a_file() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let (files, tags) = ([reader.as_raw_fd(), writer.as_raw_fd()], [77_u64, 78]);
    let list = [2, 0, files.as_ptr() as u64, tags.as_ptr() as u64];
    expect_eq!(ring.register(13, list.as_ptr().cast(), 24), Err(Errno::EINVAL));
    expect_eq!(ring.register(13, list.as_ptr().cast(), 32), Ok(0));
    let (none, new_tag) = ([-1], [0_u64]);
    let update = [0, none.as_ptr() as u64, new_tag.as_ptr() as u64, 1];
    expect_eq!(ring.register(14, update.as_ptr().cast(), 32), Ok(1));
    expect_eq!(ring.await_completions(1)?, [(77, 0, 0)]);
    // The end of the table is told by the call itself.
    expect_eq!(ring.register(3, std::ptr::null(), 0), Ok(0));
    expect_eq!(ring.take(), None);
    Ok(())
}

fn tags_say_that_nothing_uses_a_buffer() -> Outcome {
    let (ring, tags) = (Ring::new(8)?, [77_u64, 78]);
    let mut memory = [0_u8; 64];
    let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    let vectors = [vector, vector];
    let list = [2, 0, vectors.as_ptr() as u64, tags.as_ptr() as u64];
    expect_eq!(ring.register(15, list.as_ptr().cast(), 32), Ok(0));
    expect_eq!(ring.take(), None);
    let (same, new_tag) = ([vector], [79_u64]);
    let update = [0, same.as_ptr() as u64, new_tag.as_ptr() as u64, 1];
    expect_eq!(ring.register(16, update.as_ptr().cast(), 32), Ok(1));
    expect_eq!(ring.await_completions(1)?, [(77, 0, 0)]);
    expect_eq!(ring.register(1, std::ptr::null(), 0), Ok(0));
    expect_eq!(ring.take(), None);
    let unmapped = libc::iovec { iov_base: 4096 as *mut _, iov_len: 64 };
    expect_eq!(ring.register(0, (&raw const unmapped).cast(), 1), Err(Errno::EFAULT));
    Ok(())
}

fn a_ring_is_polled_without_calls() -> Outcome {
    let both = abi::IORING_SETUP_SQPOLL | abi::IORING_SETUP_DEFER_TASKRUN | abi::IORING_SETUP_SINGLE_ISSUER;
    expect!(Ring::with_setup(8, both, 1).is_err());
    expect!(Ring::with_setup(8, abi::IORING_SETUP_SQ_AFF, 1).is_err());
    let ring = Ring::with_setup(8, abi::IORING_SETUP_SQPOLL, 1)?;
    for round in 0..20 {
        ring.push(Sqe::new(Op::IORING_OP_NOP, -1, round));
        loop {
            std::sync::atomic::fence(Ordering::SeqCst);
            let flags = ring.word(ring.parameters[14]).load(Ordering::Acquire);
            if flags & abi::IORING_SQ_NEED_WAKEUP != 0 {
                expect_eq!(ring.enter_with(0, 0, abi::IORING_ENTER_SQ_WAKEUP, std::ptr::null(), 0), Ok(0));
            }
            if let Some(completion) = ring.take() {
                expect_eq!(completion, (round, 0, 0));
                break;
            }
            std::thread::yield_now();
        }
        if round == 10 {
            // It goes to sleep.
            while ring.word(ring.parameters[14]).load(Ordering::Acquire) & abi::IORING_SQ_NEED_WAKEUP == 0 {
                std::thread::yield_now();
            }
        }
    }
    let (reader, writer) = pipe().or_fail()?;
    let mut text = [0; 8];
    ring.push(Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 50).buffer(&mut text));
    let wakes = abi::IORING_ENTER_SQ_WAKEUP | abi::IORING_ENTER_SQ_WAIT;
    expect_eq!(ring.enter_with(1, 0, wakes, std::ptr::null(), 0), Ok(1));
    write(&writer, b"polled").or_fail()?;
    expect_eq!(ring.await_completions(1)?, [(50, 6, 0)]);
    Ok(())
}

fn restrictions_hold_from_the_start() -> Outcome {
    let ring = Ring::with_setup(8, abi::IORING_SETUP_R_DISABLED, 0)?;
    let entry = |kind: u64, value: u64| [kind | value << 16, 0];
    let probe = entry(0, 8);
    let list = [entry(1, Op::IORING_OP_NOP as u64), probe, entry(2, 1 << 2), entry(0, 12)];
    ring.push(Sqe::new(Op::IORING_OP_NOP, -1, 1));
    expect_eq!(ring.enter(1, 1), Err(Errno::EBADFD));
    let bad = entry(9, 0);
    expect_eq!(ring.register(11, bad.as_ptr().cast(), 1), Err(Errno::EINVAL));
    expect_eq!(ring.register(11, list.as_ptr().cast(), 4), Ok(0));
    expect_eq!(ring.register(11, list.as_ptr().cast(), 4), Err(Errno::EBUSY));
    expect_eq!(ring.register(12, std::ptr::null(), 0), Ok(0));
    expect_eq!(ring.enter(1, 1), Ok(1));
    expect_eq!(ring.take(), Some((1, 0, 0)));
    let denied = error(Errno::EACCES);
    expect_eq!(ring.run(&[Sqe::new(Op::IORING_OP_CLOSE, 0, 2)])?, [(2, denied, 0)]);
    expect_eq!(ring.run(&[Sqe::new(Op::IORING_OP_NOP, -1, 3).flags(FIXED_FILE)])?, [(3, denied, 0)]);
    expect_eq!(ring.register(1, std::ptr::null(), 0), Err(Errno::EACCES));
    Ok(())
}

fn polls_and_linked_timeouts_are_changed() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let poll =
        Sqe { op_flags: libc::POLLPRI as u32, ..Sqe::new(Op::IORING_OP_POLL_ADD, reader.as_raw_fd(), 1) };
    ring.submit(&[poll])?;
    write(&writer, b"x").or_fail()?;
    expect_eq!(ring.take(), None);
    let update = |len, off, op_flags| Sqe {
        addr: 1,
        len,
        off,
        op_flags,
        ..Sqe::new(Op::IORING_OP_POLL_REMOVE, -1, 3)
    };
    expect_eq!(ring.run(&[update(0, 5, 0)])?, [(3, error(Errno::EINVAL), 0)]);
    let data = abi::IORING_POLL_UPDATE_USER_DATA;
    expect_eq!(ring.run(&[update(data, 2, 0)])?, [(3, 0, 0)]);
    expect_eq!(ring.run(&[update(data, 2, 0)])?, [(3, error(Errno::ENOENT), 0)]);
    read(&reader, &mut [0; 8]).or_fail()?;
    // Linux 6.1 forgets a poll whose new events are there already, so that they come later.
    let events = Sqe { addr: 2, ..update(abi::IORING_POLL_UPDATE_EVENTS, 0, libc::POLLIN as u32) };
    expect_eq!(ring.run(&[events])?, [(3, 0, 0)]);
    expect_eq!(ring.take(), None);
    write(&writer, b"x").or_fail()?;
    expect_eq!(ring.await_completions(1)?, [(2, i32::from(libc::POLLIN), 0)]);
    read(&reader, &mut [0; 8]).or_fail()?;
    // A deadline in the far future comes soon.
    let (long, short) = ([1000_i64, 0], [0_i64, 1_000_000]);
    let mut text = [0; 8];
    let wait = Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 4).buffer(&mut text).flags(LINK);
    let timeout = Sqe { addr: long.as_ptr() as u64, len: 1, ..Sqe::new(Op::IORING_OP_LINK_TIMEOUT, -1, 5) };
    ring.submit(&[wait, timeout])?;
    let update = |of, data| Sqe {
        addr: of,
        off: short.as_ptr() as u64,
        op_flags: abi::IORING_LINK_TIMEOUT_UPDATE | abi::IORING_TIMEOUT_UPDATE,
        ..Sqe::new(Op::IORING_OP_TIMEOUT_REMOVE, -1, data)
    };
    expect_eq!(ring.run(&[update(99, 6)])?, [(6, error(Errno::ENOENT), 0)]);
    let removal = Sqe { op_flags: abi::IORING_LINK_TIMEOUT_UPDATE, ..update(5, 6) };
    expect_eq!(ring.run(&[removal])?, [(6, error(Errno::ENOENT), 0)]);
    ring.submit(&[update(5, 7)])?;
    let all = ring.await_completions(3)?;
    expect!(all[0].1 == error(Errno::ECANCELED) || all[0].1 == error(Errno::EINTR));
    expect_eq!(all[1..], [(5, error(Errno::ETIME), 0), (7, 0, 0)]);
    Ok(())
}

fn messages_go_to_other_rings() -> Outcome {
    let (one, other) = (Ring::new(8)?, Ring::new(8)?);
    let message = Sqe { off: 42, len: 7, ..Sqe::new(Op::IORING_OP_MSG_RING, other.file.as_raw_fd(), 1) };
    expect_eq!(one.run(&[message])?, [(1, 0, 0)]);
    expect_eq!(other.take(), Some((42, 7, 0)));
    let (reader, _writer) = pipe().or_fail()?;
    let to_pipe = Sqe { fd: reader.as_raw_fd(), ..message };
    expect_eq!(one.run(&[to_pipe])?, [(1, error(Errno::EBADFD), 0)]);
    expect_eq!(one.run(&[Sqe { addr: 9, ..message }])?, [(1, error(Errno::EINVAL), 0)]);
    register_slots(&one, 2)?;
    register_slots(&other, 2)?;
    let files = [reader.as_raw_fd()];
    let update = [0, files.as_ptr() as u64];
    expect_eq!(one.register(6, update.as_ptr().cast(), 1), Ok(1));
    let pass = Sqe { addr: 1, addr3: 0, slot: 2, ..message };
    expect_eq!(one.run(&[pass])?, [(1, 0, 0)]);
    expect_eq!(other.take(), Some((42, 0, 0)));
    let poll = Sqe { op_flags: libc::POLLOUT as u32, ..Sqe::new(Op::IORING_OP_POLL_ADD, 1, 2) };
    other.submit(&[poll.flags(FIXED_FILE)])?;
    expect_eq!(other.take(), None);
    expect_eq!(one.run(&[Sqe { addr3: 1, ..pass }])?, [(1, error(Errno::EBADF), 0)]);
    Ok(())
}

fn deferred_completions_wait_for_their_issuer() -> Outcome {
    let flags = abi::IORING_SETUP_DEFER_TASKRUN | abi::IORING_SETUP_TASKRUN_FLAG;
    expect!(Ring::with_setup(8, flags, 0).is_err());
    let ring = Ring::with_setup(8, flags | abi::IORING_SETUP_SINGLE_ISSUER, 0)?;
    let (reader, writer) = pipe().or_fail()?;
    let mut text = [0; 8];
    ring.submit(&[Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 1).buffer(&mut text)])?;
    write(&writer, b"later").or_fail()?;
    while ring.word(ring.parameters[14]).load(Ordering::Acquire) & abi::IORING_SQ_TASKRUN == 0 {
        std::thread::yield_now();
    }
    expect_eq!(ring.take(), None);
    expect_eq!(ring.enter(0, 1), Ok(0));
    expect_eq!(ring.take(), Some((1, 5, 0)));
    let results: Result<Vec<_>, String> = std::thread::scope(|scope| {
        let file = ring.file.as_raw_fd();
        let other = scope.spawn(move || {
            // SAFETY: nothing is passed.
            let result = unsafe { libc::syscall(libc::SYS_io_uring_register, file, 1, 0, 0) };
            vec![Errno::result(result)]
        });
        other.join().map_err(|_| String::from("the other thread ended badly"))
    });
    expect_eq!(results?, [Err(Errno::EEXIST)]);
    Ok(())
}

fn wide_entries_and_completions() -> Outcome {
    let mut parameters = [0; 30];
    parameters[2] = abi::IORING_SETUP_CQE32 | abi::IORING_SETUP_SQE128;
    let file = crate::uring::ring::setup(4, &mut parameters).or_fail()?;
    expect_eq!((parameters[0], parameters[1]), (4, 8));
    // The indices stand behind the completions.
    expect!(parameters[16] >= parameters[25] + 8 * 32);
    drop(file);
    Ok(())
}

fn completions_are_skipped() -> Outcome {
    let ring = Ring::new(8)?;
    let nop = |data| Sqe::new(Op::IORING_OP_NOP, -1, data);
    ring.submit(&[nop(1).flags(SKIP), nop(2)])?;
    expect_eq!(ring.await_completions(1)?, [(2, 0, 0)]);
    // A failure is told of, and those behind it are as silent as it would have been.
    let bad = Sqe::new(Op::IORING_OP_FSYNC, 999, 3);
    ring.submit(&[bad.flags(SKIP | LINK), nop(4).flags(LINK), nop(5), nop(6)])?;
    expect_eq!(ring.await_completions(2)?, [(3, error(Errno::EBADF), 0), (6, 0, 0)]);
    let drain = nop(7).flags(1 << 1);
    expect_eq!(ring.run(&[drain])?, [(7, error(Errno::EOPNOTSUPP), 0)]);
    Ok(())
}

fn cancelling_waits_for_the_end() -> Outcome {
    let (reader, _writer) = pipe().or_fail()?;
    let ring = Ring::new(8)?;
    let mut text = [0; 8];
    let wait = Sqe::new(Op::IORING_OP_READ, reader.as_raw_fd(), 5).buffer(&mut text);
    ring.submit(&[wait])?;
    let request = |data: u64, flags: u64| [data, flags << 32, u64::MAX, u64::MAX, 0, 0, 0, 0];
    let absent = request(9, 0);
    expect_eq!(ring.register(24, absent.as_ptr().cast(), 1), Err(Errno::ENOENT));
    let present = request(5, 0);
    expect_eq!(ring.register(24, present.as_ptr().cast(), 1), Ok(0));
    let all: Vec<Completion> = ring.await_completions(1)?;
    expect_eq!((all[0].0, all[0].1), (5, error(Errno::ECANCELED)));
    let bad = request(5, 1 << 20);
    expect_eq!(ring.register(24, bad.as_ptr().cast(), 1), Err(Errno::EINVAL));
    Ok(())
}
