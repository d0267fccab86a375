//! Bounds of what one call may do to others: how soon SIGKILL ends it, and how long an urgent thread beside it waits.
//!
//! Where the clock counts instructions ([`COUNTED`] is set), both are asserted; elsewhere the calls only have to end.
#![allow(unsafe_code, reason = "the calls are made as a program makes them, with the largest arguments")]

use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::epoll::EpollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ftruncate, pipe, read, write};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::progress::{CALLS, Call, Fresh, MIB, fragments, stay_here};
use crate::{expect, expect_eq};

crate::tests! {
    calls_end_soon_after_a_kill
    urgent_threads_wait_for_no_call
}

/// Set where a nanosecond of the clock is an instruction.
const COUNTED: &str = "HEDDLE_COUNTED";
/// The most instructions from a SIGKILL to the end of the process, the time in which its memory is freed included.
const DEATH_MAX: u64 = 10_000_000;
/// The most instructions by which an urgent thread may wake too late.
const LATE_MAX: u64 = 1_000_000;
/// Its period.
const PERIOD: u64 = 200_000;
const PERIODS: usize = 100;

fn check(result: i64) -> Outcome {
    Errno::result(result).map(drop).or_fail()
}

/// More large calls by family. Each is made again and again.
const MORE: &[(&str, Call)] = &[
    ("write to a file", || {
        let file = memfd_create(c"bounds", MFdFlags::empty()).or_fail()?;
        expect_eq!(write(&file, &vec![1; 8 * MIB]).or_fail()?, 8 * MIB);
        Ok(())
    }),
    ("copy_file_range", || {
        let (from, to) = (memory_file(4 * MIB)?, memfd_create(c"to", MFdFlags::empty()).or_fail()?);
        let (none, source, target) = (std::ptr::null_mut::<i64>(), from.as_raw_fd(), to.as_raw_fd());
        // SAFETY: positions are the files' own.
        check(unsafe { libc::copy_file_range(source, none, target, none, 4 * MIB, 0) } as i64)
    }),
    ("punch", || {
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&memory_file(8 * MIB)?, mode, 0, 8 * MIB as i64).or_fail()
    }),
    ("protect fragments", || {
        let memory = fragments(2000)?;
        // SAFETY: nothing refers to the mapping.
        check(unsafe { libc::mprotect(memory.address, memory.length, libc::PROT_READ) }.into())
    }),
    ("lock fragments", || {
        let memory = fragments(1000)?;
        // SAFETY: as above.
        unsafe {
            // Beyond the limit for those who have one.
            let _ = libc::mlock(memory.address, memory.length);
            check(libc::munlock(memory.address, memory.length).into())
        }
    }),
    ("advise and unmap", || {
        let mut memory = Fresh::new(16 * MIB)?;
        memory.bytes().fill(1);
        // SAFETY: the contents are not used any more.
        check(unsafe { libc::madvise(memory.address, memory.length, libc::MADV_DONTNEED) }.into())
    }),
    ("move", || {
        let mut memory = Fresh::new(8 * MIB)?;
        memory.bytes().fill(1);
        // SAFETY: nothing else refers to the mapping, and its new place is noted.
        let moved = unsafe { libc::mremap(memory.address, memory.length, 16 * MIB, libc::MREMAP_MAYMOVE) };
        check(moved as i64)?;
        (memory.address, memory.length) = (moved, 16 * MIB);
        Ok(())
    }),
    ("fork", || {
        let mut memory = Fresh::new(16 * MIB)?;
        memory.bytes().fill(1);
        let child = crate::harness::in_child(|| 0)?;
        expect!(matches!(child, WaitStatus::Exited(_, 0)));
        Ok(())
    }),
    ("read maps", || {
        let memory = fragments(2000)?;
        expect!(std::fs::read("/proc/self/maps").or_fail()?.len() > 2000);
        drop(memory);
        Ok(())
    }),
    ("list a directory", || {
        expect!(std::fs::read_dir("/usr/bin").or_fail()?.count() > 100);
        Ok(())
    }),
    ("poll", || {
        let (reader, _writer) = pipe().or_fail()?;
        let one = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut set = vec![one; 1000];
        for _ in 0..20 {
            // SAFETY: the set lives through the call.
            check(unsafe { libc::poll(set.as_mut_ptr(), 1000, 0) }.into())?;
        }
        Ok(())
    }),
    ("readv in pieces", || {
        let file = memory_file(4 * MIB)?;
        let mut memory = Fresh::new(4 * MIB)?;
        let base = memory.bytes().as_mut_ptr();
        let piece =
            |number: usize| libc::iovec { iov_base: base.wrapping_add(number * 4096).cast(), iov_len: 4096 };
        let pieces: Vec<_> = (0..1024).map(piece).collect();
        // SAFETY: the pieces lie in the mapping.
        check(unsafe { libc::preadv(file.as_raw_fd(), pieces.as_ptr(), 1024, 0) } as i64)
    }),
    ("read another process", || {
        let mut memory = Fresh::new(4 * MIB)?;
        memory.bytes().fill(1);
        let target = Fresh::new(4 * MIB)?;
        let remote = libc::iovec { iov_base: memory.address, iov_len: 4 * MIB };
        let local = libc::iovec { iov_base: target.address, iov_len: 4 * MIB };
        // SAFETY: both mappings have this length.
        check(unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) }
            as i64)
    }),
    ("tell those who watch", || {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).or_fail()?;
        let _watching = crate::watchers::instances(&event, 400, EpollFlags::empty())?;
        for _ in 0..20 {
            event.write(1).or_fail()?;
            event.read().or_fail()?;
        }
        Ok(())
    }),
    ("duplicate and close", || {
        let (reader, _writer) = pipe().or_fail()?;
        for _ in 0..800 {
            // SAFETY: the copies are nobody's, and are closed below.
            unsafe { libc::dup(reader.as_raw_fd()) };
        }
        let first = reader.as_raw_fd() as u32 + 2;
        // SAFETY: the copies above, which are nobody's.
        check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) })
    }),
];

