//! Waiting by key, where waiter and waker know nothing of each other but a number (papers 1 and 2).

use super::list::Waiters;
use crate::lock::Lock;
use alloc::collections::BTreeMap;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// Where waiters and wakers meet by key. A wake that comes before the wait is kept for it.
pub struct WakerMap<K>(Lock<BTreeMap<K, Entry>>);

struct Entry {
    /// A wake that nobody waited for.
    woken: bool,
    waiters: Waiters<()>,
}

impl<K: Ord + Clone> WakerMap<K> {
    /// An empty map.
    pub const fn new() -> WakerMap<K> {
        WakerMap(Lock::new(BTreeMap::new()))
    }

    /// Waits until `key` is woken; at once, if it was since the last wait for it ended. Of several waiters each wake
    /// reaches one, the most urgent.
    pub fn wait(&self, key: K) -> Wait<'_, K> {
        Wait { map: self, key, place: 0 }
    }

    /// Wakes the most urgent waiter for `key`; if there is none, the next wait for it ends at once.
    pub fn wake(&self, key: K) {
        let waiter = self.0.with(|map| {
            let entry = map.entry(key).or_insert(Entry { woken: false, waiters: Waiters::new() });
            let waiter = entry.waiters.pop_best();
            entry.woken |= waiter.is_none();
            waiter
        });
        if let Some(waiter) = waiter {
            waiter.waker.wake();
        }
    }

    /// Forgets a wake of `key` that nobody waited for.
    pub fn clear(&self, key: &K) {
        self.0.with(|map| {
            if map.get(key).is_some_and(|entry| entry.waiters.is_empty()) {
                map.remove(key);
            }
        });
    }
}

/// See [`WakerMap::wait`].
#[must_use = "futures do nothing unless awaited"]
pub struct Wait<'a, K: Ord + Clone> {
    map: &'a WakerMap<K>,
    key: K,
    /// Key in the list of waiters, 0 if it is in none.
    place: u64,
}

impl<K: Ord + Clone> Unpin for Wait<'_, K> {}

impl<K: Ord + Clone> Future for Wait<'_, K> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let place = this.place;
        let waits = this.map.0.with(|map| {
            let new = || Entry { woken: false, waiters: Waiters::new() };
            let entry = map.entry(this.key.clone()).or_insert_with(new);
            let waits = if place != 0 {
                // Out of the list: a wake took it out.
                if entry.waiters.refresh(place, cx.waker()) { place } else { 0 }
            } else if core::mem::take(&mut entry.woken) {
                0
            } else {
                entry.waiters.push(cx.waker(), ())
            };
            if !entry.woken && entry.waiters.is_empty() {
                map.remove(&this.key);
            }
            waits
        });
        this.place = waits;
        if waits == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<K: Ord + Clone> Drop for Wait<'_, K> {
    fn drop(&mut self) {
        if self.place == 0 {
            return;
        }
        let waited = self.map.0.with(|map| {
            let Some(entry) = map.get_mut(&self.key) else { return false };
            let waited = entry.waiters.remove(self.place).is_some();
            if waited && !entry.woken && entry.waiters.is_empty() {
                map.remove(&self.key);
            }
            waited
        });
        if !waited {
            // The wake that took it out of the list is for another, or kept.
            self.map.wake(self.key.clone());
        }
    }
}

impl<K: Ord + Clone> Default for WakerMap<K> {
    fn default() -> WakerMap<K> {
        WakerMap::new()
    }
}

impl<K> fmt::Debug for WakerMap<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakerMap").finish_non_exhaustive()
    }
}
