//! setitimer(2), alarm(2), timer_create(2) and their relatives.

use alloc::sync::Arc;
use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::signal::Signal;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::process::Process;
use crate::process::cpu_time::{CpuClock, CpuClockKind};
use crate::process::timers::{Timer, TimerClock, TimerNotice};
use crate::syscall::time::clock::{interval_words, read_interval, timer_clock};
use crate::syscall::{Call, SyscallResult, user};
use crate::time::{Clock, NS_PER_SECOND};

const US_NS: u64 = 1000;
/// The most timers that a process may create.
const TIMERS_MAX: usize = 1024;

/// The timer of alarm(2) and `ITIMER_REAL`, made when first needed.
fn real_timer(process: &Arc<Process>) -> Result<Arc<Timer>, Errno> {
    interval_timer(process, linux::ITIMER_REAL)
}

/// A timer of setitimer(2), made when first needed.
fn interval_timer(process: &Arc<Process>, which: u32) -> Result<Arc<Timer>, Errno> {
    let cpu = |kind| TimerClock::Cpu(CpuClock { process: Arc::downgrade(process), thread: None, kind });
    let (clock, signal) = match which {
        linux::ITIMER_REAL => (TimerClock::Wall(Clock::Monotonic), Signal::ALRM),
        linux::ITIMER_VIRTUAL => (cpu(CpuClockKind::User), Signal::VTALRM),
        linux::ITIMER_PROF => (cpu(CpuClockKind::All), Signal::PROF),
        _ => return Err(Errno::EINVAL),
    };
    let mut timers = process.timers();
    let place = timers.of_interval(which);
    if let Some(timer) = place {
        return Ok(timer.clone());
    }
    let timer = Timer::new(process, 0, clock, TimerNotice::Plain(signal))?;
    Ok(place.insert(timer).clone())
}

/// alarm(2).
pub fn alarm(call: &mut Call<'_>) -> SyscallResult {
    let timer = real_timer(&call.thread.process)?;
    let (_, left) = timer.set(u64::from(call.uint(0)) * NS_PER_SECOND, false, 0)?;
    Ok((left.div_ceil(NS_PER_SECOND) as usize).into())
}

/// setitimer(2).
pub fn setitimer(call: &mut Call<'_>) -> SyscallResult {
    let timer = interval_timer(&call.thread.process, call.uint(0))?;
    let space = call.thread.space();
    let (interval, value) = match call.word(1) {
        0 => (0, 0),
        address => read_interval(&space, address, US_NS)?,
    };
    if call.word(2) != 0 {
        let (interval, left) = timer.get();
        user::write_words(&space, call.word(2), &interval_words(interval, left, US_NS))?;
    }
    timer.set(value, false, interval)?;
    Ok(0.into())
}

/// getitimer(2).
pub fn getitimer(call: &mut Call<'_>) -> SyscallResult {
    let (interval, left) = interval_timer(&call.thread.process, call.uint(0))?.get();
    user::write_words(&call.thread.space(), call.word(1), &interval_words(interval, left, US_NS))?;
    Ok(0.into())
}

/// timer_create(2).
pub fn timer_create(call: &mut Call<'_>) -> SyscallResult {
    let clock = timer_clock(call.thread, call.int(0))?;
    let space = call.thread.space();
    let event = match call.word(1) {
        0 => None,
        address => Some(user::read_words::<3>(&space, address)?),
    };
    let process = &call.thread.process;
    let mut timers = process.timers();
    let free = timers.created.iter().position(Option::is_none);
    let id = free.unwrap_or(timers.created.len());
    if id >= TIMERS_MAX {
        return Err(Errno::EAGAIN.into());
    }
    let notice = notice(call, event, id as u64)?;
    let timer = Timer::new(process, id as i32, clock, notice)?;
    user::write_int(&space, call.word(2), id as u32)?;
    if id == timers.created.len() {
        timers.created.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        push_reserved(&mut timers.created, None);
    }
    timers.created[id] = Some(timer);
    Ok(0.into())
}

/// Reads a `struct sigevent`: value, signal and kind, thread.
fn notice(call: &Call<'_>, event: Option<[u64; 3]>, id: u64) -> Result<TimerNotice, Errno> {
    let Some([value, kind, thread]) = event else {
        return Ok(TimerNotice::Event { signal: Signal::ALRM, value: id, thread: 0 });
    };
    let signal = Signal::new(kind as i32);
    match (kind >> 32) as u32 {
        linux::SIGEV_NONE => Ok(TimerNotice::None),
        linux::SIGEV_SIGNAL | linux::SIGEV_THREAD => {
            Ok(TimerNotice::Event { signal: signal.ok_or(Errno::EINVAL)?, value, thread: 0 })
        }
        linux::SIGEV_THREAD_ID => {
            let thread = call.thread.process.named(thread as i32);
            let target = crate::process::table::thread(thread).ok_or(Errno::EINVAL)?;
            if !Arc::ptr_eq(&target.process, &call.thread.process) {
                return Err(Errno::EINVAL);
            }
            Ok(TimerNotice::Event { signal: signal.ok_or(Errno::EINVAL)?, value, thread })
        }
        _ => Err(Errno::EINVAL),
    }
}

fn created(call: &Call<'_>) -> Result<Arc<Timer>, Errno> {
    let index = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    let timers = call.thread.process.timers();
    timers.created.get(index).cloned().flatten().ok_or(Errno::EINVAL)
}

/// timer_settime(2).
pub fn timer_settime(call: &mut Call<'_>) -> SyscallResult {
    let space = call.thread.space();
    if call.word(2) == 0 {
        return Err(Errno::EINVAL.into());
    }
    let (interval, value) = read_interval(&space, call.word(2), 1)?;
    let timer = created(call)?;
    if call.word(3) != 0 {
        let (interval, left) = timer.get();
        user::write_words(&space, call.word(3), &interval_words(interval, left, 1))?;
    }
    let is_absolute = call.uint(1) & linux::TIMER_ABSTIME != 0;
    let value = match timer.clock() {
        TimerClock::Wall(clock) if is_absolute => call.thread.clock_moment(*clock, value),
        _ => value,
    };
    timer.set(value, is_absolute, interval)?;
    Ok(0.into())
}

/// timer_gettime(2).
pub fn timer_gettime(call: &mut Call<'_>) -> SyscallResult {
    let (interval, left) = created(call)?.get();
    user::write_words(&call.thread.space(), call.word(1), &interval_words(interval, left, 1))?;
    Ok(0.into())
}

/// timer_getoverrun(2).
pub fn timer_getoverrun(call: &mut Call<'_>) -> SyscallResult {
    Ok((created(call)?.overrun() as usize).into())
}

/// timer_delete(2).
pub fn timer_delete(call: &mut Call<'_>) -> SyscallResult {
    let timer = created(call)?;
    let removed = {
        let mut timers = call.thread.process.timers();
        timers.created.get_mut(call.int(0) as usize).and_then(Option::take)
    };
    drop(removed);
    timer.set(0, false, 0)?;
    Ok(0.into())
}
