//! The plainest one: a mutex around an ordered map of the held ranges.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::side::Side;

#[derive(Default)]
struct Held {
    /// Start to end; disjoint.
    ranges: BTreeMap<u64, u64>,
    waiters: usize,
}

impl Held {
    fn insert(&mut self, start: u64, end: u64) -> bool {
        let before = self.ranges.range(..end).next_back();
        if before.is_some_and(|(_, &before)| before > start) {
            return false;
        }
        self.ranges.insert(start, end);
        true
    }
}

/// `std::sync::Mutex` around a `BTreeMap`, with a condition variable for those who wait.
#[derive(Default)]
pub struct MutexMap {
    held: Mutex<Held>,
    released: Condvar,
}

impl MutexMap {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Side for MutexMap {
    type Held = u64;
    const NAME: &'static str = "mutex+map";
    const SHARES: bool = false;

    fn new(_: u64) -> Self {
        Self::default()
    }

    fn parameters(&self) -> String {
        "std Mutex, BTreeMap, Condvar".into()
    }

    #[inline]
    fn try_lock(&self, start: u64, end: u64) -> Option<u64> {
        self.held().insert(start, end).then_some(start)
    }

    #[inline]
    fn lock(&self, start: u64, end: u64) -> u64 {
        let mut held = self.held();
        while !held.insert(start, end) {
            held.waiters += 1;
            held = self.released.wait(held).unwrap_or_else(PoisonError::into_inner);
            held.waiters -= 1;
        }
        start
    }

    #[inline]
    fn unlock(&self, start: u64) {
        let mut held = self.held();
        held.ranges.remove(&start);
        let waiters = held.waiters;
        drop(held);
        if waiters > 0 {
            self.released.notify_all();
        }
    }
}
