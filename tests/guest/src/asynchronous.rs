//! Heddle's asynchronous system calls from below: the entries, the ring, cancelling, ends with calls under way, and
//! what a hostile program may write. Linux answers `ENOSYS`, which is what programs tell the two apart by.
#![allow(unsafe_code, reason = "system calls that have no safe form")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use heddle_abi::call::{
    CANCEL, CANCEL_AND_WAIT, COMPLETION_BYTES, Completion, DONE, Entry, FOR_EVER, RING, RING_HEAD,
    RING_HEADER_BYTES, RING_TAIL, SUBMIT, WAIT, WAITS,
};
use libc::{
    SYS_accept4, SYS_execve, SYS_fork, SYS_getpid, SYS_nanosleep, SYS_read, SYS_rt_sigreturn, SYS_write,
};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::pipe;

use crate::harness::{OrFail, Outcome, in_child, own_path, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    a_call_is_done_at_once_or_comes_through_the_ring
    a_batch_is_started_in_one_entry
    nobody_sleeps_over_results_that_came_before
    calls_are_refused_when_the_ring_has_no_room
    a_cancelled_call_leaves_memory_and_data_alone
    data_after_a_cancellation_stays
    every_result_comes_once
    wild_rings_hurt_nobody
    entries_are_checked
    a_call_outlives_the_thread_that_made_it
    a_process_may_end_with_calls_under_way
    a_process_may_be_killed_with_calls_under_way
    exec_ends_calls_under_way
    a_fork_has_none_of_the_calls
    signals_do_not_end_calls
    waiting_ends_for_each_of_its_reasons
    a_ring_is_replaced_by_a_larger_one
}

/// A ring in memory of its own.
pub struct Ring {
    start: *mut u8,
    order: u32,
}

pub fn call(number: u32, arguments: [u64; 4]) -> Result<i64, i32> {
    let [a, b, c, d] = arguments;
    // SAFETY: Heddle's calls with memory that the tests keep, or that is meant to be wrong.
    let result = unsafe { libc::syscall(number.into(), a, b, c, d) };
    if result == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(result) }
}

/// Whether the kernel is not Heddle: then the test shows nothing.
fn is_missing() -> bool {
    let missing = !crate::harness::is_heddle();
    if missing {
        crate::harness::skip("only Heddle has calls that go on by themselves");
    }
    missing
}

impl Ring {
    const BYTES: usize = 1 << 20;

    fn map() -> *mut u8 {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory.
        unsafe { libc::mmap(null_mut(), Self::BYTES, protection, flags, -1, 0) }.cast()
    }

    /// Nothing on Linux.
    pub fn new(order: u32) -> Result<Option<Self>, String> {
        let ring = Self { start: Self::map(), order };
        match call(RING, [ring.start as u64, order.into(), 0, 0]) {
            Ok(0) => Ok(Some(ring)),
            Err(libc::ENOSYS) if is_missing() => Ok(None),
            other => Err(format!("RING: {other:?}")),
        }
    }

    fn counter(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: a word of the header, which stays mapped.
        unsafe { AtomicU32::from_ptr(self.start.add(offset).cast()) }
    }

    fn tail(&self) -> u32 {
        self.counter(RING_TAIL).load(Ordering::Acquire)
    }

    pub fn take(&self) -> Option<Completion> {
        let head = self.counter(RING_HEAD).load(Ordering::Relaxed);
        if head == self.tail() {
            return None;
        }
        let index = (head & ((1 << self.order) - 1)) as usize;
        // SAFETY: an entry between head and tail.
        let found = unsafe { self.start.add(RING_HEADER_BYTES).cast::<Completion>().add(index).read() };
        self.counter(RING_HEAD).store(head.wrapping_add(1), Ordering::Release);
        Some(found)
    }

    /// The next result, waited for.
    pub fn next(&self) -> Result<Completion, String> {
        self.next_after(|| {})
    }

    /// As [`Ring::next`], with a pause between the look at the ring and the sleep.
    fn next_after(&self, pause: impl Fn()) -> Result<Completion, String> {
        let calm = AtomicU32::new(0);
        loop {
            // Before the look: a result that comes between the two has not been seen.
            let seen = self.tail();
            if let Some(found) = self.take() {
                return Ok(found);
            }
            pause();
            match call(WAIT, [calm.as_ptr() as u64, 0, seen.into(), FOR_EVER]) {
                Ok(_) | Err(libc::EINTR) => {}
                Err(error) => return Err(format!("WAIT: errno {error}")),
            }
        }
    }
}

