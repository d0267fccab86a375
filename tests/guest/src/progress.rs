//! Calls whose amount of work a program chooses: others run meanwhile, SIGKILL ends each, and a page of the program's
//! memory that is missing costs no more than itself.
#![allow(
    unsafe_code,
    reason = "the calls are made as a program makes them, with sizes that no safe form offers"
)]

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, recv, socketpair};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, Whence, ftruncate, lseek, pipe, read, write};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    others_run_during_large_calls
    large_calls_end_by_sigkill
    reads_into_fresh_memory_are_whole
    records_stay_whole
    receiving_goes_on_behind_a_missing_page
    short_intervals_leave_time
    overruns_count_missed_expiries
    files_are_cut_and_filled_in_steps
    large_texts_of_proc_are_whole
    holes_are_found_behind_much_data
    many_mappings_change_together
    many_descriptors_are_closed
    large_tables_of_descriptors_are_inherited
    gaps_behind_many_mappings_are_found
}

pub const MIB: usize = 1 << 20;

/// Anonymous memory that nobody has touched.
pub struct Fresh {
    pub address: *mut libc::c_void,
    pub length: usize,
}

impl Fresh {
    pub fn new(length: usize) -> Result<Self, String> {
        Self::with(length, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn with(length: usize, protection: i32) -> Result<Self, String> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping somewhere.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        Errno::result(address as isize).or_fail()?;
        Ok(Self { address, length })
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has the length, belongs to this value and may be written.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.length) }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

fn open(path: &str, write: bool) -> Result<std::fs::File, String> {
    std::fs::OpenOptions::new().read(!write).write(write).open(path).or_fail()
}

fn send(to: impl AsFd, from: impl AsFd, count: usize) -> isize {
    // SAFETY: the position is the file's own.
    unsafe { libc::sendfile(to.as_fd().as_raw_fd(), from.as_fd().as_raw_fd(), std::ptr::null_mut(), count) }
}

fn random(bytes: &mut [u8]) -> isize {
    // SAFETY: the memory is this slice.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) }
}

/// A file that is one large hole.
fn hole() -> Result<std::os::fd::OwnedFd, String> {
    let file = memfd_create(c"hole", MFdFlags::empty()).or_fail()?;
    ftruncate(&file, 1 << 40).or_fail()?;
    Ok(file)
}

/// One large call of a family.
pub type Call = fn() -> Outcome;

/// Large calls by family; each takes milliseconds.
pub const CALLS: &[(&str, Call)] = &[
    ("sendfile", || {
        let file = hole()?;
        let sent = send(open("/dev/null", true)?, &file, 512 * MIB);
        expect_eq!(sent, 512 * MIB as isize);
        Ok(())
    }),
    ("getrandom", || {
        let mut memory = Fresh::new(8 * MIB)?;
        expect_eq!(random(memory.bytes()), 8 * MIB as isize);
        Ok(())
    }),
    ("urandom", || {
        let mut memory = Fresh::new(8 * MIB)?;
        expect_eq!(open("/dev/urandom", false)?.read(memory.bytes()).or_fail()?, 8 * MIB);
        Ok(())
    }),
    ("mincore", || {
        let memory = Fresh::with(16 << 30, libc::PROT_NONE)?;
        let mut vector = vec![0; memory.length / 4096];
        // SAFETY: a byte for each page.
        let result = unsafe { libc::mincore(memory.address, memory.length, vector.as_mut_ptr()) };
        Errno::result(result).map(drop).or_fail()
    }),
    ("populate", || {
        for _ in 0..4 {
            let memory = Fresh::new(16 * MIB)?;
            // SAFETY: advice about this mapping, which has no contents yet.
            let result = unsafe { libc::madvise(memory.address, memory.length, libc::MADV_POPULATE_WRITE) };
            Errno::result(result).or_fail()?;
        }
        Ok(())
    }),
    ("fallocate", || {
        let file = memfd_create(c"progress", MFdFlags::empty()).or_fail()?;
        for _ in 0..4 {
            fallocate(&file, FallocateFlags::empty(), 0, 16 * MIB as i64).or_fail()?;
            ftruncate(&file, 0).or_fail()?;
        }
        Ok(())
    }),
];

/// Keeps this process on the processor where it is.
pub fn stay_here() -> Outcome {
    let allowed = sched_getaffinity(Pid::from_raw(0)).or_fail()?;
    let first = (0..CpuSet::count()).find(|&number| allowed.is_set(number).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(first.ok_or("no processor")?).or_fail()?;
    sched_setaffinity(Pid::from_raw(0), &one).or_fail()
}

fn others_run_during_large_calls() -> Outcome {
    stay_here()?;
    let (turns, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let companion = std::thread::spawn({
        let (turns, ends) = (turns.clone(), ends.clone());
        move || {
            while !ends.load(Ordering::Relaxed) {
                turns.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
        }
    });
    let mut stuck = Vec::new();
    for (name, call) in CALLS {
        let before = turns.load(Ordering::Relaxed);
        call()?;
        if turns.load(Ordering::Relaxed) == before {
            stuck.push(*name);
        }
    }
    ends.store(true, Ordering::Relaxed);
    companion.join().map_err(|_| "the companion failed")?;
    expect_eq!(stuck, Vec::<&str>::new());
    Ok(())
}

fn large_calls_end_by_sigkill() -> Outcome {
    let endless: &[(&str, Call)] = &[
        ("sendfile to an eventfd", || {
            let counter = EventFd::new().or_fail()?;
            send(&counter, open("/dev/zero", false)?, 0x7fff_f000);
            Ok(())
        }),
        ("sendfile of a hole", || {
            let file = hole()?;
            send(open("/dev/null", true)?, &file, 0x7fff_f000);
            Ok(())
        }),
    ];
    for (name, call) in endless.iter().chain(CALLS) {
        let (reader, writer) = pipe().or_fail()?;
        let child = spawn_child(|| {
            let _ = write(&writer, b"x");
            loop {
                if call().is_err() {
                    return 1;
                }
            }
        })?;
        read(&reader, &mut [0]).or_fail()?;
        std::thread::sleep(std::time::Duration::from_millis(5));
        kill(child, Signal::SIGKILL).or_fail()?;
        let status = waitpid(child, None).or_fail()?;
        if !matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)) {
            return Err(format!("{name}: {status:?}"));
        }
    }
    Ok(())
}

const PIPE_BYTES: usize = 64 << 10;

fn reads_into_fresh_memory_are_whole() -> Outcome {
    let (reader, writer) = pipe().or_fail()?;
    expect_eq!(write(&writer, &[1; PIPE_BYTES]).or_fail()?, PIPE_BYTES);
    let mut memory = Fresh::new(PIPE_BYTES)?;
    expect_eq!(read(&reader, memory.bytes()).or_fail()?, PIPE_BYTES);
    expect!(memory.bytes().iter().all(|&byte| byte == 1));
    let mut memory = Fresh::new(2 * MIB)?;
    expect_eq!(random(memory.bytes()), 2 * MIB as isize);
    // Memory that isn't there at all ends a read behind what was read.
    let memory = Fresh::new(2 * 4096)?;
    // SAFETY: the second page of this mapping, which nothing refers to.
    unsafe { libc::munmap(memory.address.byte_add(4096), 4096) };
    expect_eq!(write(&writer, &[2; 8192]).or_fail()?, 8192);
    // SAFETY: the kernel checks the memory.
    let got = unsafe { libc::read(reader.as_raw_fd(), memory.address, 8192) };
    expect!(got > 0 && got <= 4096 || got == -1 && Errno::last() == Errno::EFAULT);
    Ok(())
}

fn records_stay_whole() -> Outcome {
    // A record across a page boundary whose second page has to be brought in: read, and written.
    let (reader, writer) = pipe().or_fail()?;
    for _ in 0..20 {
        let mut memory = Fresh::new(8192)?;
        expect_eq!(write(&writer, &[3; 200]).or_fail()?, 200);
        expect_eq!(read(&reader, &mut memory.bytes()[4000..4200]).or_fail()?, 200);
        let mut memory = Fresh::new(8192)?;
        memory.bytes()[4000] = 1;
        expect_eq!(write(&writer, &memory.bytes()[4000..4200]).or_fail()?, 200);
        expect_eq!(read(&reader, &mut [0; 4096]).or_fail()?, 200);
    }
    Ok(())
}

fn receiving_goes_on_behind_a_missing_page() -> Outcome {
    let (one, other) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).or_fail()?;
    for flags in [nix::sys::socket::MsgFlags::empty(), nix::sys::socket::MsgFlags::MSG_WAITALL] {
        expect_eq!(write(&one, &[4; 32 << 10]).or_fail()?, 32 << 10);
        let mut memory = Fresh::new(32 << 10)?;
        expect_eq!(recv(other.as_raw_fd(), memory.bytes(), flags).or_fail()?, 32 << 10);
        expect!(memory.bytes().iter().all(|&byte| byte == 4));
    }
    Ok(())
}

/// A timer that sends a signal.
struct Timer(libc::timer_t);

impl Timer {
    fn new(signal: Signal) -> Result<Self, String> {
        let mut timer = std::ptr::null_mut();
        // SAFETY: all zeros is a value of this type.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = signal as i32;
        // SAFETY: both structures live through the call.
        Errno::result(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) })
            .or_fail()?;
        Ok(Self(timer))
    }

    fn set(&self, interval_ns: i64) -> Outcome {
        let interval = libc::timespec { tv_sec: 0, tv_nsec: interval_ns };
        let setting = libc::itimerspec { it_interval: interval, it_value: interval };
        // SAFETY: the structure lives through the call.
        Errno::result(unsafe { libc::timer_settime(self.0, 0, &raw const setting, std::ptr::null_mut()) })
            .map(drop)
            .or_fail()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer is this value's.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn ignore(signal: Signal) -> Outcome {
    // SAFETY: no handler is installed.
    unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigIgn) }.map(drop).or_fail()
}

