//! Calling what an executor gave: wakers run, and drop, code of somebody else's.

use core::task::Waker;

/// Wakers taken at once.
const BATCH: usize = if cfg!(heddle_loom) { 1 } else { 8 };

/// A few wakers, to be called when no pin is held. Woken on drop: a comparison of keys may unwind while they are
/// collected.
#[derive(Default)]
pub(crate) struct Batch {
    wakers: [Option<Waker>; BATCH],
    count: usize,
    /// There are no more to collect.
    pub(crate) is_last: bool,
}

impl Batch {
    /// Adds a waker, if there is one and room for it.
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        if let (Some(place), Some(waker)) = (self.wakers.get_mut(self.count), waker) {
            *place = Some(waker);
            self.count += 1;
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == BATCH
    }

    /// Wakes all; whether there are no more to collect.
    pub(crate) fn wake(mut self) -> bool {
        self.each(Waker::wake);
        self.is_last
    }

    /// Drops all; whether there are no more to collect.
    pub(crate) fn clear(mut self) -> bool {
        self.each(drop);
        self.is_last
    }

    fn each(&mut self, call: fn(Waker)) {
        self.wakers.iter_mut().filter_map(Option::take).for_each(|waker| contained(|| call(waker)));
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.each(Waker::wake);
    }
}

/// Runs code of an executor's. A panic of it ends here: what the lock owes to others comes first, and unwinding out
/// of a guard's drop would end the program if it was unwinding before.
#[cfg(all(feature = "std", not(heddle_loom)))]
pub(crate) fn contained(run: impl FnOnce()) {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    if let Err(payload) = catch_unwind(AssertUnwindSafe(run))
        && let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        // A payload whose drop panics with one of that kind could go on for ever.
        core::mem::forget(payload);
    }
}

/// Runs code of an executor's. Without `std` there is no way to contain a panic, which most such programs end at.
#[cfg(not(all(feature = "std", not(heddle_loom))))]
pub(crate) fn contained(run: impl FnOnce()) {
    run();
}