pub fn submit(entries: &mut [Entry]) -> Result<i64, i32> {
    call(SUBMIT, [entries.as_mut_ptr() as u64, entries.len() as u64, 0, 0])
}

pub fn entry(number: i64, cookie: u64, arguments: [u64; 3]) -> Entry {
    let [a, b, c] = arguments;
    let arguments = [a, b, c, 0, 0, 0];
    Entry {
        number: number as u32,
        level: 32,
        cookie,
        coroutine: cookie + 1000,
        arguments,
        ..Entry::default()
    }
}

fn read_entry(file: &OwnedFd, cookie: u64, buffer: &mut [u8]) -> Entry {
    let place = [file.as_raw_fd() as u64, buffer.as_mut_ptr() as u64, buffer.len() as u64];
    entry(SYS_read, cookie, place)
}

/// Starts one call.
pub fn start(mut one: Entry) -> Result<Entry, String> {
    let started = submit(std::slice::from_mut(&mut one));
    if started == Ok(1) { Ok(one) } else { Err(format!("SUBMIT: {started:?}")) }
}

fn a_call_is_done_at_once_or_comes_through_the_ring() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let (reader, writer) = pipe().or_fail()?;
    let mut buffer = [0; 8];
    let waits = start(read_entry(&reader, 7, &mut buffer))?;
    expect_eq!(waits.state, WAITS);
    expect_eq!(ring.take(), None);
    let data = *b"abc";
    let done = start(entry(SYS_write, 8, [writer.as_raw_fd() as u64, data.as_ptr() as u64, 3]))?;
    expect_eq!((done.state, done.outcome), (DONE, 3));
    expect_eq!(ring.next()?, Completion { cookie: 7, coroutine: 1007, result: 3, reserved: 0 });
    expect_eq!(&buffer[..4], b"abc\0");
    drop(writer);
    let end = start(read_entry(&reader, 9, &mut buffer))?;
    expect_eq!((end.state, end.outcome), (DONE, 0));
    let bad = start(entry(SYS_read, 9, [9999, 0, 0]))?;
    expect_eq!((bad.state, bad.outcome as i64), (DONE, -i64::from(libc::EBADF)));
    Ok(())
}

fn a_batch_is_started_in_one_entry() -> Outcome {
    let Some(ring) = Ring::new(8)? else { return Ok(()) };
    let pipes: Vec<_> = (0..20).map(|_| pipe()).collect::<Result<_, _>>().or_fail()?;
    let mut buffers = [[0_u8; 4]; 20];
    let data = *b"data";
    let mut entries: Vec<_> =
        pipes.iter().zip(&mut buffers).enumerate().map(|(i, (p, b))| read_entry(&p.0, i as u64, b)).collect();
    let write = |file: &OwnedFd| entry(SYS_write, 99, [file.as_raw_fd() as u64, data.as_ptr() as u64, 4]);
    entries.extend(pipes.iter().map(|pipe| write(&pipe.1)));
    expect_eq!(submit(&mut entries), Ok(40));
    expect!(entries[..20].iter().all(|entry| entry.state == WAITS));
    expect!(entries[20..].iter().all(|entry| (entry.state, entry.outcome) == (DONE, 4)));
    let mut seen = [0; 20];
    for _ in 0..20 {
        let completion = ring.next()?;
        expect_eq!(completion.result, 4);
        seen[completion.cookie as usize] += 1;
    }
    expect_eq!(seen, [1; 20]);
    expect!(buffers.iter().all(|buffer| buffer == &data));
    Ok(())
}

/// All results come between a thread's look at the ring and its sleep, as a preemption at that place brings about.
fn nobody_sleeps_over_results_that_came_before() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let (reader, writer) = pipe().or_fail()?;
    let writer = File::from(writer);
    let mut buffers = [[0_u8; 1]; 3];
    for _ in 0..20 {
        for (index, buffer) in buffers.iter_mut().enumerate() {
            expect_eq!(start(read_entry(&reader, index as u64, buffer))?.state, WAITS);
        }
        let before = ring.tail();
        let all_come = || {
            let _ = (&writer).write_all(&[1; 3]);
            while ring.tail() != before + 3 {
                std::thread::yield_now();
            }
        };
        expect_eq!(ring.next_after(all_come)?.result, 1);
        expect!(ring.take().is_some() && ring.take().is_some());
    }
    Ok(())
}

