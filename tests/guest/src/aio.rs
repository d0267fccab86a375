//! Native asynchronous I/O, by its system calls.
#![allow(unsafe_code, reason = "raw system calls, and memory that the kernel writes")]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, pipe, write};

use crate::harness::{OrFail, Outcome, Scratch};
use crate::{expect, expect_eq};

crate::tests! {
    contexts_are_made_and_destroyed
    files_are_written_and_read
    vectors_and_syncs
    a_read_waits_for_its_pipe_or_its_end
    polls_wait_and_are_cancelled
    an_eventfd_counts_events
    refused_blocks_end_a_submission
    events_are_waited_for
    a_program_reads_the_ring_by_itself
    there_is_an_end_of_room
    a_child_has_no_context
    threads_submit_and_take_side_by_side
    the_end_of_a_process_ends_its_requests
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 2;
const DATA_SYNC: u16 = 3;
const POLL: u16 = 5;
const READ_VECTOR: u16 = 7;
const WRITE_VECTOR: u16 = 8;

/// `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Control {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: i32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    counter: i32,
}

impl Control {
    fn new(opcode: u16, file: &impl AsRawFd, data: u64) -> Self {
        Self { opcode, fd: file.as_raw_fd(), data, key: 7, ..Self::default() }
    }

    fn buffer(self, buffer: &mut [u8]) -> Self {
        Self { buffer: buffer.as_mut_ptr() as u64, length: buffer.len() as u64, ..self }
    }

    fn at(self, offset: i64) -> Self {
        Self { offset, ..self }
    }
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    second: i64,
}

struct Context(u64);

fn call(number: i64, arguments: [u64; 5]) -> Result<u64, Errno> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: the callers pass memory of theirs, or addresses that the kernel is to refuse.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d, e) }).map(i64::cast_unsigned)
}

fn setup(requests: u32) -> Result<Context, Errno> {
    let mut context = 0_u64;
    call(libc::SYS_io_setup, [requests.into(), &raw mut context as u64, 0, 0, 0])?;
    Ok(Context(context))
}

impl Context {
    fn new(requests: u32) -> Result<Self, String> {
        setup(requests).or_fail()
    }

    fn submit(&self, blocks: &[&mut Control]) -> Result<u64, Errno> {
        let list: Vec<u64> = blocks.iter().map(|block| &raw const **block as u64).collect();
        call(libc::SYS_io_submit, [self.0, list.len() as u64, list.as_ptr() as u64, 0, 0])
    }

    fn take(&self, least: usize, most: usize, timeout: Option<Duration>) -> Result<Vec<Event>, Errno> {
        let mut events = vec![Event::default(); most];
        let timeout = timeout.map(|timeout| [timeout.as_secs(), timeout.subsec_nanos().into()]);
        let timeout = timeout.as_ref().map_or(0, |timeout: &[u64; 2]| timeout.as_ptr() as u64);
        let arguments = [self.0, least as u64, most as u64, events.as_mut_ptr() as u64, timeout];
        events.truncate(call(libc::SYS_io_getevents, arguments)? as usize);
        Ok(events)
    }

    /// The next event of a poll: its data, and whether the file is as it was waited for. Linux adds events of the same
    /// meaning that nobody asked for when it had to wait.
    fn polled(&self) -> Result<(u64, bool), String> {
        let [(data, result)] = self.results(1)?[..] else { return Err("no event".to_owned()) };
        Ok((data, result & i64::from(libc::POLLIN | libc::POLLOUT) != 0))
    }

    /// Data and result of so many events, in the order of their data.
    fn results(&self, count: usize) -> Result<Vec<(u64, i64)>, String> {
        let mut events = Vec::new();
        while events.len() < count {
            let taken = self.take(1, count - events.len(), None).or_fail()?;
            events.extend(taken.iter().map(|event| (event.data, event.result)));
        }
        events.sort_unstable();
        Ok(events)
    }

