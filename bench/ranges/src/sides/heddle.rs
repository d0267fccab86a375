//! This project's lock.
#![allow(unsafe_code)] // The raw interface: workloads keep guards without lifetimes.

use heddle_range_lock::{RangeLock, RawGuard};

use crate::side::Side;

/// [`RangeLock`] through its raw interface.
pub struct Heddle(RangeLock<u64>);

impl Side for Heddle {
    type Held = RawGuard<u64, ()>;
    const NAME: &'static str = "heddle";
    const SHARES: bool = true;

    fn new(_: u64) -> Self {
        Self(RangeLock::new())
    }

    fn parameters(&self) -> String {
        "buckets of 12, tails of 16, at most 64 buckets for collisions".into()
    }

    #[inline]
    fn try_lock(&self, start: u64, end: u64) -> Option<Self::Held> {
        Some(self.0.try_lock(start..end).ok()?.into_raw())
    }

    #[inline]
    fn lock(&self, start: u64, end: u64) -> Self::Held {
        self.0.lock(start..end).expect("memory for a range").into_raw()
    }

    #[inline]
    fn lock_shared(&self, start: u64, end: u64) -> Self::Held {
        self.0.lock_shared(start..end).expect("memory for a range").into_raw()
    }

    #[inline]
    fn unlock(&self, held: Self::Held) {
        // SAFETY: handed out above, and moved in here once.
        unsafe { self.0.release_raw(held) }
    }
}
