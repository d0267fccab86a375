//! Waiting as a thread: try for a moment, then queue and park.

use core::cell::Cell;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll};
use std::thread;
use std::thread_local;
use std::time::{Duration, Instant};

use crate::epoch::Epoch;
use crate::error::{LockError, TimeoutError};
use crate::lock::RangeLock;
use crate::parker::Parker;
use crate::request::{Guard, Handle, RangeGuard, Request};
use crate::span::Span;

fn block_on<L: Handle>(
    request: Request<L>,
    deadline: Option<Instant>,
) -> Result<RangeGuard<L>, TimeoutError> {
    let request = match try_for_a_while(request, deadline) {
        Ok(outcome) => return Ok(outcome?),
        Err(request) => request,
    };
    let mut future = request.lock_async();
    if let Some(outcome) = future.arrive() {
        return Ok(outcome?);
    }
    let parker = Parker::current().map_err(LockError::from)?;
    let waker = parker.waker();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return Ok(outcome?);
        }
        if !parker.wait(deadline) {
            return Err(TimeoutError::TimedOut);
        }
    }
}

/// Tries to lock the range before the thread takes its place in the queue, where a hand-over costs a switch. Whoever
/// runs takes a hot range again and again meanwhile; nobody passes a thread once it is in the queue.
///
/// Gives the request back when it is time to queue.
fn try_for_a_while<L: Handle>(
    request: Request<L>,
    deadline: Option<Instant>,
) -> Result<Result<RangeGuard<L>, LockError>, Request<L>> {
    let mut round = 0;
    loop {
        match request.try_again() {
            Ok(Some(node)) => {
                if round > 0 {
                    PATIENCE.set((PATIENCE.get() * 2).min(ROUNDS_MAX));
                }
                return Ok(Ok(request.granted(node)));
            }
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
        round += 1;
        if round > PATIENCE.get() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            // It lasts longer here than it is worth to look.
            PATIENCE.set((PATIENCE.get() / 2).max(ROUNDS_MIN));
            return Err(request);
        }
        if round < ROUNDS_MIN {
            (0..8 << round).for_each(|_| core::hint::spin_loop());
        } else {
            // The holder may wait for this processor.
            thread::yield_now();
        }
    }
}

/// Attempts before a thread queues, at least: a few microseconds.
const ROUNDS_MIN: u32 = 5;
/// Attempts at most, most of them a yield apart.
const ROUNDS_MAX: u32 = 80;

thread_local! {
    /// How often this thread tries: more often where that succeeds.
    static PATIENCE: Cell<u32> = const { Cell::new(4 * ROUNDS_MIN) };
}

impl<L: Handle> Request<L> {
    /// Locks the range, parking the thread until that is possible. It tries for a while before it joins the queue,
    /// from where on nobody passes it.
    #[inline]
    pub fn lock(self) -> Result<RangeGuard<L>, LockError> {
        block_on(self, None).map_err(|error| match error {
            TimeoutError::Empty => LockError::Empty,
            // Without a deadline, none is missed.
            TimeoutError::OutOfMemory | TimeoutError::TimedOut => LockError::OutOfMemory,
        })
    }

    /// Locks the range, parking the thread until that is possible, for `timeout` at most.
    pub fn lock_timeout(self, timeout: Duration) -> Result<RangeGuard<L>, TimeoutError> {
        // A deadline that the clock cannot express never comes.
        block_on(self, Instant::now().checked_add(timeout))
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
    ) -> Result<Guard<'_, T, P, E>, TimeoutError> {
        self.request(range).lock_timeout(timeout)
    }
}