    fn destroy(self) -> Result<u64, Errno> {
        call(libc::SYS_io_destroy, [self.0, 0, 0, 0, 0])
    }
}

fn contexts_are_made_and_destroyed() -> Outcome {
    let context = Context::new(1)?;
    let address = context.0;
    expect_eq!(address % 4096, 0);
    expect_eq!(context.destroy(), Ok(0));
    expect_eq!(Context(address).destroy(), Err(Errno::EINVAL));
    expect_eq!(Context(address).take(0, 1, None), Err(Errno::EINVAL));
    expect_eq!(setup(0).err(), Some(Errno::EINVAL));
    let mut taken = 1_u64;
    expect_eq!(call(libc::SYS_io_setup, [1, &raw mut taken as u64, 0, 0, 0]), Err(Errno::EINVAL));
    expect_eq!(call(libc::SYS_io_setup, [1, 8, 0, 0, 0]), Err(Errno::EFAULT));
    expect_eq!(Context(0).destroy(), Err(Errno::EINVAL));
    expect_eq!(Context(&raw const taken as u64 & !4095).destroy(), Err(Errno::EINVAL));
    expect_eq!(setup(1 << 20).err(), Some(Errno::EAGAIN));
    let most: u32 = std::fs::read_to_string("/proc/sys/fs/aio-max-nr").or_fail()?.trim().parse().or_fail()?;
    expect_eq!(most, 65536);
    Ok(())
}

fn files_are_written_and_read() -> Outcome {
    let scratch = Scratch::new("aio")?;
    let path = scratch.path("file");
    let file = File::options().read(true).write(true).create_new(true).open(path).or_fail()?;
    let context = Context::new(16)?;
    let mut text = *b"0123456789abcdef";
    let mut blocks: Vec<Control> = (0..8)
        .map(|index| Control::new(WRITE, &file, index).buffer(&mut text).at(index.cast_signed() * 16))
        .collect();
    expect_eq!(context.submit(&blocks.iter_mut().collect::<Vec<_>>()), Ok(8));
    let expected: Vec<_> = (0..8).map(|index| (index, 16)).collect();
    expect_eq!(context.results(8)?, expected);
    expect_eq!(file.metadata().or_fail()?.len(), 128);
    // The kernel's mark.
    expect_eq!(blocks[0].key, 0);

    let mut buffers = [[0; 100]; 3];
    let [first, second, third] = &mut buffers;
    let mut blocks = [
        Control::new(READ, &file, 1).buffer(first).at(10),
        Control::new(READ, &file, 2).buffer(second).at(120),
        Control::new(READ, &file, 3).buffer(third).at(1000),
    ];
    expect_eq!(context.submit(&blocks.iter_mut().collect::<Vec<_>>()), Ok(3));
    expect_eq!(context.results(3)?, [(1, 100), (2, 8), (3, 0)]);
    expect_eq!(&buffers[0][..8], b"abcdef01");
    expect_eq!(&buffers[1][..8], b"89abcdef");
    let position = (&file).stream_position().or_fail()?;
    // Nothing moves the file's own position.
    expect_eq!(position, 0);
    let mut missing = Control::new(READ, &file, 4).at(0);
    (missing.buffer, missing.length) = (8, 4);
    expect_eq!(context.submit(&[&mut missing]), Ok(1));
    expect_eq!(context.results(1)?, [(4, -(Errno::EFAULT as i64))]);
    expect_eq!(context.destroy(), Ok(0));
    Ok(())
}

