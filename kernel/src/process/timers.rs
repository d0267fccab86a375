//! Timers that send signals: setitimer(2), alarm(2), timer_create(2).
//!
//! A timer that is armed has a coroutine, which sleeps until the next expiry, sends the signal and sleeps again.
//! Setting the timer changes its state and wakes the coroutine; disarming ends it. A timer on a clock of processor time
//! has none: [`cpu_time`] looks after it.
//!
//! A timer with an interval goes on when its signal is delivered, and then over all expiries that it has missed in one
//! step: they are its overrun. So a short interval costs no more than the program takes in.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use heddle_kernel_core::signal::{Detail, Information, Signal};

use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::cpu_time::{CpuClock, CpuClockTarget};
use crate::process::{Process, Thread, cpu_time};
use crate::sched::Priority;
use crate::sync::SpinLock;
use crate::time::{Clock, ClockBase, sleep_until};
use crate::wait::clock_change::watch_clock;
use crate::wait::node::WaitNode;
use crate::{sched, signal};

/// The action of a timer that expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerNotice {
    /// Nothing.
    None,
    /// A signal of the kernel to the process: setitimer(2).
    Plain(Signal),
    /// A signal with a value to the process, or to one thread: timer_create(2).
    Event {
        /// Which signal.
        signal: Signal,
        /// `sigev_value`.
        value: u64,
        /// The thread of `SIGEV_THREAD_ID`, else 0.
        thread: i32,
    },
}

/// The clock of a timer.
#[derive(Clone)]
pub enum TimerClock {
    /// Time that goes on by itself.
    Wall(Clock),
    /// Processor time.
    Cpu(CpuClock),
}

/// The result of [`Timer::expire`].
pub struct Expiry {
    /// Whether there is somebody to tell.
    pub is_due: bool,
    /// How many expiries were missed.
    pub overrun: i32,
    /// When the next one is.
    pub next_ns: Option<u64>,
}

struct TimerState {
    /// On the clock of `base` or that of processor time; `None` when disarmed.
    deadline_ns: Option<u64>,
    /// The clock of the deadline, for a timer on time that goes on by itself.
    base: ClockBase,
    interval_ns: u64,
    /// The coroutine's, from its first poll to its end.
    waker: Option<Waker>,
    has_coroutine: bool,
    overrun: i32,
    /// Its signal was sent and has not been delivered.
    is_posted: bool,
    /// The coroutine does nothing before.
    not_before_ns: u64,
}

/// How long a timer whose signal is ignored waits at least for its next expiry, and one on processor time.
const GAP_NS: u64 = 1_000_000;
/// After so long a signal that was sent may have been lost to a lack of memory, and is sent again.
const RESEND_NS: u64 = 1_000_000_000;

impl TimerState {
    /// The time on the clock of the deadline. It stands still for a process that has gone.
    fn now_ns(&self, clock: &TimerClock) -> u64 {
        match clock {
            TimerClock::Wall(_) => self.base.now_ns(),
            TimerClock::Cpu(clock) => clock.now_ns().unwrap_or(0),
        }
    }

    /// Goes on to the first expiry after `now`; the number of those that were passed over, without the one that is due.
    fn forward(&mut self, now: u64) -> u64 {
        let Some(deadline) = self.deadline_ns.filter(|&deadline| deadline <= now) else { return 0 };
        let Some(missed) = (now - deadline).checked_div(self.interval_ns) else {
            self.deadline_ns = None;
            return 0;
        };
        self.deadline_ns = Some(deadline.saturating_add((missed + 1).saturating_mul(self.interval_ns)));
        missed
    }
}

/// A timer of a process.
pub struct Timer {
    process: Weak<Process>,
    id: i32,
    /// The clock it was made for.
    clock: TimerClock,
    notice: TimerNotice,
    state: SpinLock<TimerState>,
}

