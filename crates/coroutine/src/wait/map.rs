//! Waiting by key, where waiter and waker know nothing of each other but a number (papers 1 and 2).

use super::list::{WaitPosition, Waiters};
use crate::foreign;
use crate::lock::Lock;
use alloc::collections::BTreeMap;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// Where waiters and wakers meet by key. A wake that comes before the wait is kept for it.
///
/// Keys are compared under the map's lock: their order must not use the map.
pub struct WakerMap<K>(Lock<Map<K>>);

struct Map<K> {
    entries: BTreeMap<K, Entry>,
    /// The last key that a list of waiters has given which is not there any more.
    last: u64,
}

struct Entry {
    /// A wake that nobody waited for.
    woken: bool,
    waiters: Waiters<()>,
}

impl<K: Ord> Map<K> {
    fn entry(&mut self, key: K) -> &mut Entry {
        let last = self.last;
        self.entries.entry(key).or_insert_with(|| Entry { woken: false, waiters: Waiters::after(last) })
    }

    /// Takes the entry of `key` out if it says nothing; the caller drops it, and with it a key of the user's.
    fn forget_if_unused(&mut self, key: &K, and_woken: bool) -> Option<(K, Entry)> {
        let entry = self.entries.get(key)?;
        if entry.waiters.is_empty() && (and_woken || !entry.woken) {
            self.last = self.last.max(entry.waiters.last_key());
            return self.entries.remove_entry(key);
        }
        None
    }
}

impl<K: Ord + Clone> WakerMap<K> {
    /// An empty map.
    pub const fn new() -> WakerMap<K> {
        WakerMap(Lock::new(Map { entries: BTreeMap::new(), last: 0 }))
    }

    /// Waits until `key` is woken; at once, if it was since the last wait for it ended. Of several waiters each wake
    /// reaches one, the most urgent.
    pub fn wait(&self, key: K) -> Wait<'_, K> {
        Wait { map: self, key, place: None }
    }

    /// Wakes the most urgent waiter for `key`; if there is none, the next wait for it ends at once.
    pub fn wake(&self, key: K) {
        let waiter = self.0.with(|map| {
            let entry = map.entry(key);
            let waiter = entry.waiters.pop_best();
            entry.woken |= waiter.is_none();
            waiter
        });
        if let Some(waiter) = waiter {
            foreign::wake(waiter.waker);
        }
    }

    /// Forgets a wake of `key` that nobody waited for.
    pub fn clear(&self, key: &K) {
        let forgotten = self.0.with(|map| map.forget_if_unused(key, true));
        drop(forgotten);
    }
}

/// See [`WakerMap::wait`].
#[must_use = "futures do nothing unless awaited"]
pub struct Wait<'a, K: Ord + Clone> {
    map: &'a WakerMap<K>,
    key: K,
    /// Its place in the list of waiters.
    place: Option<WaitPosition>,
}

impl<K: Ord + Clone> Unpin for Wait<'_, K> {}

impl<K: Ord + Clone> Future for Wait<'_, K> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let place = this.place;
        let mut key = Some(this.key.clone());
        let mut waker = Some(cx.waker().clone());
        let (place, forgotten) = this.map.0.with(|map| {
            let Some(own) = key.take() else { return (None, None) };
            let entry = map.entry(own);
            let place = match place {
                // Out of the list: a wake took it out.
                Some(place) => entry.waiters.refresh(place, &mut waker).then_some(place),
                None if core::mem::take(&mut entry.woken) => None,
                None => Some(entry.waiters.push(&mut waker, ())),
            };
            (place, map.forget_if_unused(&this.key, false))
        });
        drop(forgotten);
        this.place = place;
        if place.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<K: Ord + Clone> Drop for Wait<'_, K> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let (waiter, forgotten) = self.map.0.with(|map| {
            let Some(entry) = map.entries.get_mut(&self.key) else { return (None, None) };
            let waiter = entry.waiters.remove(place);
            (waiter, map.forget_if_unused(&self.key, false))
        });
        drop(forgotten);
        if waiter.is_none() {
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