fn vectors_and_syncs() -> Outcome {
    let scratch = Scratch::new("aio")?;
    let path = scratch.path("file");
    let mut file = File::options().read(true).write(true).create_new(true).open(path).or_fail()?;
    let context = Context::new(8)?;
    let (mut first, mut second) = (*b"hello ", *b"world");
    let mut vector = [first.as_mut_ptr() as u64, 6, second.as_mut_ptr() as u64, 5];
    let mut block = Control { length: 2, ..Control::new(WRITE_VECTOR, &file, 1).at(3) };
    block.buffer = vector.as_mut_ptr() as u64;
    expect_eq!(context.submit(&[&mut block]), Ok(1));
    expect_eq!(context.results(1)?, [(1, 11)]);
    let mut syncs = [Control::new(SYNC, &file, 2), Control::new(DATA_SYNC, &file, 3)];
    expect_eq!(context.submit(&syncs.iter_mut().collect::<Vec<_>>()), Ok(2));
    expect_eq!(context.results(2)?, [(2, 0), (3, 0)]);
    (first, second) = ([0; 6], [0; 5]);
    vector = [first.as_mut_ptr() as u64, 6, second.as_mut_ptr() as u64, 5];
    block.opcode = READ_VECTOR;
    block.buffer = vector.as_mut_ptr() as u64;
    expect_eq!(context.submit(&[&mut block]), Ok(1));
    expect_eq!(context.results(1)?, [(1, 11)]);
    expect_eq!((&first, &second), (b"hello ", b"world"));
    // With RWF_APPEND the position does not count.
    block.opcode = WRITE_VECTOR;
    block.rw_flags = 0x10;
    expect_eq!(context.submit(&[&mut block]), Ok(1));
    expect_eq!(context.results(1)?, [(1, 11)]);
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0)).or_fail()?;
    file.read_to_end(&mut text).or_fail()?;
    expect_eq!(text, b"\0\0\0hello worldhello world");
    Ok(())
}

/// Linux makes the submitter wait for a pipe, so that the end comes first here.
fn a_read_waits_for_its_pipe_or_its_end() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let context = Context::new(8)?;
    write(&writer, b"text").or_fail()?;
    let mut buffer = [0; 16];
    let mut block = Control::new(READ, &reader, 5).buffer(&mut buffer);
    expect_eq!(context.submit(&[&mut block]), Ok(1));
    expect_eq!(context.results(1)?, [(5, 4)]);
    expect_eq!(&buffer[..4], b"text");
    drop(writer);
    expect_eq!(context.submit(&[&mut block]), Ok(1));
    expect_eq!(context.results(1)?, [(5, 0)]);
    Ok(())
}

fn polls_wait_and_are_cancelled() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let context = Context::new(8)?;
    let mut poll = Control::new(POLL, &reader, 9);
    poll.buffer = libc::POLLIN as u64;
    expect_eq!(context.submit(&[&mut poll]), Ok(1));
    expect_eq!(context.take(0, 1, None), Ok(Vec::new()));
    write(&writer, b"x").or_fail()?;
    expect_eq!(context.polled()?, (9, true));
    // An event that is there is told at once.
    expect_eq!(context.submit(&[&mut poll]), Ok(1));
    expect_eq!(context.polled()?, (9, true));

    let mut ready = Control::new(POLL, &writer, 10);
    ready.buffer = (libc::POLLIN | libc::POLLPRI) as u64;
    expect_eq!(context.submit(&[&mut ready]), Ok(1));
    let cancel = |block: &Control| {
        let mut event = Event::default();
        let (block, event) = (&raw const *block as u64, &raw mut event as u64);
        call(libc::SYS_io_cancel, [context.0, block, event, 0, 0])
    };
    expect_eq!(cancel(&ready), Err(Errno::EINPROGRESS));
    expect_eq!(context.polled()?, (10, false));
    // It is over.
    expect_eq!(cancel(&ready), Err(Errno::EINVAL));
    ready.key = 1;
    expect_eq!(cancel(&ready), Err(Errno::EINVAL));
    let event = [0_u8; 32];
    expect_eq!(call(libc::SYS_io_cancel, [context.0, 8, event.as_ptr() as u64, 0, 0]), Err(Errno::EFAULT));
    // A context that is destroyed takes its polls along.
    expect_eq!(context.submit(&[&mut ready]), Ok(1));
    expect_eq!(context.destroy(), Ok(0));
    Ok(())
}