/// The timers of a process.
#[derive(Default)]
pub struct Timers {
    /// `ITIMER_REAL`.
    pub real: Option<Arc<Timer>>,
    /// `ITIMER_VIRTUAL`.
    pub user_time: Option<Arc<Timer>>,
    /// `ITIMER_PROF`.
    pub all_time: Option<Arc<Timer>>,
    /// Those of timer_create(2), by number.
    pub created: Vec<Option<Arc<Timer>>>,
}

impl Timers {
    /// The place of a timer of setitimer(2).
    pub const fn of_interval(&mut self, which: u32) -> &mut Option<Arc<Timer>> {
        match which {
            linux_raw_sys::general::ITIMER_VIRTUAL => &mut self.user_time,
            linux_raw_sys::general::ITIMER_PROF => &mut self.all_time,
            _ => &mut self.real,
        }
    }

    pub const fn new() -> Self {
        Self { real: None, user_time: None, all_time: None, created: Vec::new() }
    }
}

impl Timer {
    pub fn new(
        process: &Arc<Process>,
        id: i32,
        clock: TimerClock,
        notice: TimerNotice,
    ) -> Result<Arc<Self>, Errno> {
        let state = TimerState {
            deadline_ns: None,
            base: ClockBase::default(),
            interval_ns: 0,
            waker: None,
            has_coroutine: false,
            overrun: 0,
            is_posted: false,
            not_before_ns: 0,
        };
        let process = Arc::downgrade(process);
        fallible::try_arc(Self { process, id, clock, notice, state: SpinLock::new(state) })
    }

    /// The clock it was made for.
    pub const fn clock(&self) -> &TimerClock {
        &self.clock
    }

    /// Interval and time left in nanoseconds; 0 left when disarmed.
    pub fn get(&self) -> (u64, u64) {
        let state = self.state.lock();
        let now = state.now_ns(&self.clock);
        let left = state.deadline_ns.map_or(0, |deadline| match now.checked_sub(deadline) {
            Some(late) if state.interval_ns > 0 => state.interval_ns - late % state.interval_ns,
            // A timer that is due and whose coroutine has not run yet is not disarmed.
            _ => deadline.saturating_sub(now).max(1),
        });
        (state.interval_ns, left)
    }

    /// How often it expired since its last signal was delivered.
    pub fn overrun(&self) -> i32 {
        self.state.lock().overrun
    }

