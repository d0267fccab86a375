//! timerfd_create(2).
//!
//! How often a timer has expired is computed when somebody asks. A coroutine of the kernel sleeps until the next
//! expiry only to wake those who wait.

use alloc::sync::{Arc, Weak};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, IoBuffer, OpenFile};
use crate::memory::fallible;
use crate::sched;
use crate::sched::Priority;
use crate::sync::SpinLock;
use crate::time::{Clock, ClockBase, Sleep, sleep_until};
use crate::wait::clock_change;
use crate::wait::node::WaitNode;
use crate::wait::queue::{Events, WaitQueue, Watch};

/// Bytes of a count.
const BYTES: usize = size_of::<u64>();

/// A timer to wait for.
pub struct TimerFile {
    /// The clock it was made for.
    pub clock: Clock,
    state: SpinLock<TimerfdState>,
    queue: WaitQueue,
    /// By which the alarm hears that the time of day was set, for a timer of that clock.
    node: Option<Arc<WaitNode>>,
}

struct TimerfdState {
    /// The next expiry that has not been read, on the clock of `base`.
    next_ns: Option<u64>,
    /// The clock of the next expiry.
    base: ClockBase,
    /// With `TFD_TIMER_CANCEL_ON_SET`: how often the time of day had been set when it was asked for, or told.
    changes: Option<u64>,
    /// 0 for a timer that expires once.
    interval_ns: u64,
    /// The coroutine that wakes waiters.
    waker: Option<Waker>,
}

/// The setting of a timer: nanoseconds until it expires (0: not set) and between expiries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Until the next expiry.
    pub remaining_ns: u64,
    /// Between expiries.
    pub interval_ns: u64,
}

/// When a timer expires.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expiries {
    /// The next moment on the clock of `base`; none for a timer that is stopped.
    pub next_ns: Option<u64>,
    /// The clock of the next expiry.
    pub base: ClockBase,
    /// Between expiries; 0 for a timer that expires once.
    pub interval_ns: u64,
    /// Whether a read is to fail once the time of day has been set.
    pub cancels: bool,
}

impl TimerfdState {
    /// Whether it matters when the time of day is set.
    fn hears(&self) -> bool {
        self.base == ClockBase::Day && self.next_ns.is_some() || self.changes.is_some()
    }

    /// Whether the time of day was set since somebody was told.
    fn is_canceled(&self) -> bool {
        self.changes.is_some_and(|seen| seen != clock_change::count())
    }

    /// Notes that somebody is told. Returns whether there was something to tell.
    fn take_canceled(&mut self) -> bool {
        let is_canceled = self.is_canceled();
        if is_canceled {
            self.changes = Some(clock_change::count());
        }
        is_canceled
    }

    /// Expiries that have not been read.
    fn expiries(&self, now: u64) -> u64 {
        match self.next_ns {
            Some(next) if next <= now => 1 + (now - next).checked_div(self.interval_ns).unwrap_or(0),
            _ => 0,
        }
    }

    /// The first expiry after `now`.
    fn after(&self, now: u64) -> Option<u64> {
        let next = self.next_ns?;
        match self.expiries(now) {
            0 => Some(next),
            _ if self.interval_ns == 0 => None,
            count => Some(next.saturating_add(count.saturating_mul(self.interval_ns))),
        }
    }
}

impl TimerFile {
    /// A timer that is not set.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(clock: Clock) -> Result<Arc<Self>, Errno> {
        let state = SpinLock::new(TimerfdState {
            next_ns: None,
            base: ClockBase::default(),
            changes: None,
            interval_ns: 0,
            waker: None,
        });
        let node = if clock == Clock::Realtime { Some(WaitNode::new()?) } else { None };
        let timer = fallible::try_arc(Self { clock, state, queue: WaitQueue::new(), node })?;
        sched::spawn(Priority::KERNEL, TimerfdAlarm { timer: Arc::downgrade(&timer), sleep: None })?;
        Ok(timer)
    }

    /// The current setting.
    #[must_use]
    pub fn setting(&self) -> Setting {
        let state = self.state.lock();
        let now = state.base.now_ns();
        let remaining_ns = state.after(now).map_or(0, |next| next - now);
        Setting { remaining_ns, interval_ns: state.interval_ns }
    }

    /// Sets it. Returns what it was set to, and whether the time of day was set since somebody was told.
    pub fn set(&self, expiries: Expiries) -> (Setting, bool) {
        let before = self.setting();
        let mut state = self.state.lock();
        (state.next_ns, state.base, state.interval_ns) =
            (expiries.next_ns, expiries.base, expiries.interval_ns);
        let was_canceled = expiries.cancels && expiries.next_ns.is_some() && state.take_canceled();
        let changes = state.changes.unwrap_or_else(clock_change::count);
        state.changes = expiries.cancels.then_some(changes);
        let waker = state.waker.clone();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        (before, was_canceled)
    }
}

impl Drop for TimerFile {
    fn drop(&mut self) {
        if let Some(node) = &self.node {
            node.end();
        }
        // The coroutine finds that the timer is gone.
        if let Some(waker) = self.state.get_mut().waker.take() {
            waker.wake();
        }
    }
}

/// The coroutine that wakes waiters.
struct TimerfdAlarm {
    timer: Weak<TimerFile>,
    sleep: Option<Sleep>,
}

impl Future for TimerfdAlarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(timer) = self.timer.upgrade() else { return Poll::Ready(()) };
        loop {
            let hears = timer.state.lock().hears();
            let node = timer.node.as_ref().filter(|_| hears);
            let look_ns = node.and_then(|node| clock_change::watch_clock(node, context));
            let mut state = timer.state.lock();
            let now = state.base.now_ns();
            let old = state.waker.replace(context.waker().clone());
            let expired = state.expiries(now) > 0 || state.is_canceled();
            let next = state.next_ns.map(|next| state.base.moment_ns(next));
            let next = [next, look_ns].into_iter().flatten().min();
            drop(state);
            drop(old);
            if expired {
                // Told once; the read that takes the count wakes this again, however often the timer expires until
                // then.
                self.sleep = None;
                timer.queue.wake(Events::IN | Events::RDNORM);
                return Poll::Pending;
            }
            let mut sleep = next.map(sleep_until);
            let is_over = sleep.as_mut().is_some_and(|sleep| Pin::new(sleep).poll(context).is_ready());
            self.sleep = sleep;
            if !is_over {
                return Poll::Pending;
            }
        }
    }
}

impl File for TimerFile {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if buffer.remaining() < BYTES {
            return Err(Errno::EINVAL.into());
        }
        let mut state = self.state.lock();
        let now = state.base.now_ns();
        let count = state.expiries(now);
        if state.take_canceled() {
            // Expiries that nobody has read go with it, and those that would have followed.
            if count > 0 {
                state.next_ns = None;
            }
            if let Some(waker) = &state.waker {
                waker.wake_by_ref();
            }
            return Err(Errno::ECANCELED.into());
        }
        if count == 0 {
            return Err(TryError::WouldBlock);
        }
        buffer.copy_out(&count.to_ne_bytes())?;
        state.next_ns = state.after(now);
        if let (Some(_), Some(waker)) = (state.next_ns, &state.waker) {
            waker.wake_by_ref();
        }
        Ok(BYTES)
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.queue.watch_to_take(watch, events)?;
        }
        let state = self.state.lock();
        let expired = state.expiries(state.base.now_ns()) > 0 || state.is_canceled();
        drop(state);
        Ok(if expired { Events::IN | Events::RDNORM } else { Events::empty() })
    }

    fn name(&self) -> &'static str {
        "anon_inode:[timerfd]"
    }
}
