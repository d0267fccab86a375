//! Clocks and sleeping.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::{Attempt, Errno};
use crate::memory::{Space, fallible};
use crate::process::{Thread, table};
use crate::syscall::wait::WaitKind;
use crate::syscall::{Call, Caller, Outcome, pending, user};
use crate::time::{Clock, Deadline, read_timespec, timespec_ns, timespec_words};

const US_PER_SECOND: u64 = 1_000_000;
/// The clocks' resolution.
const RESOLUTION_NS: u64 = 1;
/// Resolution of the coarse clocks: they show the same time here, but programs may rely on the number.
const COARSE_RESOLUTION_NS: u64 = 4_000_000;

/// The time that clock number `id` shows.
fn read_clock(thread: &Thread, id: i32) -> Result<u64, Errno> {
    let sum = |(user, system): (u64, u64)| user + system;
    let Ok(id) = u32::try_from(id) else {
        return read_cpu_clock(thread, id);
    };
    Ok(match id {
        linux::CLOCK_REALTIME
        | linux::CLOCK_REALTIME_COARSE
        | linux::CLOCK_REALTIME_ALARM
        | linux::CLOCK_TAI => Clock::Realtime.now_ns(),
        linux::CLOCK_MONOTONIC
        | linux::CLOCK_MONOTONIC_RAW
        | linux::CLOCK_MONOTONIC_COARSE
        | linux::CLOCK_BOOTTIME
        | linux::CLOCK_BOOTTIME_ALARM => Clock::Monotonic.now_ns(),
        linux::CLOCK_PROCESS_CPUTIME_ID => sum(thread.process.cpu_times()),
        linux::CLOCK_THREAD_CPUTIME_ID => sum(thread.cpu_times()),
        _ => return Err(Errno::EINVAL),
    })
}

/// Clocks of other processes and threads carry their number, inverted, above three bits that say which clock.
fn read_cpu_clock(thread: &Thread, id: i32) -> Result<u64, Errno> {
    const PER_THREAD: i32 = 4;
    const FILE: i32 = 3;
    let number = !(id >> 3);
    if id & 3 == FILE {
        return Err(Errno::EINVAL);
    }
    let (user, system) = if id & PER_THREAD != 0 {
        let target = if number == 0 { table::thread(thread.tid()) } else { table::thread(number) };
        target.ok_or(Errno::EINVAL)?.cpu_times()
    } else {
        let target = if number == 0 { Some(thread.process.clone()) } else { table::process(number) };
        target.ok_or(Errno::EINVAL)?.cpu_times()
    };
    Ok(user + system)
}

