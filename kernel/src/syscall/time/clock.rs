//! Clocks and sleeping.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;
use linux_raw_sys::general as linux;

use crate::call::caller::Caller;
use crate::error::{Errno, TryResult};
use crate::memory::values::read_timespec;
use crate::memory::{Space, fallible};
use crate::process::cpu_time::{CpuClock, CpuClockKind, CpuClockSleeper, CpuClockTarget};
use crate::process::timers::TimerClock;
use crate::process::{Thread, cpu_time, table};
use crate::syscall::{Call, SyscallResult, pending, user};
use crate::time::{Clock, Deadline, timespec_ns, timespec_words};
use crate::wait::clock_change;
use crate::wait::engine::until;
use crate::wait::node::WaitKind;
use crate::wait::queue::Watch;

const US_PER_SECOND: u64 = 1_000_000;
/// The clocks' resolution.
const RESOLUTION_NS: u64 = 1;
/// Resolution of the coarse clocks: they show the same time here, but programs may rely on the number.
const COARSE_RESOLUTION_NS: u64 = 4_000_000;

/// A clock by its number.
pub fn clock(thread: &Arc<Thread>, id: i32) -> Result<TimerClock, Errno> {
    let own = Arc::downgrade(&thread.process);
    Ok(match u32::try_from(id) {
        Ok(
            linux::CLOCK_REALTIME
            | linux::CLOCK_REALTIME_COARSE
            | linux::CLOCK_REALTIME_ALARM
            | linux::CLOCK_TAI,
        ) => TimerClock::Wall(Clock::Realtime),
        Ok(linux::CLOCK_MONOTONIC | linux::CLOCK_MONOTONIC_RAW | linux::CLOCK_MONOTONIC_COARSE) => {
            TimerClock::Wall(Clock::Monotonic)
        }
        Ok(linux::CLOCK_BOOTTIME | linux::CLOCK_BOOTTIME_ALARM) => TimerClock::Wall(Clock::Boottime),
        Ok(linux::CLOCK_PROCESS_CPUTIME_ID) => {
            TimerClock::Cpu(CpuClock { process: own, thread: None, kind: CpuClockKind::All })
        }
        Ok(linux::CLOCK_THREAD_CPUTIME_ID) => {
            let thread = Some(Arc::downgrade(thread));
            TimerClock::Cpu(CpuClock { process: own, thread, kind: CpuClockKind::All })
        }
        Ok(_) => return Err(Errno::EINVAL),
        Err(_) => TimerClock::Cpu(cpu_clock(thread, id)?),
    })
}

/// In the number of a clock of processor time, the lowest bits of one that is exact in Linux, too.
const SCHEDULER_TIME: i32 = 2;
/// In the number of a clock of processor time: a thread's.
const PER_THREAD: i32 = 4;

/// Clocks of other processes and threads carry their number, inverted, above three bits that say which clock.
fn cpu_clock(caller: &Arc<Thread>, id: i32) -> Result<CpuClock, Errno> {
    /// Of the lowest two bits: only time in user mode counts; a file's clock.
    const USER: i32 = 1;
    const FILE: i32 = 3;
    let number = !(id >> 3);
    let kind = match id & 3 {
        FILE => return Err(Errno::EINVAL),
        USER => CpuClockKind::User,
        _ => CpuClockKind::All,
    };
    if id & PER_THREAD != 0 {
        let target =
            if number == 0 { Some(caller.clone()) } else { table::thread(caller.process.named(number)) };
        // Of other processes' threads nothing is told.
        let target = target.filter(|target| Arc::ptr_eq(&target.process, &caller.process));
        let thread = Some(Arc::downgrade(&target.ok_or(Errno::EINVAL)?));
        return Ok(CpuClock { process: Arc::downgrade(&caller.process), thread, kind });
    }
    let process = match number {
        0 => caller.process.clone(),
        number => table::process(caller.process.named(number)).ok_or(Errno::EINVAL)?,
    };
    Ok(CpuClock { process: Arc::downgrade(&process), thread: None, kind })
}

/// The time that clock number `id` shows.
fn read_clock(thread: &Arc<Thread>, id: i32) -> Result<u64, Errno> {
    match clock(thread, id)? {
        TimerClock::Wall(clock) => Ok(thread.clock_now(clock)),
        TimerClock::Cpu(clock) => clock.now_ns().ok_or(Errno::EINVAL),
    }
}

/// The clock that a timer runs on.
pub fn timer_clock(thread: &Arc<Thread>, id: i32) -> Result<TimerClock, Errno> {
    if id < 0 && id & (PER_THREAD | 3) == 3 {
        // A file's clock has none.
        return Err(Errno::EOPNOTSUPP);
    }
    let found = clock(thread, id)?;
    match id as u32 {
        linux::CLOCK_MONOTONIC_RAW | linux::CLOCK_MONOTONIC_COARSE | linux::CLOCK_REALTIME_COARSE => {
            Err(Errno::EOPNOTSUPP)
        }
        _ => Ok(found),
    }
}