fn calls_are_refused_when_the_ring_has_no_room() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let (reader, _writer) = pipe().or_fail()?;
    let mut buffers = [[0_u8; 1]; 17];
    let mut started = Vec::new();
    for (index, buffer) in buffers[..16].iter_mut().enumerate() {
        started.push(start(read_entry(&reader, index as u64, buffer))?);
    }
    let mut one_more = [read_entry(&reader, 16, &mut buffers[16])];
    expect_eq!(submit(&mut one_more), Err(libc::EAGAIN));
    expect_eq!(call(CANCEL, [started[3].outcome, CANCEL_AND_WAIT, 0, 0]), Ok(0));
    // The result is in the ring and takes the place until it is taken out.
    expect_eq!(submit(&mut one_more), Err(libc::EAGAIN));
    let canceled = ring.take().ok_or("no result")?;
    expect_eq!((canceled.cookie, canceled.result), (3, -i64::from(libc::ECANCELED)));
    expect_eq!(submit(&mut one_more), Ok(1));
    expect_eq!(call(CANCEL, [started[3].outcome, 0, 0, 0]), Err(libc::ENOENT));
    Ok(())
}

fn a_cancelled_call_leaves_memory_and_data_alone() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let (reader, writer) = pipe().or_fail()?;
    let (mut reader_file, mut writer_file) =
        (File::from(reader.try_clone().or_fail()?), File::from(writer.try_clone().or_fail()?));
    for round in 0..200_u8 {
        let mut buffer = [0xee; 4];
        let waits = start(read_entry(&reader, 1, &mut buffer))?;
        expect_eq!(waits.state, WAITS);
        expect_eq!(call(CANCEL, [waits.outcome, CANCEL_AND_WAIT, 0, 0]), Ok(0));
        writer_file.write_all(&[round; 4]).or_fail()?;
        expect_eq!(ring.take().map(|found| found.result), Some(-i64::from(libc::ECANCELED)));
        expect_eq!(buffer, [0xee; 4]);
        let mut got = [0; 4];
        reader_file.read_exact(&mut got).or_fail()?;
        expect_eq!(got, [round; 4]);
    }
    Ok(())
}

/// Whoever cancels a call knows that nothing of what comes later is lost with it, whether or not the call has ended.
fn data_after_a_cancellation_stays() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let mut buffer = [0; 8];
    let mut cancelled = |number, file: &dyn AsRawFd| {
        let place = [file.as_raw_fd() as u64, buffer.as_mut_ptr() as u64, buffer.len() as u64];
        let waits = start(entry(number, 1, if number == SYS_accept4 { [place[0], 0, 0] } else { place }))?;
        expect_eq!(waits.state, WAITS);
        expect_eq!(call(CANCEL, [waits.outcome, 0, 0, 0]), Ok(0));
        Ok::<_, String>(())
    };
    let ended = || Ok::<_, String>(expect_eq!(ring.next()?.result, -i64::from(libc::ECANCELED)));
    let mut got = [0; 4];
    for round in 0..20_u8 {
        let (reader, writer) = pipe().or_fail()?;
        cancelled(SYS_read, &reader)?;
        File::from(writer).write_all(&[round; 4]).or_fail()?;
        ended()?;
        File::from(reader).read_exact(&mut got).or_fail()?;
        expect_eq!(got, [round; 4]);

        let (mut one, mut other) = UnixStream::pair().or_fail()?;
        cancelled(SYS_read, &one)?;
        other.write_all(&[round; 4]).or_fail()?;
        ended()?;
        one.read_exact(&mut got).or_fail()?;
        expect_eq!(got, [round; 4]);

        let listener = TcpListener::bind("127.0.0.1:0").or_fail()?;
        cancelled(SYS_accept4, &listener)?;
        let client = TcpStream::connect(listener.local_addr().or_fail()?).or_fail()?;
        ended()?;
        let (server, peer) = listener.accept().or_fail()?;
        expect_eq!(peer, client.local_addr().or_fail()?);
        cancelled(SYS_read, &server)?;
        (&client).write_all(&[round; 4]).or_fail()?;
        ended()?;
        (&server).read_exact(&mut got).or_fail()?;
        expect_eq!(got, [round; 4]);
    }
    Ok(())
}

