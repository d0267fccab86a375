//! Waiting as a thread: spin a moment, then park.

use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};
use std::thread_local;
use std::time::{Duration, Instant};

use crate::epoch::Epoch;
use crate::lock::{LockError, RangeLock};
use crate::request::{Guard, Handle, LockFuture, RangeGuard, Request};
use crate::span::Span;

/// Looks at the flag before a thread parks: about as long as a short critical section elsewhere takes.
const SPINS: u32 = 100;

/// A thread that waits for a range.
struct Parker {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

thread_local! {
    static PARKER: Arc<Parker> =
        Arc::new(Parker { thread: thread::current(), woken: AtomicBool::new(false) });
}

impl Parker {
    /// The running thread's own, also while its locals are torn down.
    fn current() -> Arc<Self> {
        PARKER
            .try_with(Arc::clone)
            .unwrap_or_else(|_| Arc::new(Self { thread: thread::current(), woken: AtomicBool::new(false) }))
    }

    /// Waits for a wake; `false` if the deadline came first.
    fn wait(&self, deadline: Option<Instant>) -> bool {
        for _ in 0..SPINS {
            if self.woken.swap(false, Ordering::Acquire) {
                return true;
            }
            core::hint::spin_loop();
        }
        while !self.woken.swap(false, Ordering::Acquire) {
            match deadline {
                None => thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    thread::park_timeout(left);
                }
            }
        }
        true
    }
}

fn block_on<L: Handle>(
    mut future: LockFuture<L>,
    deadline: Option<Instant>,
) -> Result<RangeGuard<L>, LockError> {
    if let Some(outcome) = future.arrive() {
        return outcome;
    }
    let parker = Parker::current();
    let waker = Waker::from(parker.clone());
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
