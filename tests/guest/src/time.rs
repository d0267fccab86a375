//! Clocks, sleeping, interval timers.

use std::time::{Duration, Instant, SystemTime};

use nix::time::{ClockId, clock_getres, clock_gettime};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    clocks_advance
    sleeping_takes_at_least_as_long
    sleeps_end_in_order
    wall_clock_is_now
    processor_time_counts_work
    bad_times_are_refused
}

fn clocks_advance() -> Outcome {
    let clocks = [ClockId::CLOCK_MONOTONIC, ClockId::CLOCK_REALTIME, ClockId::CLOCK_BOOTTIME];
    for clock in clocks {
        let first = clock_gettime(clock).or_fail()?;
        let mut second = clock_gettime(clock).or_fail()?;
        expect!(second >= first);
        while second == first {
            second = clock_gettime(clock).or_fail()?;
        }
        expect!(second > first);
        expect!(clock_getres(clock).or_fail()?.tv_nsec() > 0);
    }
    Ok(())
}

fn sleeping_takes_at_least_as_long() -> Outcome {
    for microseconds in [1, 100, 5_000, 30_000] {
        let begin = Instant::now();
        std::thread::sleep(Duration::from_micros(microseconds));
        expect!(begin.elapsed() >= Duration::from_micros(microseconds));
    }
    Ok(())
}

fn sleeps_end_in_order() -> Outcome {
    let (sender, receiver) = std::sync::mpsc::channel();
    for milliseconds in [300, 100, 200] {
        let sender = sender.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(milliseconds));
            let _ = sender.send(milliseconds);
        });
    }
    drop(sender);
    expect_eq!(receiver.iter().collect::<Vec<_>>(), [100, 200, 300]);
    Ok(())
}

fn wall_clock_is_now() -> Outcome {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).or_fail()?.as_secs();
    expect!(seconds > 1_750_000_000);
    Ok(())
}

fn processor_time_counts_work() -> Outcome {
    let before = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).or_fail()?;
    std::thread::sleep(Duration::from_millis(50));
    let slept = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).or_fail()?;
    let begin = Instant::now();
    let mut value = 1u64;
    while begin.elapsed() < Duration::from_millis(50) {
        value = std::hint::black_box(value.wrapping_mul(3));
    }
    let worked = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).or_fail()?;
    expect!(Duration::from(worked - slept) > Duration::from(slept - before));
    Ok(())
}

#[allow(unsafe_code, reason = "the safe forms cannot express a bad time")]
fn bad_times_are_refused() -> Outcome {
    let bad = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
    // SAFETY: the request lives in this frame.
    expect_eq!(unsafe { libc::nanosleep(&raw const bad, std::ptr::null_mut()) }, -1);
    expect_eq!(nix::errno::Errno::last(), nix::errno::Errno::EINVAL);
    expect_eq!(clock_gettime(ClockId::from_raw(999)).err(), Some(nix::errno::Errno::EINVAL));
    Ok(())
}