/// Bytes written by another thread at any moment of a call's life: before its first turn, during it, while it waits.
fn every_result_comes_once() -> Outcome {
    const CALLS: usize = 3000;
    let Some(ring) = Ring::new(5)? else { return Ok(()) };
    let (reader, writer) = pipe().or_fail()?;
    let feeder = std::thread::spawn(move || {
        let mut writer = File::from(writer);
        for number in 0..CALLS {
            writer.write_all(&[number as u8]).expect("write");
            if number % 7 == 0 {
                std::thread::yield_now();
            }
        }
    });
    let mut buffers = [[0_u8; 1]; 8];
    let (mut got, mut sum) = (0, 0_u64);
    while got < CALLS {
        let count = (CALLS - got).min(buffers.len());
        let mut waiting = 0;
        for (index, buffer) in buffers[..count].iter_mut().enumerate() {
            match start(read_entry(&reader, index as u64, buffer))? {
                Entry { state: WAITS, .. } => waiting += 1,
                Entry { outcome: 1, .. } => {}
                other => return Err(format!("{other:?}")),
            }
        }
        for _ in 0..waiting {
            expect_eq!(ring.next()?.result, 1);
        }
        sum += buffers[..count].iter().map(|buffer| u64::from(buffer[0])).sum::<u64>();
        got += count;
    }
    feeder.join().map_err(|_| "the feeder panicked")?;
    expect_eq!(ring.take(), None);
    expect_eq!(sum, (0..CALLS).map(|number| u64::from(number as u8)).sum::<u64>());
    Ok(())
}

fn wild_rings_hurt_nobody() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    for (address, order) in [(1, 4), (ring.start as u64, 3), (ring.start as u64, 18), (ring.start as u64, 99)]
    {
        expect_eq!(call(RING, [address, order, 0, 0]), Err(libc::EINVAL));
    }
    for address in [0_u64, 8, 1 << 47, 0xffff_8000_0000_0000, u64::MAX - 7] {
        expect_eq!(call(RING, [address, 4, 0, 0]), Err(libc::EFAULT));
    }
    let (reader, writer) = pipe().or_fail()?;
    let mut writer = File::from(writer);
    let mut buffer = [0; 1];
    for wild in [u32::MAX, 1, 17, 0x8000_0000, 5] {
        ring.counter(RING_HEAD).store(wild, Ordering::Relaxed);
        ring.counter(RING_TAIL).store(wild.rotate_left(3), Ordering::Relaxed);
        let mut one = [read_entry(&reader, 1, &mut buffer)];
        match submit(&mut one) {
            Ok(1) | Err(libc::EAGAIN) => {}
            other => return Err(format!("{wild:#x}: {other:?}")),
        }
    }
    writer.write_all(&[0; 16]).or_fail()?;
    // A ring that goes away with calls under way, and one that cannot be written.
    let fresh = Ring::new(4)?.ok_or("no ring")?;
    let (empty, mut other) = pipe().map(|(reader, writer)| (reader, File::from(writer))).or_fail()?;
    start(read_entry(&empty, 1, &mut buffer))?;
    // SAFETY: nobody in this process uses the memory any more.
    unsafe { libc::munmap(fresh.start.cast(), Ring::BYTES) };
    other.write_all(&[1]).or_fail()?;
    let fixed = Ring::new(4)?.ok_or("no ring")?;
    start(read_entry(&empty, 2, &mut buffer))?;
    // SAFETY: as above.
    unsafe { libc::mprotect(fixed.start.cast(), Ring::BYTES, libc::PROT_READ) };
    other.write_all(&[1]).or_fail()?;
    std::thread::sleep(Duration::from_millis(20));
    let last = Ring::new(4)?.ok_or("no ring")?;
    start(read_entry(&empty, 3, &mut buffer))?;
    other.write_all(&[1]).or_fail()?;
    expect_eq!(last.next()?.cookie, 3);
    Ok(())
}

