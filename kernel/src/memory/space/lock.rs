//! Who works on which addresses of a space: operations on disjoint ranges run in parallel, others one after another.

use alloc::collections::VecDeque;
use core::future::poll_fn;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};

use crate::sync::SpinLock;

/// The lock of one space. This form ignores the range: one operation at a time.
#[derive(Default)]
pub struct SpaceLock {
    held: AtomicBool,
    waiting: SpinLock<VecDeque<Waker>>,
}

/// The right to change the mappings and page-table entries of a range.
pub struct RangeGuard<'a> {
    lock: &'a SpaceLock,
}

impl SpaceLock {
    /// Locks a range if nobody works on an overlapping one.
    pub fn try_lock(&self, _range: Range<usize>) -> Option<RangeGuard<'_>> {
        let free = self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        free.then_some(RangeGuard { lock: self })
    }

    /// Waits until nobody works on an overlapping range, and locks it.
    pub async fn lock(&self, range: Range<usize>) -> RangeGuard<'_> {
        poll_fn(|context| {
            if let Some(guard) = self.try_lock(range.clone()) {
                return Poll::Ready(guard);
            }
            let mut waiting = self.waiting.lock();
            if waiting.try_reserve(1).is_ok() {
                waiting.push_back(context.waker().clone());
            } else {
                context.waker().wake_by_ref();
            }
            drop(waiting);
            // The holder may have left before the registration.
            match self.try_lock(range.clone()) {
                Some(guard) => Poll::Ready(guard),
                None => Poll::Pending,
            }
        })
        .await
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.held.store(false, Ordering::Release);
        // All of them: one that was registered and then got the lock after all leaves a stale entry, and must not take
        // another's wake with it.
        let woken = core::mem::take(&mut *self.lock.waiting.lock());
        woken.into_iter().for_each(Waker::wake);
    }
}