fn short_intervals_leave_time() -> Outcome {
    stay_here()?;
    ignore(Signal::SIGUSR1)?;
    let ignored = Timer::new(Signal::SIGUSR1)?;
    ignored.set(1)?;
    let file = nix::sys::timerfd::TimerFd::new(
        nix::sys::timerfd::ClockId::CLOCK_MONOTONIC,
        nix::sys::timerfd::TimerFlags::empty(),
    )
    .or_fail()?;
    let interval = libc::itimerspec {
        it_interval: libc::timespec { tv_sec: 0, tv_nsec: 1 },
        it_value: libc::timespec { tv_sec: 0, tv_nsec: 1 },
    };
    // SAFETY: the structure lives through the call.
    Errno::result(unsafe {
        libc::timerfd_settime(file.as_fd().as_raw_fd(), 0, &raw const interval, std::ptr::null_mut())
    })
    .or_fail()?;
    let begin = std::time::Instant::now();
    while begin.elapsed() < std::time::Duration::from_millis(30) {
        std::thread::yield_now();
    }
    // An expiry each nanosecond has been counted.
    let mut count = [0; 8];
    expect_eq!(read(&file, &mut count).or_fail()?, 8);
    expect!(u64::from_ne_bytes(count) >= 30_000_000);
    Ok(())
}

