//! The spinlock of the competitors that have one: test and test-and-set.
#![allow(unsafe_code)] // A lock around a cell.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::side::Patience;

/// A value behind a spinlock, which gives the processor away after [`Patience::SPINS`] looks.
#[derive(Default)]
pub struct Spin<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the flag lets one thread at a time at the value.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    /// The value, unlocked.
    pub fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `f` on the value. `f` must not panic: the lock would stay taken.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut patience = Patience::new();
        while self.taken.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.taken.load(Ordering::Relaxed) {
                patience.wait();
            }
        }
        // SAFETY: the flag is ours until the store below.
        let result = f(unsafe { &mut *self.value.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}
