//! Threads for what blocks.

use crate::task::{Failure, JoinError};
use crate::wait::oneshot;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Most threads at a time; what comes beyond waits for one.
const THREADS_MAX: usize = 512;
/// A thread that has had nothing to do for this long ends.
const IDLE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

struct Pool {
    queue: VecDeque<Work>,
    threads: usize,
    /// How many of them wait for work.
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { queue: VecDeque::new(), threads: 0, idle: 0 });
static HAS_WORK: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the pool during a fork.
#[cfg(feature = "scheduler")]
pub(crate) fn lock() -> impl Sized + 'static {
    pool()
}

/// In a forked child, where the threads are gone; what waited for one still does.
#[cfg(feature = "scheduler")]
pub(crate) fn start_anew() {
    let mut pool = pool();
    (pool.threads, pool.idle) = (0, 0);
}

/// Runs `work`, which may block, on a thread that runs no coroutines, in parallel to them. Dropping the handle leaves
/// it to itself: what blocks cannot be aborted.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> BlockingHandle<T> {
    let (send, receive) = oneshot::channel();
    let work = move || {
        let result = catch_unwind(AssertUnwindSafe(work));
        // Nobody may want it; then its drop may panic, on this thread.
        let result = result.map_err(|payload| JoinError(Failure::Panicked(Box::new(payload))));
        crate::foreign::contain(|| drop(send.send(result)));
    };
    let mut pool = pool();
    pool.queue.push_back(Box::new(work));
    let needs_thread = pool.idle < pool.queue.len() && pool.threads < THREADS_MAX;
    pool.threads += usize::from(needs_thread);
    drop(pool);
    HAS_WORK.notify_one();
    if needs_thread && thread::Builder::new().name("heddle-blocking".into()).spawn(serve).is_err() {
        // The threads that there are come to it. If there are none, its handle tells that it was cancelled.
        lose_thread();
    }
    BlockingHandle(receive)
}

#[cold]
fn lose_thread() {
    let mut pool = pool();
    pool.threads -= 1;
    let lost = if pool.threads == 0 { core::mem::take(&mut pool.queue) } else { VecDeque::new() };
    drop(pool);
    drop(lost);
}

fn serve() {
    let mut pool = pool();
    loop {
        if let Some(work) = pool.queue.pop_front() {
            drop(pool);
            work();
            pool = self::pool();
            continue;
        }
        pool.idle += 1;
        let (woken, waited) = HAS_WORK.wait_timeout(pool, IDLE).unwrap_or_else(PoisonError::into_inner);
        pool = woken;
        pool.idle -= 1;
        if waited.timed_out() && pool.queue.is_empty() {
            pool.threads -= 1;
            return;
        }
    }
}

/// See [`spawn_blocking`]: a future of what the work returns, or of its panic.
#[must_use = "the work is done by itself; use `detach` to say that its result is not wanted"]
pub struct BlockingHandle<T>(oneshot::Receiver<Result<T, JoinError>>);

impl<T> BlockingHandle<T> {
    /// Leaves the work to itself.
    pub fn detach(self) {}
}

impl<T> Future for BlockingHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        let received = Pin::new(&mut self.0).poll(cx);
        received.map(|result| result.unwrap_or(Err(JoinError(Failure::Cancelled))))
    }
}

impl<T> fmt::Debug for BlockingHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingHandle").finish_non_exhaustive()
    }
}