fn overruns_count_missed_expiries() -> Outcome {
    const INTERVAL_NS: u128 = 1_000_000;
    let signals = nix::sys::signal::SigSet::from_iter([Signal::SIGUSR1]);
    signals.thread_block().or_fail()?;
    let before = std::time::Instant::now();
    let timer = Timer::new(Signal::SIGUSR1)?;
    timer.set(INTERVAL_NS as i64)?;
    let set = std::time::Instant::now();
    std::thread::sleep(std::time::Duration::from_millis(60));
    let least = set.elapsed().as_nanos() / INTERVAL_NS;
    // SAFETY: all zeros is a value of this type.
    let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set and the structure live through the call.
    let signal = unsafe { libc::sigwaitinfo(signals.as_ref(), &raw mut information) };
    let most = before.elapsed().as_nanos() / INTERVAL_NS;
    expect_eq!(signal, Signal::SIGUSR1 as i32);
    // SAFETY: the timer is there.
    let overrun = unsafe { libc::timer_getoverrun(timer.0) };
    let expiries = u128::try_from(overrun).or_fail()? + 1;
    if expiries < least || expiries > most {
        return Err(format!("{expiries} expiries, not {least} to {most}"));
    }
    Ok(())
}

fn files_are_cut_and_filled_in_steps() -> Outcome {
    let file = memfd_create(c"steps", MFdFlags::empty()).or_fail()?;
    let pages = |file: &std::os::fd::OwnedFd| -> Result<i64, String> {
        Ok(nix::sys::stat::fstat(file).or_fail()?.st_blocks * 512 / 4096)
    };
    fallocate(&file, FallocateFlags::empty(), 0, 4 * MIB as i64).or_fail()?;
    expect_eq!(pages(&file)?, 1024);
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, punch, 4096 * 100 + 1, 4096 * 300).or_fail()?;
    expect_eq!(pages(&file)?, 1024 - 299);
    fallocate(&file, punch, 0, i64::MAX).or_fail()?;
    expect_eq!(pages(&file)?, 0);
    fallocate(&file, FallocateFlags::empty(), 0, 4 * MIB as i64).or_fail()?;
    expect_eq!(pages(&file)?, 1024);
    nix::sys::uio::pwrite(&file, &[7; 8192], 2 * MIB as i64 - 4096).or_fail()?;
    ftruncate(&file, 2 * MIB as i64 + 10).or_fail()?;
    expect_eq!(pages(&file)?, 513);
    ftruncate(&file, 4 * MIB as i64).or_fail()?;
    let mut bytes = [1; 8192];
    nix::sys::uio::pread(&file, &mut bytes, 2 * MIB as i64 - 4096).or_fail()?;
    expect!(bytes[..4106].iter().all(|&byte| byte == 7));
    expect!(bytes[4106..].iter().all(|&byte| byte == 0));
    Ok(())
}

