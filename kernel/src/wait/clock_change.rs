//! Setting the time of day, of which everybody hears who waits for a moment of it.
//!
//! A waiter reads the count, computes its moment on the monotonic clock, registers, and then looks whether the count is
//! still the same: so no change is missed.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Context;

use crate::error::Errno;
use crate::time::{Clock, now_ns};
use crate::wait::node::WaitNode;
use crate::wait::queue::{Events, WaitQueue, Watch};

static CHANGES: AtomicU64 = AtomicU64::new(0);
static WAITERS: WaitQueue = WaitQueue::new();

/// Sets the time of day.
pub fn set_realtime(time_ns: u64) {
    Clock::set_realtime(time_ns);
    CHANGES.fetch_add(1, Ordering::Release);
    WAITERS.wake(Events::IN);
}

/// How often it was set.
#[must_use]
pub fn count() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// Has a coroutine of the kernel, which is polled with this context, hear of the next change by its node. Returns when
/// it has to look by itself, for lack of memory to hear of it.
pub fn watch_clock(node: &Arc<WaitNode>, context: &Context<'_>) -> Option<u64> {
    const PAUSE_NS: u64 = 10_000_000;
    node.set_waker(context.waker());
    watch(&node.begin()).is_err().then(|| now_ns().saturating_add(PAUSE_NS))
}

/// Registers a waiter for the next change.
///
/// # Errors
/// `ENOMEM`.
pub fn watch(watch: &Watch) -> Result<(), Errno> {
    WAITERS.watch(watch, Events::IN)
}
