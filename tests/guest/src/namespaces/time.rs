//! Time namespaces, time_namespaces(7): offsets of the clocks that run since the start.
#![allow(unsafe_code, reason = "clocks and clone3 have no safe forms")]

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::harness::{OrFail, Outcome};
use crate::mounts::namespace::{apart, link};
use crate::{expect, expect_eq};

crate::tests! {
    clocks_are_ahead_in_a_namespace
    the_maker_stays_where_it_is
    offsets_are_set_before_anybody_comes_in
    offsets_that_are_refused
    absolute_times_are_the_namespaces
    a_namespace_is_entered
    a_namespace_is_made_with_a_child
    the_time_since_the_start_is_shifted
}

const NEWTIME: i32 = 0x80;
const DAY: i64 = 86_400;

fn unshare_time() -> Result<(), Errno> {
    // SAFETY: a number.
    Errno::result(unsafe { libc::unshare(NEWTIME) }).map(drop)
}

/// The seconds that a clock shows, by the C library, which asks the vDSO.
fn seconds(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives during the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec
}

/// The same by the system call.
fn seconds_by_call(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives during the call.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    time.tv_sec
}

fn set_offsets(text: &str) -> Result<(), Errno> {
    fs::write("/proc/self/timens_offsets", text)
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

fn is_about(value: i64, wanted: i64) -> bool {
    (wanted - 1..wanted + 30).contains(&value)
}

fn clocks_are_ahead_in_a_namespace() -> Outcome {
    unshare_time().or_fail()?;
    set_offsets(&format!("monotonic {} 0\nboottime {} 0", 10 * DAY, 20 * DAY)).or_fail()?;
    let before = [libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME, libc::CLOCK_REALTIME].map(seconds);
    apart(|| {
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_MONOTONIC_RAW, libc::CLOCK_MONOTONIC_COARSE] {
            expect!(is_about(seconds(clock), before[0] + 10 * DAY));
            expect!(is_about(seconds_by_call(clock), before[0] + 10 * DAY));
        }
        expect!(is_about(seconds(libc::CLOCK_BOOTTIME), before[1] + 20 * DAY));
        expect!(is_about(seconds_by_call(libc::CLOCK_BOOTTIME), before[1] + 20 * DAY));
        // The time of day is everybody's.
        expect!(is_about(seconds(libc::CLOCK_REALTIME), before[2]));
        // Children are there as well.
        apart(|| {
            expect!(is_about(seconds(libc::CLOCK_MONOTONIC), before[0] + 10 * DAY));
            Ok(())
        })
    })
}

fn the_maker_stays_where_it_is() -> Outcome {
    let before = link("time")?;
    expect!(before.starts_with("time:["));
    expect_eq!(link("time_for_children")?, before.clone());
    let clock = seconds(libc::CLOCK_MONOTONIC);
    unshare_time().or_fail()?;
    expect_eq!(link("time")?, before.clone());
    let children = link("time_for_children")?;
    expect!(children != before);
    set_offsets(&format!("monotonic {DAY} 0")).or_fail()?;
    expect!(is_about(seconds(libc::CLOCK_MONOTONIC), clock));
    expect!(is_about(seconds_by_call(libc::CLOCK_MONOTONIC), clock));
    apart(|| {
        expect_eq!(link("time")?, children.clone());
        expect_eq!(link("time_for_children")?, children.clone());
        Ok(())
    })
}

fn offsets_are_set_before_anybody_comes_in() -> Outcome {
    let shown = || fs::read_to_string("/proc/self/timens_offsets").or_fail();
    expect_eq!(shown()?, "monotonic           0         0\nboottime            0         0\n");
    // Programs are in the first one.
    expect_eq!(set_offsets("monotonic 1 0"), Err(Errno::EACCES));
    unshare_time().or_fail()?;
    set_offsets("monotonic 10 5\n").or_fail()?;
    set_offsets("7 3 6").or_fail()?;
    expect_eq!(shown()?, "monotonic          10         5\nboottime            3         6\n");
    apart(|| Ok(()))?;
    expect_eq!(set_offsets("monotonic 11 0"), Err(Errno::EACCES));
    // Another one begins with the offsets of the last.
    unshare_time().or_fail()?;
    expect_eq!(shown()?, "monotonic          10         5\nboottime            3         6\n");
    set_offsets("monotonic 11 0").or_fail()
}

fn offsets_that_are_refused() -> Outcome {
    unshare_time().or_fail()?;
    for (text, error) in [
        ("monotonic", Errno::EINVAL),
        ("monotonic 1", Errno::EINVAL),
        ("monotonic 1 1000000000", Errno::EINVAL),
        ("realtime 1 0", Errno::EINVAL),
        ("0 1 0", Errno::EINVAL),
        ("monotonic -1000000000 0", Errno::ERANGE),
        ("boottime 9223372036854775807 0", Errno::ERANGE),
        ("boottime 4611686019 0", Errno::ERANGE),
    ] {
        expect_eq!((text, set_offsets(text)), (text, Err(error)));
    }
    // Nobody in another user namespace has a say.
    apart(|| {
        nix::unistd::setresuid(65534.into(), 65534.into(), 65534.into()).or_fail()?;
        expect_eq!(unshare_time(), Err(Errno::EPERM));
        Ok(())
    })
}