fn large_texts_of_proc_are_whole() -> Outcome {
    const PAGES: usize = 4000;
    let memory = Fresh::new(PAGES * 4096)?;
    for page in (0..PAGES).step_by(2) {
        // SAFETY: a page of this mapping, which nothing refers to.
        let result = unsafe { libc::mprotect(memory.address.byte_add(page * 4096), 4096, libc::PROT_READ) };
        Errno::result(result).or_fail()?;
    }
    let range = memory.address as usize..memory.address as usize + memory.length;
    for name in ["maps", "smaps"] {
        let text = std::fs::read_to_string(format!("/proc/self/{name}")).or_fail()?;
        let starts = text.lines().filter_map(|line| {
            let (start, _) = line.split_once('-')?;
            usize::from_str_radix(start, 16).ok()
        });
        expect_eq!(starts.filter(|start| range.contains(start)).count(), PAGES);
    }
    Ok(())
}

fn holes_are_found_behind_much_data() -> Outcome {
    const PAGES: i64 = 3000;
    let file = memfd_create(c"much", MFdFlags::empty()).or_fail()?;
    ftruncate(&file, (PAGES + 5000) * 4096).or_fail()?;
    lseek(&file, 4096, Whence::SeekSet).or_fail()?;
    for _ in 0..PAGES / 100 {
        expect_eq!(write(&file, &[1; 100 * 4096]).or_fail()?, 100 * 4096);
    }
    let find = |from: i64, whence| lseek(&file, from, whence);
    expect_eq!(find(0, Whence::SeekHole), Ok(0));
    expect_eq!(find(0, Whence::SeekData), Ok(4096));
    expect_eq!(find(4096, Whence::SeekHole), Ok((PAGES + 1) * 4096));
    expect_eq!(lseek(&file, 0, Whence::SeekCur), Ok((PAGES + 1) * 4096));
    expect_eq!(find((PAGES + 1) * 4096, Whence::SeekData), Err(Errno::ENXIO));
    expect_eq!(lseek(&file, 0, Whence::SeekCur), Ok((PAGES + 1) * 4096));
    Ok(())
}

/// Mappings of a page each: neighbours differ in what may be done with them.
pub fn fragments(count: usize) -> Result<Fresh, String> {
    let memory = Fresh::with(count * 4096, libc::PROT_READ)?;
    for page in (0..count).step_by(2) {
        // SAFETY: a page of this mapping, which nothing refers to.
        let result = unsafe {
            libc::mprotect(memory.address.byte_add(page * 4096), 4096, libc::PROT_READ | libc::PROT_WRITE)
        };
        Errno::result(result).or_fail()?;
    }
    Ok(memory)
}

fn mapping_count() -> Result<usize, String> {
    Ok(std::fs::read_to_string("/proc/self/maps").or_fail()?.lines().count())
}

fn many_mappings_change_together() -> Outcome {
    const COUNT: usize = 4000;
    let before = mapping_count()?;
    let memory = fragments(COUNT)?;
    expect!(mapping_count()? >= before + COUNT - 2);
    let (address, length) = (memory.address, memory.length);
    // SAFETY: these calls are about the mapping, to which nothing refers.
    unsafe {
        Errno::result(libc::madvise(address, length, libc::MADV_DONTFORK)).or_fail()?;
        let child = crate::harness::in_child(|| {
            i32::from(mapping_count().is_ok_and(|now| now > before + COUNT / 2))
        })?;
        expect_eq!(child, WaitStatus::Exited(child.pid().ok_or("no child")?, 0));
        Errno::result(libc::madvise(address, length, libc::MADV_DOFORK)).or_fail()?;
        let child = crate::harness::in_child(|| {
            i32::from(mapping_count().is_ok_and(|now| now < before + COUNT / 2))
        })?;
        expect_eq!(child, WaitStatus::Exited(child.pid().ok_or("no child")?, 0));
        // One of them that is missing: those before it may have changed.
        libc::munmap(address.byte_add(length - 2 * 4096), 4096);
        expect_eq!(Errno::result(libc::mprotect(address, length, libc::PROT_READ)), Err(Errno::ENOMEM));
        expect_eq!(Errno::result(libc::mprotect(address, length - 2 * 4096, libc::PROT_READ)), Ok(0));
    }
    expect!(mapping_count()? <= before + 4);
    drop(memory);
    let memory = fragments(COUNT)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: in place of the mapping, to which nothing refers.
    let replaced = unsafe { libc::mmap(memory.address, memory.length, libc::PROT_READ, flags, -1, 0) };
    expect_eq!(replaced, memory.address);
    expect!(mapping_count()? <= before + 4);
    drop(memory);
    drop(fragments(COUNT)?);
    expect!(mapping_count()? <= before + 2);
    Ok(())
}

