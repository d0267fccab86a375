//! The vDSO: what the C library and `/proc` see of it.
#![allow(unsafe_code)] // System calls that `nix` has no safe form for, and a look at the object itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    maps_show_it
    it_is_an_elf_object_and_not_writable
    clocks_agree_with_the_kernel
    monotonic_is_one_clock_on_all_processors
    setting_the_time_is_seen
    getcpu_follows_affinity
    a_child_has_it_too
    other_clocks_fall_back
}

/// Start, end and rights of a mapping.
fn mapping(name: &str) -> Result<(usize, usize, String), String> {
    let maps = std::fs::read_to_string("/proc/self/maps").or_fail()?;
    let line = maps.lines().find(|line| line.ends_with(name)).ok_or(format!("no {name} in {maps}"))?;
    let (range, rest) = line.split_once(' ').ok_or("no range")?;
    let (start, end) = range.split_once('-').ok_or("no dash")?;
    let number = |text| usize::from_str_radix(text, 16).or_fail();
    Ok((number(start)?, number(end)?, rest[..4].to_owned()))
}

fn object() -> usize {
    // SAFETY: no preconditions.
    (unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) }) as usize
}

fn maps_show_it() -> Outcome {
    let (start, end, rights) = mapping("[vdso]")?;
    expect_eq!(start, object());
    expect!(end > start);
    expect_eq!(rights, "r-xp");
    let (_, _, rights) = mapping("[vvar]")?;
    expect!(rights.starts_with("r--"));
    Ok(())
}

fn it_is_an_elf_object_and_not_writable() -> Outcome {
    // SAFETY: the kernel says that an ELF header is there.
    let magic = unsafe { (object() as *const [u8; 4]).read() };
    expect_eq!(magic, *b"\x7fELF");
    let status = in_child(|| {
        // SAFETY: in a child of its own, which this kills.
        unsafe { (object() as *mut u8).write_volatile(0) };
        0
    })?;
    expect!(matches!(status, WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGSEGV, _)));
    let (start, end, _) = mapping("[vvar]")?;
    let page = start;
    // SAFETY: rights of a mapping that nothing of this program's lies in.
    let result = unsafe {
        libc::mprotect(start as *mut libc::c_void, end - start, libc::PROT_READ | libc::PROT_WRITE)
    };
    if result == 0 {
        // Linux allows it, and then refuses the page.
        let status = in_child(|| {
            // SAFETY: in a child of its own, which this kills.
            unsafe { (page as *mut u8).write_volatile(0) };
            0
        })?;
        expect!(matches!(status, WaitStatus::Signaled(..)));
    }
    Ok(())
}

fn by_library(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn by_call(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn clocks_agree_with_the_kernel() -> Outcome {
    for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME] {
        for _ in 0..200 {
            let (before, between, after) = (by_call(clock), by_library(clock), by_call(clock));
            expect!(before <= between && between <= after);
        }
    }
    // SAFETY: no result is asked for.
    let seconds = unsafe { libc::time(std::ptr::null_mut()) } as u64;
    expect!(by_call(libc::CLOCK_REALTIME) / 1_000_000_000 - seconds <= 1);
    Ok(())
}

/// The processors that this thread may use.
fn processors() -> Result<Vec<usize>, String> {
    let set = sched_getaffinity(Pid::from_raw(0)).or_fail()?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

fn move_to(cpu: usize) -> Outcome {
    let mut set = CpuSet::new();
    set.set(cpu).or_fail()?;
    sched_setaffinity(Pid::from_raw(0), &set).or_fail()
}

fn monotonic_is_one_clock_on_all_processors() -> Outcome {
    let latest = Arc::new(AtomicU64::new(0));
    let cpus = processors()?;
    let threads: Vec<_> = cpus
        .iter()
        .map(|&cpu| {
            let latest = latest.clone();
            std::thread::spawn(move || -> Outcome {
                move_to(cpu)?;
                for _ in 0..20_000 {
                    let seen = latest.load(Ordering::SeqCst);
                    let now = by_library(libc::CLOCK_MONOTONIC);
                    expect!(now >= seen);
                    latest.fetch_max(now, Ordering::SeqCst);
                }
                Ok(())
            })
        })
        .collect();
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "panicked")?)
}

fn setting_the_time_is_seen() -> Outcome {
    let before = by_library(libc::CLOCK_REALTIME);
    let shift = |nanoseconds: i64| {
        let time = by_call(libc::CLOCK_REALTIME).wrapping_add_signed(nanoseconds);
        let time =
            libc::timespec { tv_sec: (time / 1_000_000_000) as i64, tv_nsec: (time % 1_000_000_000) as i64 };
        // SAFETY: reads the time that is passed.
        unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) }
    };
    const DAY_NS: i64 = 86_400_000_000_000;
    if crate::harness::is_heddle() {
        expect_eq!(shift(DAY_NS), 0);
        let after = by_library(libc::CLOCK_REALTIME);
        expect_eq!(shift(-DAY_NS), 0);
        expect!(after >= before + DAY_NS as u64);
        expect!(by_library(libc::CLOCK_REALTIME) < after);
    } else {
        crate::harness::skip("the time of day is only Heddle's to set here: on a host it is everybody's");
    }
    Ok(())
}

fn getcpu_follows_affinity() -> Outcome {
    for cpu in processors()? {
        move_to(cpu)?;
        // SAFETY: no preconditions.
        expect_eq!(unsafe { libc::sched_getcpu() }, cpu as i32);
    }
    Ok(())
}

fn a_child_has_it_too() -> Outcome {
    let before = by_library(libc::CLOCK_MONOTONIC);
    let status = in_child(move || {
        let is_same = mapping("[vdso]").is_ok_and(|(start, ..)| start == object());
        i32::from(!is_same || by_library(libc::CLOCK_MONOTONIC) < before)
    })?;
    expect!(matches!(status, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn other_clocks_fall_back() -> Outcome {
    expect!(by_library(libc::CLOCK_PROCESS_CPUTIME_ID) > 0);
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result.
    expect_eq!(unsafe { libc::clock_gettime(77, &raw mut time) }, -1);
    // SAFETY: a place for the result.
    expect_eq!(unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC, &raw mut time) }, 0);
    expect_eq!((time.tv_sec, time.tv_nsec), (0, 1));
    Ok(())
}