    /// Sets it to an absolute time of its clock, or to so long from now; 0 disarms it. Returns what [`Timer::get`] said
    /// before.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn set(
        self: &Arc<Self>,
        value_ns: u64,
        is_absolute: bool,
        interval_ns: u64,
    ) -> Result<(u64, u64), Errno> {
        let before = self.get();
        match &self.clock {
            TimerClock::Wall(clock) => {
                let base = ClockBase::of(*clock, is_absolute && value_ns != 0);
                self.arm(deadline_ns(base, value_ns, is_absolute), base, interval_ns)?;
            }
            TimerClock::Cpu(clock) => self.arm_cpu(clock, value_ns, is_absolute, interval_ns)?,
        }
        Ok(before)
    }

    fn arm_cpu(
        self: &Arc<Self>,
        clock: &CpuClock,
        value_ns: u64,
        is_absolute: bool,
        interval_ns: u64,
    ) -> Result<(), Errno> {
        let zero = if is_absolute { 0 } else { clock.now_ns().unwrap_or(0) };
        let deadline_ns = (value_ns != 0).then(|| zero.saturating_add(value_ns));
        {
            let mut state = self.state.lock();
            (state.deadline_ns, state.interval_ns, state.overrun) = (deadline_ns, interval_ns, 0);
            (state.is_posted, state.not_before_ns) = (false, 0);
        }
        cpu_time::arm(clock, deadline_ns, &CpuClockTarget::Timer(self.clone())).inspect_err(|_| {
            self.state.lock().deadline_ns = None;
        })?;
        if let Some(process) = clock.process.upgrade() {
            cpu_time::tell_due(&process, None);
        }
        Ok(())
    }

    fn arm(
        self: &Arc<Self>,
        deadline_ns: Option<u64>,
        base: ClockBase,
        interval_ns: u64,
    ) -> Result<(), Errno> {
        let may_follow = matches!(self.clock, TimerClock::Wall(Clock::Realtime));
        let node = if may_follow && deadline_ns.is_some() { Some(WaitNode::new()?) } else { None };
        let (needs_coroutine, waker) = {
            let mut state = self.state.lock();
            (state.deadline_ns, state.base) = (deadline_ns, base);
            state.interval_ns = interval_ns;
            state.overrun = 0;
            (state.is_posted, state.not_before_ns) = (false, 0);
            let needs_coroutine = deadline_ns.is_some() && !state.has_coroutine;
            state.has_coroutine |= needs_coroutine;
            (needs_coroutine, state.waker.clone())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        if needs_coroutine {
            let spawned = sched::spawn(Priority::KERNEL, run(self.clone(), node));
            spawned.inspect_err(|_| {
                let mut state = self.state.lock();
                (state.has_coroutine, state.deadline_ns) = (false, None);
            })?;
        }
        Ok(())
    }

    /// One expiry of a timer on processor time, unless it has been set anew: sets the next deadline.
    pub fn expire(&self, now: u64) -> Expiry {
        let mut state = self.state.lock();
        if state.deadline_ns.is_none_or(|deadline| deadline > now) {
            return Expiry { is_due: false, overrun: 0, next_ns: state.deadline_ns };
        }
        state.overrun = i32::try_from(state.forward(now)).unwrap_or(i32::MAX);
        let next_ns = state.deadline_ns.map(|next| next.max(now.saturating_add(GAP_NS)));
        Expiry { is_due: true, overrun: state.overrun, next_ns }
    }

    /// Sends the signal of a timer that is due. One with an interval goes on when that is delivered.
    fn post(&self) {
        let is_ignored = self.is_ignored();
        {
            let mut state = self.state.lock();
            let (now, monotonic) = (state.base.now_ns(), now_ns());
            let Some(deadline) = state.deadline_ns.filter(|&deadline| deadline <= now) else { return };
            if state.interval_ns == 0 {
                (state.deadline_ns, state.overrun) = (None, 0);
            } else if is_ignored {
                state.forward(now);
                state.not_before_ns = monotonic.saturating_add(GAP_NS);
            } else {
                state.is_posted = true;
                state.not_before_ns = state.base.moment_ns(deadline).max(monotonic).saturating_add(RESEND_NS);
            }
        }
        self.notify(0, None);
    }

    /// Whether nobody would be told.
    fn is_ignored(&self) -> bool {
        let signal = match self.notice {
            TimerNotice::None => return true,
            TimerNotice::Plain(signal) | TimerNotice::Event { signal, .. } => signal,
        };
        let process = self.process.upgrade();
        process.is_none_or(|process| process.actions().lock().get(signal).ignores(signal))
    }

    /// Its signal is delivered: goes on, and says how many expiries the signal stands for besides its own.
    fn delivered(&self) -> Option<i32> {
        let waker = {
            let mut state = self.state.lock();
            if !core::mem::replace(&mut state.is_posted, false) {
                return None;
            }
            let now = state.now_ns(&self.clock);
            state.overrun = i32::try_from(state.forward(now)).unwrap_or(i32::MAX);
            state.not_before_ns = 0;
            state.waker.clone()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(self.overrun())
    }

    /// Does what the timer is for. A signal to the process is best taken by `runner`, whose time it is about.
    pub fn notify(&self, overrun: i32, runner: Option<&Arc<Thread>>) {
        let Some(process) = self.process.upgrade() else { return };
        let send_to_process = |information| match runner {
            Some(runner) => signal::send_to_process_by(runner, information),
            None => signal::send_to_process(&process, information),
        };
        // A timer's signal that is pending already, or finds no room, is what overruns are for.
        let _ = match self.notice {
            TimerNotice::None => Ok(()),
            TimerNotice::Plain(signal) => send_to_process(Information::kernel(signal)),
            TimerNotice::Event { signal, value, thread } => {
                let detail = Detail::Timer { id: self.id, overrun, value };
                let code = linux_raw_sys::general::SI_TIMER;
                let information = Information { signal, code, errno: 0, detail };
                match crate::process::table::thread(thread) {
                    Some(target) if thread != 0 => signal::send_to_thread(&target, information),
                    _ => send_to_process(information),
                }
            }
        };
    }

    /// The coroutine's poll: `Ready` when the timer is disarmed. By `node` it hears of settings of its clock.
    fn poll(
        &self,
        context: &mut Context<'_>,
        sleep: &mut Option<crate::time::Sleep>,
        node: Option<&Arc<WaitNode>>,
    ) -> Poll<()> {
        loop {
            let is_of_day = self.state.lock().base == ClockBase::Day;
            let look_ns = node.filter(|_| is_of_day).and_then(|node| watch_clock(node, context));
            let deadline = {
                let mut state = self.state.lock();
                let Some(deadline) = state.deadline_ns else {
                    (state.has_coroutine, state.waker) = (false, None);
                    return Poll::Ready(());
                };
                state.waker.get_or_insert_with(|| context.waker().clone());
                let moment = state.base.moment_ns(deadline).max(state.not_before_ns);
                look_ns.map_or(moment, |look| look.min(moment))
            };
            *sleep = None;
            let next = sleep.insert(sleep_until(deadline));
            if Pin::new(next).poll(context).is_pending() {
                return Poll::Pending;
            }
            self.post();
        }
    }
}

async fn run(timer: Arc<Timer>, node: Option<Arc<WaitNode>>) {
    let mut sleep = None;
    core::future::poll_fn(|context| timer.poll(context, &mut sleep, node.as_ref())).await;
    if let Some(node) = node {
        node.end();
    }
}

/// A signal is about to be delivered: its timer, if it is one's, goes on.
pub fn delivered(process: &Process, mut information: Information) -> Information {
    if let Detail::Timer { id, overrun, .. } = &mut information.detail {
        let created = usize::try_from(*id).unwrap_or(usize::MAX);
        let timer = process.timers().created.get(created).cloned().flatten();
        if let Some(missed) = timer.and_then(|timer| timer.delivered()) {
            *overrun = missed;
        }
    } else if information.signal == Signal::ALRM {
        let timer = process.timers().real.clone();
        timer.and_then(|timer| timer.delivered());
    }
    information
}

/// When a timer that was set to `value_ns` expires, on the clock of `base`: an absolute time, or so long from now. 0
/// disarms.
fn deadline_ns(base: ClockBase, value_ns: u64, is_absolute: bool) -> Option<u64> {
    let start = if is_absolute { 0 } else { base.now_ns() };
    (value_ns != 0).then(|| start.saturating_add(value_ns))
}

/// Ends every timer; with `keep_own`, as `execve` does, only those of timer_create(2).
pub(super) fn clear(process: &Process, keep_own: bool) {
    let (own, created) = {
        let mut timers = process.timers();
        let own = if keep_own {
            [None, None, None]
        } else {
            [timers.real.take(), timers.user_time.take(), timers.all_time.take()]
        };
        (own, core::mem::take(&mut timers.created))
    };
    for timer in own.iter().chain(&created).flatten() {
        // Disarming needs no memory.
        let _ = timer.set(0, false, 0);
    }
}

/// Nothing of a process's timers outlives it.
pub(super) fn process_ended(process: &Process) {
    clear(process, false);
    process.alarms().clear();
}

/// Removes the timers that belong to a thread at its end.
pub(super) fn thread_ended(thread: &Thread) {
    thread.forget_restart();
}