fn an_eventfd_counts_events() -> Outcome {
    // SAFETY: the descriptor is new.
    let counter = unsafe { OwnedFd::from_raw_fd(Errno::result(libc::eventfd(0, 0)).or_fail()?) };
    let file = File::open("/dev/zero").or_fail()?;
    let context = Context::new(8)?;
    let mut buffer = [1; 16];
    let mut block = Control::new(READ, &file, 1).buffer(&mut buffer);
    (block.flags, block.counter) = (1, counter.as_raw_fd());
    let mut over = block;
    let (mut second, mut third) = (block, block);
    expect_eq!(context.submit(&[&mut block, &mut second, &mut third]), Ok(3));
    let mut count = [0; 8];
    expect_eq!(nix::unistd::read(&counter, &mut count), Ok(8));
    expect_eq!(u64::from_ne_bytes(count), 3);
    expect_eq!(context.results(3)?, [(1, 16), (1, 16), (1, 16)]);
    // One event too many is told, and is no deadlock.
    expect_eq!(nix::unistd::write(&counter, &(u64::MAX - 1).to_ne_bytes()), Ok(8));
    expect_eq!(context.submit(&[&mut over]), Ok(1));
    let mut polled = [PollFd::new(counter.as_fd(), PollFlags::POLLIN | PollFlags::POLLOUT)];
    expect_eq!(poll(&mut polled, PollTimeout::ZERO), Ok(1));
    expect_eq!(polled[0].revents(), Some(PollFlags::POLLIN | PollFlags::POLLERR));
    expect_eq!(nix::unistd::read(&counter, &mut count), Ok(8));
    expect_eq!(u64::from_ne_bytes(count), u64::MAX);
    expect_eq!(context.results(1)?, [(1, 16)]);
    block.counter = file.as_raw_fd();
    expect_eq!(context.submit(&[&mut block]), Err(Errno::EINVAL));
    block.counter = -1;
    expect_eq!(context.submit(&[&mut block]), Err(Errno::EBADF));
    Ok(())
}

fn refused_blocks_end_a_submission() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let file = File::open("/proc/self/exe").or_fail()?;
    let context = Context::new(8)?;
    let mut buffer = [0; 16];
    let good = Control::new(READ, &file, 1).buffer(&mut buffer);
    let refused = |block: Control| context.submit(&[&mut { block }]);
    expect_eq!(refused(Control { fd: -1, ..good }), Err(Errno::EBADF));
    expect_eq!(refused(Control { opcode: WRITE, ..good }), Err(Errno::EBADF));
    expect_eq!(refused(Control { fd: writer.as_raw_fd(), ..good }), Err(Errno::EBADF));
    expect_eq!(refused(Control { opcode: WRITE, fd: reader.as_raw_fd(), ..good }), Err(Errno::EBADF));
    expect_eq!(refused(Control { opcode: 99, ..good }), Err(Errno::EINVAL));
    expect_eq!(refused(Control { opcode: 6, ..good }), Err(Errno::EINVAL));
    expect_eq!(refused(Control { reserved: 1, ..good }), Err(Errno::EINVAL));
    expect_eq!(refused(Control { offset: -1, ..good }), Err(Errno::EINVAL));
    expect_eq!(refused(Control { length: 1 << 63, ..good }), Err(Errno::EINVAL));
    expect_eq!(refused(Control { opcode: POLL, length: 1, ..good }), Err(Errno::EINVAL));
    expect_eq!(refused(Control { opcode: POLL, buffer: 1 << 16, length: 0, ..good }), Err(Errno::EINVAL));
    expect_eq!(refused(Control { flags: 2, priority: 7 << 13, ..good }), Err(Errno::EINVAL));
    let list = [8_u64, 0];
    let submit =
        |count: i64, list: u64| call(libc::SYS_io_submit, [context.0, count.cast_unsigned(), list, 0, 0]);
    expect_eq!(submit(1, list.as_ptr() as u64), Err(Errno::EFAULT));
    expect_eq!(submit(1, 8), Err(Errno::EFAULT));
    expect_eq!(submit(-1, list.as_ptr() as u64), Err(Errno::EINVAL));
    expect_eq!(submit(0, 8), Ok(0));
    let (mut first, mut second, mut third) = (good, Control { fd: -1, ..good }, good);
    // Those before it have started.
    expect_eq!(context.submit(&[&mut first, &mut second, &mut third]), Ok(1));
    expect_eq!(context.results(1)?, [(1, 16)]);
    Ok(())
}

