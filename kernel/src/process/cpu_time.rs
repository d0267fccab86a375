//! Processor time: the clock of each thread, and what happens when such a clock has reached a moment.
//!
//! A clock of processor time only goes on while a thread of its process runs, so nobody sleeps until a moment on it:
//! each thread of a process that has alarms ends its stay in user mode when the first of them may be due
//! ([`plan`]), and looks ([`check`]). A process without alarms pays one load a turn.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::signal::{Information, Signal};

use crate::arch::time::now_ns;
use crate::call::caller::Caller;
use crate::error::Errno;
use crate::process::timers::{Expiry, Timer};
use crate::process::{Limits, Process, Resource, Thread};
use crate::sync::SpinLock;
use crate::time::NS_PER_SECOND;
use crate::{arch, signal};

/// A thread looks again no sooner than after so long, however short the intervals that a program asks for.
const LOOK_MIN_NS: u64 = 100_000;
/// And no later, when other threads move the same clock.
const LOOK_MAX_NS: u64 = 4_000_000;

/// The part of the processor time that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuClockKind {
    /// All of it.
    All,
    /// The part in user mode.
    User,
}

/// A clock of processor time.
#[derive(Clone)]
pub struct CpuClock {
    /// Whose.
    pub process: Weak<Process>,
    /// Only one thread's.
    pub thread: Option<Weak<Thread>>,
    pub kind: CpuClockKind,
}

impl CpuClock {
    /// The clock's time; `None` once its process or thread has gone.
    pub fn now_ns(&self) -> Option<u64> {
        let (user, system) = match &self.thread {
            Some(thread) => thread.upgrade()?.cpu_times(),
            None => self.process.upgrade()?.cpu_times(),
        };
        Some(if self.kind == CpuClockKind::User { user } else { user + system })
    }

    /// Whether it goes on while this thread runs, one of its process.
    fn is_charged_by(&self, thread: &Thread) -> bool {
        self.thread.as_ref().is_none_or(|own| core::ptr::eq(own.as_ptr(), thread))
    }
}

/// A call that sleeps until a moment on a clock of processor time.
pub struct CpuClockSleeper {
    pub caller: Caller,
    pub is_woken: AtomicBool,
}

/// The recipient of an expiry.
#[derive(Clone)]
pub enum CpuClockTarget {
    Timer(Arc<Timer>),
    Sleeper(Arc<CpuClockSleeper>),
}

impl CpuClockTarget {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Timer(own), Self::Timer(other)) => Arc::ptr_eq(own, other),
            (Self::Sleeper(own), Self::Sleeper(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }
}

struct CpuAlarm {
    clock: CpuClock,
    at_ns: u64,
    target: CpuClockTarget,
}

/// Timers on a process's processor time.
#[derive(Default)]
pub struct Alarms {
    is_armed: AtomicBool,
    list: SpinLock<Vec<CpuAlarm>>,
}

impl Alarms {
    /// None; `is_limited`: but there is a limit of processor time.
    pub const fn new(is_limited: bool) -> Self {
        Self { is_armed: AtomicBool::new(is_limited), list: SpinLock::new(Vec::new()) }
    }

    /// Whether there is anything to look at.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::Relaxed)
    }

    /// Forgets every alarm, at the end of the process.
    pub fn clear(&self) {
        let alarms = core::mem::take(&mut *self.list.lock());
        drop(alarms);
    }
}

fn is_limited(process: &Process) -> bool {
    process.limit(Resource::CpuTime).soft != Limits::INFINITY
}

/// Tells `target` when `clock` shows `at_ns`, instead of when it was to be told before; with `None` not at all.
///
/// # Errors
/// `ENOMEM`.
pub fn arm(clock: &CpuClock, at_ns: Option<u64>, target: &CpuClockTarget) -> Result<(), Errno> {
    // Nothing happens any more to the clock of a process that has gone.
    let Some(process) = clock.process.upgrade() else { return Ok(()) };
    let before = {
        let mut list = process.alarms().list.lock();
        let position = list.iter().position(|alarm| alarm.target.is(target));
        match (at_ns, position) {
            (Some(at_ns), Some(position)) => {
                list[position].at_ns = at_ns;
                None
            }
            (Some(at_ns), None) => {
                list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                push_reserved(&mut list, CpuAlarm { clock: clock.clone(), at_ns, target: target.clone() });
                None
            }
            (None, position) => position.map(|position| list.swap_remove(position)),
        }
    };
    drop(before);
    look_again(&process);
    Ok(())
}

/// Has every thread of a process work out anew when it has to look: an alarm or the limit has changed.
pub fn look_again(process: &Arc<Process>) {
    let is_armed = is_limited(process) || !process.alarms().list.lock().is_empty();
    process.alarms().is_armed.store(is_armed, Ordering::Relaxed);
    if !is_armed {
        return;
    }
    for thread in process.threads() {
        if thread.cpu() == Some(arch::cpu::id()) {
            plan(&thread);
        } else {
            thread.kick();
        }
    }
}