/// clock_gettime(2).
pub fn clock_gettime(call: &mut Call<'_>) -> SyscallResult {
    let time_ns = read_clock(call.thread, call.int(0))?;
    user::write_words(&call.thread.space(), call.word(1), &timespec_words(time_ns))?;
    Ok(0.into())
}

/// clock_settime(2).
pub fn clock_settime(call: &mut Call<'_>) -> SyscallResult {
    if call.int(0) < 0 {
        clock(call.thread, call.int(0))?;
    } else if call.uint(0) != linux::CLOCK_REALTIME {
        return Err(Errno::EINVAL.into());
    }
    let time_ns = read_timespec(&call.thread.space(), call.word(1))?;
    if call.int(0) < 0 {
        return Err(Errno::EPERM.into());
    }
    set_realtime(call.thread, time_ns)
}

fn set_realtime(thread: &Thread, time_ns: u64) -> SyscallResult {
    if !thread.credentials().is_capable(linux::CAP_SYS_TIME) {
        return Err(Errno::EPERM.into());
    }
    clock_change::set_realtime(time_ns);
    Ok(0.into())
}

/// clock_getres(2).
pub fn clock_getres(call: &mut Call<'_>) -> SyscallResult {
    read_clock(call.thread, call.int(0))?;
    let is_coarse = matches!(call.uint(0), linux::CLOCK_REALTIME_COARSE | linux::CLOCK_MONOTONIC_COARSE);
    let counts_ticks = call.int(0) < 0 && call.int(0) & 3 != SCHEDULER_TIME;
    let resolution = if is_coarse || counts_ticks { COARSE_RESOLUTION_NS } else { RESOLUTION_NS };
    if call.word(1) != 0 {
        user::write_words(&call.thread.space(), call.word(1), &timespec_words(resolution))?;
    }
    Ok(0.into())
}