/// A file in memory without holes.
fn memory_file(length: usize) -> Result<std::os::fd::OwnedFd, String> {
    let file = memfd_create(c"bounds", MFdFlags::empty()).or_fail()?;
    ftruncate(&file, length as i64).or_fail()?;
    fallocate(&file, FallocateFlags::empty(), 0, length as i64).or_fail()?;
    Ok(file)
}

fn is_counted() -> bool {
    std::env::var_os(COUNTED).is_some()
}

fn now() -> Result<u64, String> {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).or_fail()?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// A child that makes one call again and again, once it has begun.
fn repeat(call: Call) -> Result<nix::unistd::Pid, String> {
    let (reader, writer) = pipe().or_fail()?;
    let child = spawn_child(|| {
        let _ = write(&writer, b"x");
        loop {
            if let Err(reason) = call() {
                println!("{reason}");
                return 1;
            }
        }
    })?;
    read(&reader, &mut [0]).or_fail()?;
    Ok(child)
}

fn end(name: &str, child: nix::unistd::Pid) -> Outcome {
    kill(child, Signal::SIGKILL).or_fail()?;
    match waitpid(child, None).or_fail()? {
        WaitStatus::Signaled(_, Signal::SIGKILL, _) => Ok(()),
        status => Err(format!("{name}: {status:?}")),
    }
}

fn calls_end_soon_after_a_kill() -> Outcome {
    let mut late = Vec::new();
    for (name, call) in CALLS.iter().chain(MORE) {
        let mut longest = 0;
        for delay_ms in [1, 4, 9] {
            let child = repeat(*call)?;
            std::thread::sleep(std::time::Duration::from_millis(delay_ms));
            let before = now()?;
            end(name, child)?;
            longest = longest.max(now()? - before);
        }
        if is_counted() && longest > DEATH_MAX {
            late.push(format!("{name} {longest}"));
        }
    }
    expect_eq!(late, Vec::<String>::new());
    Ok(())
}

fn urgent_threads_wait_for_no_call() -> Outcome {
    stay_here()?;
    let mut late = Vec::new();
    for (name, call) in CALLS.iter().chain(MORE) {
        let child = repeat(*call)?;
        let urgent = libc::sched_param { sched_priority: 10 };
        let ordinary = libc::sched_param { sched_priority: 0 };
        // SAFETY: the calls read the parameters.
        check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const urgent) }.into())?;
        let longest = longest_delay()?;
        // SAFETY: as above.
        check(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) }.into())?;
        end(name, child)?;
        if is_counted() && longest > LATE_MAX {
            late.push(format!("{name} {longest}"));
        }
    }
    expect_eq!(late, Vec::<String>::new());
    Ok(())
}

/// By how much a thread that sleeps to the same beat woke too late at most.
fn longest_delay() -> Result<u64, String> {
    let (mut due, mut longest) = (now()?, 0);
    for _ in 0..PERIODS {
        due += PERIOD;
        let time =
            libc::timespec { tv_sec: (due / 1_000_000_000) as i64, tv_nsec: (due % 1_000_000_000) as i64 };
        let none = std::ptr::null_mut();
        // SAFETY: the call reads the time.
        unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const time, none) };
        let woken = now()?;
        longest = longest.max(woken.saturating_sub(due));
        due = due.max(woken);
    }
    Ok(longest)
}