fn many_descriptors_are_closed() -> Outcome {
    const COUNT: i32 = 900;
    let (reader, writer) = pipe().or_fail()?;
    let copy = |count: i32| {
        for _ in 0..count {
            // SAFETY: the copies belong to nobody, and end with the process or below.
            unsafe { libc::dup(writer.as_raw_fd()) };
        }
    };
    let is_ended = || -> Outcome {
        expect_eq!(read(&reader, &mut [0]).or_fail()?, 0);
        Ok(())
    };
    // By the end of a process.
    crate::harness::in_child(|| {
        copy(COUNT);
        0
    })?;
    copy(COUNT);
    let first = writer.as_raw_fd() as u32 + 1;
    // SAFETY: the copies above, which belong to nobody.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    expect_eq!(result, 0);
    drop(writer);
    is_ended()
}

/// More descriptors than are copied at once, for a child with memory of its own and for one that borrows its parent's.
fn large_tables_of_descriptors_are_inherited() -> Outcome {
    const HIGH: i32 = 3000;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).or_fail()?;
    let enough = 2 * HIGH as u64;
    setrlimit(Resource::RLIMIT_NOFILE, enough, hard.max(enough)).or_fail()?;
    let (reader, writer) = pipe().or_fail()?;
    let copies = [HIGH / 2, HIGH - 2, HIGH];
    for number in copies {
        // SAFETY: a number that nobody uses.
        Errno::result(unsafe { libc::dup2(writer.as_raw_fd(), number) }).or_fail()?;
    }
    let is_whole = || {
        copies.iter().all(|&number| {
            // SAFETY: the calls take numbers and one byte of a constant.
            unsafe {
                libc::fcntl(number, libc::F_GETFD) == 0
                    && libc::fcntl(number + 1, libc::F_GETFD) == -1
                    && libc::write(number, c"x".as_ptr().cast(), 1) == 1
            }
        })
    };
    for _ in 0..3 {
        let child = crate::harness::in_child(|| i32::from(!is_whole()))?;
        expect_eq!(child, WaitStatus::Exited(child.pid().ok_or("no child")?, 0));
        let mut seen = [0; 3];
        expect_eq!(read(&reader, &mut seen).or_fail()?, 3);
    }
    // A program that is started closes what it has.
    let status = std::process::Command::new("/bin/sh").args(["-c", "echo x > /proc/self/fd/3000"]).status();
    expect!(status.or_fail()?.success());
    expect_eq!(read(&reader, &mut [0; 3]).or_fail()?, 2);
    drop(writer);
    for number in copies {
        // SAFETY: the copies above.
        unsafe { libc::close(number) };
    }
    expect_eq!(read(&reader, &mut [0; 3]).or_fail()?, 0);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).or_fail()
}

/// More mappings than a search for free addresses passes over at once.
fn gaps_behind_many_mappings_are_found() -> Outcome {
    const COUNT: usize = 3000;
    // A gap of one page behind each page that is mapped.
    let memory = Fresh::with(2 * COUNT * 4096, libc::PROT_READ)?;
    for page in (0..2 * COUNT).step_by(2) {
        // SAFETY: a page of this mapping, which nothing refers to.
        let result = unsafe { libc::munmap(memory.address.byte_add(page * 4096), 4096) };
        Errno::result(result).or_fail()?;
    }
    let range = memory.address as usize..memory.address as usize + memory.length;
    // Two pages fit into none of them; one does, and all of the gaps are used before other addresses are.
    let large = (0..8).map(|_| Fresh::new(2 * 4096)).collect::<Result<Vec<_>, _>>()?;
    expect!(large.iter().all(|found| !range.contains(&(found.address as usize))));
    let small = (0..COUNT + 64).map(|_| Fresh::new(4096)).collect::<Result<Vec<_>, _>>()?;
    let inside = small.iter().filter(|found| range.contains(&(found.address as usize))).count();
    expect!(inside >= COUNT - 8);
    Ok(())
}