/// gettimeofday(2).
pub fn gettimeofday(call: &mut Call<'_>) -> SyscallResult {
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
pub fn settimeofday(call: &mut Call<'_>) -> SyscallResult {
    if call.word(0) == 0 {
        return Ok(0.into());
    }
    let [seconds, microseconds] = user::read_words(&call.thread.space(), call.word(0))?;
    let time_ns = timespec_ns(seconds, microseconds.checked_mul(1000).ok_or(Errno::EINVAL)?)?;
    set_realtime(call.thread, time_ns)
}

/// time(2).
pub fn time(call: &mut Call<'_>) -> SyscallResult {
    let [seconds, _] = timespec_words(Clock::Realtime.now_ns());
    if call.word(0) != 0 {
        user::write_words(&call.thread.space(), call.word(0), &[seconds])?;
    }
    Ok((seconds as usize).into())
}

/// nanosleep(2).
pub fn nanosleep(call: &mut Call<'_>) -> SyscallResult {
    let time = read_timespec(&call.thread.space(), call.word(0))?;
    sleep(call.thread, Deadline::after(Some(time)), Some(call.word(1)))
}

/// clock_nanosleep(2).
pub fn clock_nanosleep(call: &mut Call<'_>) -> SyscallResult {
    let clock = timer_clock(call.thread, call.int(0))?;
    if call.uint(0) == linux::CLOCK_THREAD_CPUTIME_ID {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let time = read_timespec(&call.thread.space(), call.word(2))?;
    let is_absolute = call.uint(1) & linux::TIMER_ABSTIME != 0;
    let remaining = (!is_absolute).then_some(call.word(3));
    match clock {
        TimerClock::Wall(Clock::Realtime) if is_absolute => sleep_until_time_of_day(call.thread, time),
        TimerClock::Wall(clock) if is_absolute => {
            let deadline = Deadline::at(clock, call.thread.clock_moment(clock, time));
            sleep(call.thread, deadline, None)
        }
        TimerClock::Wall(_) => sleep(call.thread, Deadline::after(Some(time)), remaining),
        TimerClock::Cpu(clock) => {
            let is_own = |own: &Weak<Thread>| core::ptr::eq(own.as_ptr(), Arc::as_ptr(call.thread));
            if clock.thread.as_ref().is_some_and(is_own) {
                // It would sleep for ever.
                return Err(Errno::EINVAL.into());
            }
            let now = clock.now_ns().ok_or(Errno::EINVAL)?;
            let until_ns = if is_absolute { time } else { now.saturating_add(time) };
            sleep_cpu(call.thread, clock, until_ns, remaining)
        }
    }
}

/// Takes a sleeper off its clock when it stops sleeping.
struct CpuSleep {
    clock: CpuClock,
    sleeper: Arc<CpuClockSleeper>,
}

impl Drop for CpuSleep {
    fn drop(&mut self) {
        // Disarming needs no memory.
        let _ = cpu_time::arm(&self.clock, None, &CpuClockTarget::Sleeper(self.sleeper.clone()));
    }
}

/// As [`sleep`], until a clock of processor time shows `until_ns`.
fn sleep_cpu(thread: &Caller, clock: CpuClock, until_ns: u64, remaining: Option<usize>) -> SyscallResult {
    if clock.now_ns().is_some_and(|now| now >= until_ns) {
        return Ok(0.into());
    }
    let sleeper = CpuClockSleeper { caller: thread.clone(), is_woken: AtomicBool::new(false) };
    let sleep = CpuSleep { clock, sleeper: fallible::try_arc(sleeper)? };
    cpu_time::arm(&sleep.clock, Some(until_ns), &CpuClockTarget::Sleeper(sleep.sleeper.clone()))?;
    let thread = thread.clone();
    pending(async move {
        let woken = core::future::poll_fn(|_| {
            if sleep.sleeper.is_woken.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        });
        if thread.wait(WaitKind::Interruptible, woken).await.is_ok() {
            return Ok(0);
        }
        let clock = sleep.clock.clone();
        drop(sleep);
        let Some(remaining) = remaining else { return Err(Errno::ERESTARTNOHAND) };
        if remaining != 0 {
            let left_ns = until_ns.saturating_sub(clock.now_ns().unwrap_or(0));
            thread.resolve(|space| user::write_words(space, remaining, &timespec_words(left_ns))).await?;
        }
        let again =
            move |call: &mut Call<'_>| sleep_cpu(call.thread, clock.clone(), until_ns, Some(remaining));
        thread.set_restart(fallible::try_arc(again).map_err(|_| Errno::EINTR)?);
        Err(Errno::ERESTART_RESTARTBLOCK)
    })
}

/// Sleeps. A relative sleep that a signal ends says what is left at `remaining`, and goes on until the same moment if
/// no handler ran; an absolute one is simply repeated.
fn sleep(thread: &Caller, deadline: Deadline, remaining: Option<usize>) -> SyscallResult {
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
            thread
                .resolve(|space| {
                    user::write_words(space, remaining, &timespec_words(deadline.remaining_ns()))
                })
                .await?;
        }
        let again = move |call: &mut Call<'_>| sleep(call.thread, deadline, Some(remaining));
        thread.set_restart(fallible::try_arc(again).map_err(|_| Errno::EINTR)?);
        Err(Errno::ERESTART_RESTARTBLOCK)
    })
}

/// As [`sleep`], until the time of day is `time_ns`, which may be set meanwhile.
fn sleep_until_time_of_day(thread: &Caller, time_ns: u64) -> SyscallResult {
    let deadline = move || Deadline::at(Clock::Realtime, time_ns);
    if deadline().is_over() {
        return Ok(0.into());
    }
    let thread = thread.clone();
    pending(async move {
        loop {
            let (changes, until_ns) = (clock_change::count(), deadline().moment_ns());
            let is_set = |watch: &Watch| {
                clock_change::watch(watch)?;
                Ok((clock_change::count() != changes).then_some(()))
            };
            match until(&thread, WaitKind::Interruptible, Some(until_ns), is_set).await {
                Ok(None) => return Ok(0),
                Ok(Some(())) => {}
                Err(Errno::ERESTARTSYS) if deadline().is_over() => return Ok(0),
                Err(Errno::ERESTARTSYS) => return Err(Errno::ERESTARTNOHAND),
                Err(error) => return Err(error),
            }
        }
    })
}

/// Reads a `struct itimerspec` or, with `unit_ns` 1000, a `struct itimerval`: interval, then value.
pub fn read_interval(space: &Space, address: usize, unit_ns: u64) -> TryResult<(u64, u64)> {
    let [a, b, c, d] = user::read_words(space, address)?;
    let time =
        |seconds, fraction: u64| timespec_ns(seconds, fraction.checked_mul(unit_ns).ok_or(Errno::EINVAL)?);
    Ok((time(a, b)?, time(c, d)?))
}

/// The words of a `struct itimerspec` or `struct itimerval`.
pub const fn interval_words(interval_ns: u64, value_ns: u64, unit_ns: u64) -> [u64; 4] {
    let [a, b] = timespec_words(interval_ns);
    let [c, d] = timespec_words(value_ns);
    [a, b / unit_ns, c, d / unit_ns]
}