fn entries_are_checked() -> Outcome {
    let mut entries = [entry(SYS_getpid, 1, [0; 3])];
    match submit(&mut entries) {
        Err(libc::ENOSYS) => {
            is_missing();
            return Ok(());
        }
        no_ring => expect_eq!(no_ring, Err(libc::ENXIO)),
    }
    let Some(_ring) = Ring::new(4)? else { return Ok(()) };
    for (address, count) in [(1_u64, 1_u64), (8, 0), (8, 1 << 20), (8, u64::MAX)] {
        expect_eq!(call(SUBMIT, [address, count, 0, 0]), Err(libc::EINVAL));
    }
    for address in [0_u64, 8, 0xffff_8000_0000_0000, u64::MAX - 7] {
        expect_eq!(call(SUBMIT, [address, 1, 0, 0]), Err(libc::EFAULT));
    }
    for number in [SYS_fork, SYS_execve, SYS_rt_sigreturn, i64::from(SUBMIT), 99_999] {
        let refused = start(entry(number, 1, [0; 3]))?;
        expect_eq!((refused.state, refused.outcome as i64), (DONE, -i64::from(libc::ENOSYS)));
    }
    let own = start(entry(SYS_getpid, 1, [0; 3]))?;
    expect_eq!(own.outcome, u64::from(std::process::id()));
    for token in [0, 1, u64::MAX, 1 << 32] {
        expect_eq!(call(CANCEL, [token, 0, 0, 0]), Err(libc::ENOENT));
    }
    expect_eq!(call(CANCEL, [0, 8, 0, 0]), Err(libc::EINVAL));
    Ok(())
}

fn a_call_outlives_the_thread_that_made_it() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let (reader, writer) = pipe().or_fail()?;
    let mut buffer = vec![0; 4];
    let one = read_entry(&reader, 5, &mut buffer);
    std::thread::spawn(move || start(one)).join().map_err(|_| "panicked")??;
    std::thread::sleep(Duration::from_millis(5));
    File::from(writer).write_all(b"late").or_fail()?;
    expect_eq!(ring.next()?.result, 4);
    expect_eq!(&buffer[..], b"late");
    Ok(())
}

/// Starts calls of several kinds that wait for ever; the files stay open.
fn leave_calls_waiting() -> Result<bool, String> {
    let Some(_) = Ring::new(6)? else { return Ok(false) };
    let (reader, writer) = pipe().or_fail()?;
    let buffer: &'static mut [u8] = Vec::leak(vec![0; 64]);
    for cookie in 0..20 {
        start(read_entry(&reader, cookie, buffer))?;
    }
    let time: &'static libc::timespec = Box::leak(Box::new(libc::timespec { tv_sec: 1000, tv_nsec: 0 }));
    start(entry(SYS_nanosleep, 50, [std::ptr::from_ref(time) as u64, 0, 0]))?;
    let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
    start(entry(libc::SYS_futex, 51, [word.as_ptr() as u64, libc::FUTEX_WAIT as u64, 0]))?;
    std::mem::forget((reader, writer));
    Ok(true)
}

fn a_process_may_end_with_calls_under_way() -> Outcome {
    if is_missing() {
        return Ok(());
    }
    for threads in [0, 3] {
        let ended = in_child(move || {
            for _ in 0..threads {
                std::thread::spawn(|| std::thread::sleep(Duration::from_secs(1000)));
            }
            match leave_calls_waiting() {
                Ok(_) => 23,
                Err(_) => 1,
            }
        })?;
        expect!(matches!(ended, WaitStatus::Exited(_, 23)));
    }
    Ok(())
}

fn a_process_may_be_killed_with_calls_under_way() -> Outcome {
    if is_missing() {
        return Ok(());
    }
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(move || {
        let _ = leave_calls_waiting();
        let _ = File::from(writer).write_all(b"x");
        std::thread::sleep(Duration::from_secs(1000));
        0
    })?;
    File::from(reader).read_exact(&mut [0]).or_fail()?;
    kill(child, Signal::SIGKILL).or_fail()?;
    expect!(matches!(waitpid(child, None).or_fail()?, WaitStatus::Signaled(_, Signal::SIGKILL, _)));
    Ok(())
}

fn exec_ends_calls_under_way() -> Outcome {
    if is_missing() {
        return Ok(());
    }
    let path = std::ffi::CString::new(own_path().as_os_str().as_encoded_bytes()).or_fail()?;
    let ended = in_child(move || {
        if leave_calls_waiting().is_err() {
            return 1;
        }
        let _ = nix::unistd::execv(&path, &[c"x", c"--as=exit", c"7"]);
        2
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 7)));
    Ok(())
}