fn events_are_waited_for() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let context = Context::new(8)?;
    expect_eq!(context.take(2, 1, None), Err(Errno::EINVAL));
    expect_eq!(context.take(0, 0, None), Ok(Vec::new()));
    let start = Instant::now();
    expect_eq!(context.take(1, 1, Some(Duration::from_millis(20))), Ok(Vec::new()));
    expect!(start.elapsed() >= Duration::from_millis(20));
    let mut polls = [Control::new(POLL, &reader, 1), Control::new(POLL, &writer, 2)];
    polls[0].buffer = libc::POLLIN as u64;
    polls[1].buffer = libc::POLLOUT as u64;
    expect_eq!(context.submit(&polls.iter_mut().collect::<Vec<_>>()), Ok(2));
    // One event is there, two are wanted.
    let events = context.take(2, 2, Some(Duration::from_millis(20))).or_fail()?;
    expect_eq!(events.len(), 1);
    expect_eq!((events[0].data, events[0].result, events[0].second), (2, libc::POLLOUT.into(), 0));
    expect_eq!(events[0].control, &raw const polls[1] as u64);
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        write(&writer, b"x").map(|_| writer)
    });
    expect_eq!(context.polled()?, (1, true));
    other.join().map_err(|_| "the writer failed")?.or_fail()?;
    // Nothing is stored.
    expect_eq!(call(libc::SYS_io_getevents, [context.0, 0, 1, 8, 0]), Ok(0));
    Ok(())
}

fn a_program_reads_the_ring_by_itself() -> Outcome {
    let context = Context::new(4)?;
    let file = File::open("/dev/zero").or_fail()?;
    let words = context.0 as *const AtomicU32;
    // SAFETY: the ring is mapped as long as the context is there, and its words are the kernel's too.
    let word = |index: usize| unsafe { &*words.add(index) };
    expect_eq!(word(4).load(Ordering::Relaxed), 0xa10a_10a1);
    let entries = word(1).load(Ordering::Relaxed);
    expect!(entries >= 4);
    let mut buffer = [1; 16];
    for round in 0..entries * 3 {
        let mut block = Control::new(READ, &file, round.into()).buffer(&mut buffer);
        expect_eq!(context.submit(&[&mut block]), Ok(1));
        let (head, tail) = (word(2).load(Ordering::Relaxed), word(3).load(Ordering::Acquire));
        expect_eq!((tail + entries - head) % entries, 1);
        expect_eq!(word(8 + head as usize * 8).load(Ordering::Relaxed), round);
        word(2).store((head + 1) % entries, Ordering::Release);
    }
    expect_eq!(context.take(0, 1, None), Ok(Vec::new()));
    // A program that spoils its ring hurts itself alone.
    word(2).store(u32::MAX, Ordering::Relaxed);
    word(3).store(u32::MAX - 5, Ordering::Relaxed);
    let _ = context.take(0, 8, None);
    expect_eq!(context.destroy(), Ok(0));
    Ok(())
}