/// The clock that a sleep or timer runs on.
pub(super) fn waiting_clock(id: u32) -> Result<Clock, Errno> {
    match id {
        linux::CLOCK_REALTIME | linux::CLOCK_REALTIME_ALARM | linux::CLOCK_TAI => Ok(Clock::Realtime),
        linux::CLOCK_MONOTONIC | linux::CLOCK_BOOTTIME | linux::CLOCK_BOOTTIME_ALARM => Ok(Clock::Monotonic),
        linux::CLOCK_PROCESS_CPUTIME_ID | linux::CLOCK_MONOTONIC_RAW => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

/// clock_gettime(2).
pub fn clock_gettime(call: &mut Call<'_>) -> Outcome {
    let time_ns = read_clock(call.thread, call.int(0))?;
    user::write_words(&call.thread.space(), call.word(1), &timespec_words(time_ns))?;
    Ok(0.into())
}

/// clock_settime(2).
pub fn clock_settime(call: &mut Call<'_>) -> Outcome {
    let time_ns = read_timespec(&call.thread.space(), call.word(1))?;
    if call.uint(0) != linux::CLOCK_REALTIME {
        return Err(Errno::EINVAL.into());
    }
    set_realtime(call.thread, time_ns)
}

fn set_realtime(thread: &Thread, time_ns: u64) -> Outcome {
    if !thread.credentials().is_capable(linux::CAP_SYS_TIME) {
        return Err(Errno::EPERM.into());
    }
    Clock::set_realtime(time_ns);
    Ok(0.into())
}

/// clock_getres(2).
pub fn clock_getres(call: &mut Call<'_>) -> Outcome {
    read_clock(call.thread, call.int(0))?;
    let is_coarse = matches!(call.uint(0), linux::CLOCK_REALTIME_COARSE | linux::CLOCK_MONOTONIC_COARSE);
    let resolution = if is_coarse { COARSE_RESOLUTION_NS } else { RESOLUTION_NS };
    if call.word(1) != 0 {
        user::write_words(&call.thread.space(), call.word(1), &timespec_words(resolution))?;
    }
    Ok(0.into())
}

/// gettimeofday(2).
pub fn gettimeofday(call: &mut Call<'_>) -> Outcome {
    let space = call.thread.space();
    if call.word(0) != 0 {
        let now_us = Clock::Realtime.now_ns() / 1000;
        user::write_words(&space, call.word(0), &[now_us / US_PER_SECOND, now_us % US_PER_SECOND])?;
    }
    if call.word(1) != 0 {
        user::write_words(&space, call.word(1), &[0])?;
    }
    Ok(0.into())
}

/// settimeofday(2).
pub fn settimeofday(call: &mut Call<'_>) -> Outcome {
    if call.word(0) == 0 {
        return Ok(0.into());
    }
    let [seconds, microseconds] = user::read_words(&call.thread.space(), call.word(0))?;
    let time_ns = timespec_ns(seconds, microseconds.checked_mul(1000).ok_or(Errno::EINVAL)?)?;
    set_realtime(call.thread, time_ns)
}

/// time(2).
pub fn time(call: &mut Call<'_>) -> Outcome {
    let [seconds, _] = timespec_words(Clock::Realtime.now_ns());
    if call.word(0) != 0 {
        user::write_words(&call.thread.space(), call.word(0), &[seconds])?;
    }
    Ok((seconds as usize).into())
}

/// nanosleep(2).
pub fn nanosleep(call: &mut Call<'_>) -> Outcome {
    let time = read_timespec(&call.thread.space(), call.word(0))?;
    sleep(call.thread, Deadline::after(Some(time)), Some(call.word(1)))
}

/// clock_nanosleep(2).
pub fn clock_nanosleep(call: &mut Call<'_>) -> Outcome {
    let clock = waiting_clock(call.uint(0))?;
    let time = read_timespec(&call.thread.space(), call.word(2))?;
    if call.uint(1) & linux::TIMER_ABSTIME != 0 {
        return sleep(call.thread, Deadline::at(clock, time), None);
    }
    sleep(call.thread, Deadline::after(Some(time)), Some(call.word(3)))
}

/// Sleeps. A relative sleep that a signal ends says what is left at `remaining`, and goes on until the same moment if
/// no handler ran; an absolute one is simply repeated.
fn sleep(thread: &Caller, deadline: Deadline, remaining: Option<usize>) -> Outcome {
    if deadline.is_over() {
        return Ok(0.into());
    }
    let thread = thread.clone();
    pending(async move {
        if thread.wait(WaitKind::Interruptible, deadline.sleep()).await.is_ok() || deadline.is_over() {
            return Ok(0);
        }
        let Some(remaining) = remaining else { return Err(Errno::ERESTARTNOHAND) };
        if remaining != 0 {
            user::resolve(&thread.space(), |space| {
                user::write_words(space, remaining, &timespec_words(deadline.remaining_ns()))
            })
            .await?;
        }
        let again = move |call: &mut Call<'_>| sleep(call.thread, deadline, Some(remaining));
        thread.set_restart(fallible::try_arc(again)?);
        Err(Errno::ERESTART_RESTARTBLOCK)
    })
}

/// Reads a `struct itimerspec` or, with `unit_ns` 1000, a `struct itimerval`: interval, then value.
pub(super) fn read_interval(space: &Space, address: usize, unit_ns: u64) -> Attempt<(u64, u64)> {
    let [a, b, c, d] = user::read_words(space, address)?;
    let time =
        |seconds, fraction: u64| timespec_ns(seconds, fraction.checked_mul(unit_ns).ok_or(Errno::EINVAL)?);
    Ok((time(a, b)?, time(c, d)?))
}

/// The words of a `struct itimerspec` or `struct itimerval`.
pub(super) const fn interval_words(interval_ns: u64, value_ns: u64, unit_ns: u64) -> [u64; 4] {
    let [a, b] = timespec_words(interval_ns);
    let [c, d] = timespec_words(value_ns);
    [a, b / unit_ns, c, d / unit_ns]
}
