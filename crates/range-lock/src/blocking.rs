//! Waiting as a thread: spin a moment, then park.

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::epoch::Epoch;
use crate::lock::{LockError, RangeLock};
use crate::parker::Parker;
use crate::request::{Guard, Handle, LockFuture, RangeGuard, Request};
use crate::span::Span;

fn block_on<L: Handle>(
    mut future: LockFuture<L>,
    deadline: Option<Instant>,
) -> Result<RangeGuard<L>, LockError> {
    if let Some(outcome) = future.arrive() {
        return outcome;
    }
    let parker = Parker::current()?;
    let waker = parker.waker();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return outcome;
        }
        if !parker.wait(deadline) {
            return Err(LockError::TimedOut);
        }
    }
}

impl<L: Handle> Request<L> {
    /// Locks the range, parking the thread until that is possible.
    #[inline]
    pub fn lock(self) -> Result<RangeGuard<L>, LockError> {
        block_on(self.lock_async(), None)
    }

    /// Locks the range, parking the thread until that is possible, for `timeout` at most.
    pub fn lock_timeout(self, timeout: Duration) -> Result<RangeGuard<L>, LockError> {
        // A deadline that the clock cannot express never comes.
        block_on(self.lock_async(), Instant::now().checked_add(timeout))
    }
}

impl<T: Ord + Copy, P: Copy + Default, E: Epoch> RangeLock<T, P, E> {
    /// Locks `range` exclusively, parking the thread until that is possible.
    #[inline]
    pub fn lock(&self, range: impl Into<Span<T>>) -> Result<Guard<'_, T, P, E>, LockError> {
        self.request(range).lock()
    }

    /// Locks `range` shared, parking the thread until that is possible.
    pub fn lock_shared(&self, range: impl Into<Span<T>>) -> Result<Guard<'_, T, P, E>, LockError> {
        self.request(range).shared().lock()
    }

    /// Locks `range` exclusively, parking the thread until that is possible, for `timeout` at most.
    pub fn lock_timeout(
        &self,
        range: impl Into<Span<T>>,
        timeout: Duration,
    ) -> Result<Guard<'_, T, P, E>, LockError> {
        self.request(range).lock_timeout(timeout)
    }
}