fn there_is_an_end_of_room() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    let context = Context::new(1)?;
    let mut polls = vec![Control::new(POLL, &reader, 1); 2000];
    let mut count = 0;
    for poll in &mut polls {
        poll.buffer = libc::POLLIN as u64;
        match context.submit(&[poll]) {
            Ok(1) => count += 1,
            Err(Errno::EAGAIN) => break,
            other => return Err(format!("{other:?} after {count}")),
        }
    }
    expect!((1..2000).contains(&count));
    write(&writer, b"x").or_fail()?;
    expect_eq!(context.results(count)?.len(), count);
    // There is room again.
    expect_eq!(context.submit(&[&mut polls[0]]), Ok(1));
    Ok(())
}

fn a_child_has_no_context() -> Outcome {
    let context = Context::new(4)?;
    // SAFETY: the child makes system calls only.
    match unsafe { fork() }.or_fail()? {
        ForkResult::Child => {
            let submitted = context.submit(&[]);
            let taken = context.take(0, 0, None);
            let is_gone = submitted == Err(Errno::EINVAL) && taken == Err(Errno::EINVAL);
            // SAFETY: nothing of the parent's is to be cleaned up.
            unsafe { libc::_exit(if is_gone { 0 } else { 1 }) }
        }
        ForkResult::Parent { child } => {
            expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
        }
    }
    // The parent's is there.
    expect_eq!(context.take(0, 1, None), Ok(Vec::new()));
    Ok(())
}

fn threads_submit_and_take_side_by_side() -> Outcome {
    const ROUNDS: u64 = 200;
    const THREADS: u64 = 3;
    let scratch = Scratch::new("aio")?;
    let path = scratch.path("file");
    let mut file = File::options().read(true).write(true).create_new(true).open(path).or_fail()?;
    file.write_all(&[7; 4096]).or_fail()?;
    let context = Context::new(64)?;
    let (context, file) = (&context, &file);
    let sums = std::thread::scope(|scope| {
        let submitters: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || -> Outcome {
                    let mut buffer = [0; 64];
                    for round in 0..ROUNDS {
                        let data = thread * ROUNDS + round;
                        let mut block =
                            Control::new(READ, file, data).buffer(&mut buffer).at(round.cast_signed());
                        while context.submit(&[&mut block]) == Err(Errno::EAGAIN) {
                            std::thread::yield_now();
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        let takers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || -> Result<u64, String> {
                    let (mut sum, mut idle) = (0, 0);
                    while idle < 20 {
                        let events = context.take(1, 5, Some(Duration::from_millis(100))).or_fail()?;
                        idle = if events.is_empty() { idle + 1 } else { 0 };
                        for event in events {
                            expect_eq!(event.result, 64);
                            sum += event.data + 1;
                        }
                    }
                    Ok(sum)
                })
            })
            .collect();
        for submitter in submitters {
            submitter.join().map_err(|_| "a submitter failed")??;
        }
        let mut sum = 0;
        for taker in takers {
            sum += taker.join().map_err(|_| "a taker failed")??;
        }
        Ok::<u64, String>(sum)
    })?;
    let count = ROUNDS * THREADS;
    // Each event is taken once.
    expect_eq!(sums, count * (count + 1) / 2);
    Ok(())
}

fn the_end_of_a_process_ends_its_requests() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    // SAFETY: the child makes system calls, and memory of its own.
    match unsafe { fork() }.or_fail()? {
        ForkResult::Child => {
            let mut poll = Control::new(POLL, &reader, 1);
            poll.buffer = libc::POLLIN as u64;
            let submitted = setup(4).and_then(|context| context.submit(&[&mut poll]));
            // SAFETY: nothing of the parent's is to be cleaned up.
            unsafe { libc::_exit(i32::from(submitted != Ok(1))) }
        }
        ForkResult::Parent { child } => {
            expect_eq!(waitpid(child, None).or_fail()?, WaitStatus::Exited(child, 0));
        }
    }
    drop(reader);
    // Nobody has the pipe open for reading.
    expect_eq!(write(&writer, b"x"), Err(Errno::EPIPE));
    Ok(())
}
