//! Timers.

use crate::reactor;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::time::Instant;

/// Waits until `when`.
pub fn sleep_until(when: Instant) -> Sleep {
    Sleep { when: Some(when), key: None }
}

/// Waits for `duration`; for ever, if the clock does not go so far.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { when: Instant::now().checked_add(duration), key: None }
}

/// See [`sleep`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    /// `None`: never.
    when: Option<Instant>,
    key: Option<(Instant, u64)>,
}

impl Future for Sleep {
    type Output = ();

    /// # Panics
    /// If the process can have no reactor, for want of file descriptors.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(when) = self.when else { return Poll::Pending };
        if Instant::now() >= when {
            return Poll::Ready(());
        }
        let reactor = reactor::get().expect("no reactor");
        match self.key {
            Some(key) if reactor.refresh_timer(key, cx.waker()) => {}
            _ => self.key = Some(reactor.add_timer(when, cx.waker())),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(key), Ok(reactor)) = (self.key, reactor::get()) {
            reactor.remove_timer(key);
        }
    }
}

/// The output of `future`, unless it takes longer than `duration`; then it is dropped.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = core::pin::pin!(future);
    let mut limit = core::pin::pin!(sleep(duration));
    core::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        limit.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

/// Ticks every `period`, for the first time at once.
pub fn interval(period: Duration) -> Interval {
    Interval { next: Some(Instant::now()), period: period.max(Duration::from_nanos(1)) }
}

/// See [`interval`].
#[derive(Debug)]
pub struct Interval {
    /// `None`: never.
    next: Option<Instant>,
    period: Duration,
}

impl Interval {
    /// Waits for the next tick; returns when it was due. Ticks that nobody has waited for by the time that they are a
    /// period late are left out; the others keep their distance.
    pub async fn tick(&mut self) -> Instant {
        match self.next {
            Some(when) => sleep_until(when).await,
            None => core::future::pending().await,
        }
        let (due, now) = (self.next.unwrap_or_else(Instant::now), Instant::now());
        let late = now.saturating_duration_since(due).as_nanos() / self.period.as_nanos();
        let past = u32::try_from(late).ok().and_then(|late| self.period.checked_mul(late));
        let last = past.and_then(|past| due.checked_add(past)).unwrap_or(now);
        self.next = last.checked_add(self.period);
        due
    }

    /// How far apart its ticks are.
    pub fn period(&self) -> Duration {
        self.period
    }
}

/// A [`timeout`] has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time is up")
    }
}

impl core::error::Error for Elapsed {}