fn sleep_until(clock: libc::clockid_t, seconds: i64) -> Result<(), Errno> {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 0 };
    // SAFETY: the structure lives during the call.
    let error =
        unsafe { libc::clock_nanosleep(clock, libc::TIMER_ABSTIME, &raw const time, std::ptr::null_mut()) };
    if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) }
}

fn absolute_times_are_the_namespaces() -> Outcome {
    unshare_time().or_fail()?;
    set_offsets(&format!("monotonic {} 0\nboottime {} 0", 10 * DAY, 20 * DAY)).or_fail()?;
    apart(|| {
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME] {
            // A moment that has been in this namespace is over at once, and one that comes is not.
            let now = seconds(clock);
            sleep_until(clock, now - DAY).or_fail()?;
            sleep_until(clock, now + 1).or_fail()?;
            expect!(is_about(seconds(clock), now + 1));
            let timer = libc::itimerspec {
                it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: libc::timespec { tv_sec: seconds(clock) + 100, tv_nsec: 0 },
            };
            // SAFETY: numbers.
            let descriptor = Errno::result(unsafe { libc::timerfd_create(clock, 0) }).or_fail()?;
            // SAFETY: it was just made.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            let number = descriptor.as_raw_fd();
            // SAFETY: the structures live during the calls.
            let left = unsafe {
                let null = std::ptr::null_mut();
                Errno::result(libc::timerfd_settime(number, libc::TFD_TIMER_ABSTIME, &raw const timer, null))
                    .or_fail()?;
                let mut left = timer;
                Errno::result(libc::timerfd_gettime(number, &raw mut left)).or_fail()?;
                left.it_value.tv_sec
            };
            expect!((60..=100).contains(&left));
        }
        let word = 0_u32;
        let time = libc::timespec { tv_sec: seconds(libc::CLOCK_MONOTONIC) + 1, tv_nsec: 0 };
        // SAFETY: the word and the structure live during the call.
        let waited = unsafe {
            let (wait, all) = (libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG, u32::MAX);
            libc::syscall(
                libc::SYS_futex,
                &raw const word,
                wait,
                0,
                &raw const time,
                std::ptr::null::<u32>(),
                all,
            )
        };
        expect_eq!(Errno::result(waited), Err(Errno::ETIMEDOUT));
        expect!(seconds(libc::CLOCK_MONOTONIC) >= time.tv_sec);
        Ok(())
    })
}

fn a_namespace_is_entered() -> Outcome {
    let first = File::open("/proc/self/ns/time").or_fail()?;
    unshare_time().or_fail()?;
    set_offsets(&format!("monotonic {DAY} 0")).or_fail()?;
    let clock = seconds(libc::CLOCK_MONOTONIC);
    let other = File::open("/proc/self/ns/time_for_children").or_fail()?;
    apart(|| {
        // The child is inside, and leaves.
        expect!(is_about(seconds(libc::CLOCK_MONOTONIC), clock + DAY));
        setns(&first, CloneFlags::from_bits_retain(NEWTIME)).or_fail()?;
        expect!(is_about(seconds(libc::CLOCK_MONOTONIC), clock));
        expect!(is_about(seconds_by_call(libc::CLOCK_MONOTONIC), clock));
        expect_eq!(link("time")?, link("time_for_children")?);
        setns(&other, CloneFlags::from_bits_retain(NEWTIME)).or_fail()?;
        expect!(is_about(seconds(libc::CLOCK_MONOTONIC), clock + DAY));
        let thread = std::thread::spawn(move || {
            let result = setns(&first, CloneFlags::from_bits_retain(NEWTIME));
            (result, first)
        });
        let (result, _first) = thread.join().map_err(|_| "the thread".to_owned())?;
        expect_eq!(result, Err(Errno::EUSERS));
        Ok(())
    })
}

#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    unused: [u64; 3],
    exit_signal: u64,
    others: [u64; 6],
}

fn a_namespace_is_made_with_a_child() -> Outcome {
    let own = link("time")?;
    let arguments = CloneArguments {
        flags: NEWTIME as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArguments::default()
    };
    // SAFETY: a copy of the space, as fork.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
    if Errno::result(pid).or_fail()? == 0 {
        let is_elsewhere = link("time").is_ok_and(|link| link != own);
        let is_set = set_offsets("monotonic 1 0") == Err(Errno::EACCES);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_elsewhere || !is_set)) }
    }
    let child = Pid::from_raw(pid as i32);
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    expect_eq!(link("time")?, own);
    Ok(())
}

fn the_time_since_the_start_is_shifted() -> Outcome {
    unshare_time().or_fail()?;
    set_offsets(&format!("boottime {} 0", 20 * DAY)).or_fail()?;
    let before = seconds(libc::CLOCK_BOOTTIME);
    apart(|| {
        let text = fs::read_to_string("/proc/uptime").or_fail()?;
        let uptime: f64 = text.split(' ').next().unwrap_or_default().parse().or_fail()?;
        expect!(is_about(uptime as i64, before + 20 * DAY));
        // SAFETY: zeros are a value of it, and it lives during the call.
        let information = unsafe {
            let mut information: libc::sysinfo = std::mem::zeroed();
            libc::sysinfo(&raw mut information);
            information
        };
        expect!(is_about(information.uptime, before + 20 * DAY));
        Ok(())
    })
}