fn a_fork_has_none_of_the_calls() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let (reader, writer) = pipe().or_fail()?;
    let mut buffer = [0; 4];
    let waits = start(read_entry(&reader, 5, &mut buffer))?;
    let status = in_child(|| {
        let none = submit(&mut [entry(SYS_getpid, 1, [0; 3])]) == Err(libc::ENXIO);
        let unknown = call(CANCEL, [waits.outcome, 0, 0, 0]) == Err(libc::ENOENT);
        i32::from(!(none && unknown))
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    File::from(writer).write_all(b"mine").or_fail()?;
    expect_eq!(ring.next()?.result, 4);
    expect_eq!(&buffer, b"mine");
    Ok(())
}

static CAUGHT: AtomicU64 = AtomicU64::new(0);

extern "C" fn catch(_: libc::c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

fn signals_do_not_end_calls() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let action = SigAction::new(SigHandler::Handler(catch), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only counts.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.or_fail()?;
    let (reader, writer) = pipe().or_fail()?;
    let mut buffer = [0; 4];
    start(read_entry(&reader, 5, &mut buffer))?;
    let own = nix::unistd::getpid();
    for _ in 0..5 {
        kill(own, Signal::SIGUSR1).or_fail()?;
    }
    let calm = AtomicU32::new(0);
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        kill(own, Signal::SIGUSR1)
    });
    // Whichever thread takes the signal, the call goes on.
    let waited = call(WAIT, [calm.as_ptr() as u64, 0, ring.tail().into(), 100_000_000]);
    expect!(matches!(waited, Err(libc::EINTR | libc::ETIMEDOUT)));
    sender.join().map_err(|_| "panicked")?.or_fail()?;
    expect_eq!(CAUGHT.load(Ordering::Relaxed), 6);
    expect_eq!(ring.take(), None);
    File::from(writer).write_all(b"good").or_fail()?;
    expect_eq!(ring.next()?.result, 4);
    Ok(())
}

fn waiting_ends_for_each_of_its_reasons() -> Outcome {
    let Some(ring) = Ring::new(4)? else { return Ok(()) };
    let word = AtomicU32::new(0);
    let wait = |value: u64, seen: u64, limit| call(WAIT, [word.as_ptr() as u64, value, seen, limit]);
    expect_eq!(wait(1, 0, FOR_EVER), Err(libc::EAGAIN));
    expect_eq!(wait(0, 7, FOR_EVER), Ok(0));
    expect_eq!(wait(0, 0, 1_000_000), Err(libc::ETIMEDOUT));
    expect_eq!(call(WAIT, [8, 0, 0, FOR_EVER]), Err(libc::EFAULT));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(10));
            word.store(1, Ordering::Release);
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: wakes at a word.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, 1) };
        });
        let woken = wait(0, 0, FOR_EVER);
        if matches!(woken, Ok(0) | Err(libc::EAGAIN)) { Ok(()) } else { Err(format!("{woken:?}")) }
    })?;
    word.store(0, Ordering::Release);
    let time = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    start(entry(SYS_nanosleep, 1, [&raw const time as u64, 0, 0]))?;
    let woken = wait(0, 0, FOR_EVER);
    expect_eq!(woken, Ok(0));
    expect_eq!(ring.next()?.result, 0);
    Ok(())
}

fn a_ring_is_replaced_by_a_larger_one() -> Outcome {
    let Some(small) = Ring::new(4)? else { return Ok(()) };
    let (reader, writer) = pipe().or_fail()?;
    let mut writer = File::from(writer);
    let mut buffers = [[0_u8; 1]; 12];
    for (index, buffer) in buffers.iter_mut().enumerate() {
        start(read_entry(&reader, index as u64, buffer))?;
    }
    writer.write_all(&[1; 5]).or_fail()?;
    for _ in 0..5 {
        small.next()?;
    }
    let large = Ring::new(8)?.ok_or("no ring")?;
    writer.write_all(&[1; 7]).or_fail()?;
    for _ in 0..7 {
        expect_eq!(large.next()?.result, 1);
    }
    expect_eq!(small.take(), None);
    expect!(COMPLETION_BYTES == 32);
    Ok(())
}