/// Makes a thread that runs on this CPU look when the first alarm may be due. Returns when its turn is over.
#[cold]
#[inline(never)]
pub fn plan(thread: &Thread) -> u64 {
    let turn_ns = thread.look_at_entity(|entity| entity.until_ns);
    let first = thread.process.alarms().is_armed().then(|| first_alarm_ns(thread)).flatten();
    let until_ns = match first {
        None => turn_ns,
        Some(left_ns) => {
            let is_alone = thread.process.thread_count() == 1;
            let left_ns = if is_alone { left_ns } else { left_ns.min(LOOK_MAX_NS) };
            turn_ns.min(now_ns().saturating_add(left_ns.max(LOOK_MIN_NS)))
        }
    };
    thread.look_until(until_ns);
    turn_ns
}

/// How far the nearest alarm is that this thread's running brings nearer.
fn first_alarm_ns(thread: &Thread) -> Option<u64> {
    let process = &thread.process;
    let limit = process.limit(Resource::CpuTime).soft;
    let limit_ns = (limit != Limits::INFINITY).then(|| {
        let (user, system) = process.cpu_times();
        limit.saturating_mul(NS_PER_SECOND).saturating_sub(user + system)
    });
    let list = process.alarms().list.lock();
    let alarms = list.iter().filter(|alarm| alarm.clock.is_charged_by(thread));
    let left = alarms.filter_map(|alarm| Some(alarm.at_ns.saturating_sub(alarm.clock.now_ns()?)));
    left.chain(limit_ns).min()
}

/// [`check`] and [`plan`].
#[cold]
#[inline(never)]
pub fn look(thread: &Arc<Thread>) -> u64 {
    check(thread);
    plan(thread)
}

/// Tells whoever waits for a moment that has come, and carries out the limit. A signal is about what `thread`
/// has used last, so it takes the signal if it can.
#[cold]
#[inline(never)]
pub fn check(thread: &Arc<Thread>) {
    let process = &thread.process;
    tell_due(process, Some(thread));
    if is_limited(process) {
        check_limit(thread);
    } else if process.alarms().list.lock().is_empty() {
        process.alarms().is_armed.store(false, Ordering::Relaxed);
    }
}

/// Tells whoever waits for a moment that has come.
pub(super) fn tell_due(process: &Arc<Process>, thread: Option<&Arc<Thread>>) {
    let mut index = 0;
    // Each alarm at most once, however short its interval.
    while let Some((target, overrun)) = next_due(process, &mut index) {
        match target {
            Some(CpuClockTarget::Timer(timer)) => timer.notify(overrun, thread),
            Some(CpuClockTarget::Sleeper(sleeper)) => {
                sleeper.is_woken.store(true, Ordering::Release);
                sleeper.caller.wake();
            }
            None => {}
        }
    }
}

/// Looks at the alarm of this index and says whom to tell; `None` when there are no more.
fn next_due(process: &Process, index: &mut usize) -> Option<(Option<CpuClockTarget>, i32)> {
    let mut list = process.alarms().list.lock();
    let alarm = list.get_mut(*index)?;
    let Some(now) = alarm.clock.now_ns() else {
        // Its thread has ended.
        let gone = list.swap_remove(*index);
        drop(list);
        drop(gone);
        return Some((None, 0));
    };
    if now < alarm.at_ns {
        *index += 1;
        return Some((None, 0));
    }
    let expiry = match &alarm.target {
        CpuClockTarget::Timer(timer) => timer.expire(now),
        CpuClockTarget::Sleeper(_) => Expiry { is_due: true, overrun: 0, next_ns: None },
    };
    let target = alarm.target.clone();
    match expiry.next_ns {
        Some(at_ns) => {
            alarm.at_ns = at_ns;
            *index += 1;
        }
        // The target keeps what is dropped here alive until the lock is released.
        None => drop(list.swap_remove(*index)),
    }
    Some((expiry.is_due.then_some(target), expiry.overrun))
}

/// `RLIMIT_CPU`: a signal for each second from the soft limit on, and the end at the hard one.
fn check_limit(thread: &Arc<Thread>) {
    let process = &thread.process;
    let limit = process.limit(Resource::CpuTime);
    let (user, system) = process.cpu_times();
    let used = (user + system) / NS_PER_SECOND;
    let signal = if used >= limit.hard {
        Signal::KILL
    } else if used >= limit.soft {
        let raised = crate::process::ResourceLimit { soft: limit.soft + 1, ..limit };
        // The change itself cannot fail.
        let _ = process.change_limits(|limits| {
            limits.set(Resource::CpuTime as u32, raised);
            Ok(())
        });
        Signal::XCPU
    } else {
        return;
    };
    // Only a queued realtime signal can be refused.
    let _ = signal::send_to_process_by(thread, Information::kernel(signal));
}
