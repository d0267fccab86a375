//! Waiting by key, where waiter and waker know nothing of each other but a number (papers 1 and 2).
#![allow(unsafe_code)] // Waiters are linked by address.

use super::list::{Node, Polled, Waiters};
use crate::foreign;
use crate::lock::Lock;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::cell::UnsafeCell;
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
}

struct Entry {
    /// A wake that nobody waited for.
    woken: bool,
    waiters: Arc<SharedList>,
}

/// The waiters for one key. They know it themselves: an order of keys that contradicts itself could lead them to
/// another's. Under the map's lock.
struct SharedList(UnsafeCell<Waiters<()>>);

// SAFETY: a list may go to other threads.
unsafe impl Send for SharedList {}
// SAFETY: it is used under the map's lock.
unsafe impl Sync for SharedList {}

impl SharedList {
    /// # Safety
    /// The caller has the map's lock, and no other reference to the list.
    #[allow(clippy::mut_from_ref, reason = "a lock elsewhere guards it")]
    unsafe fn get(&self) -> &mut Waiters<()> {
        // SAFETY: by contract.
        unsafe { &mut *self.0.get() }
    }
}

impl<K: Ord> Map<K> {
    /// The entry of `key`, which is taken out if it is new there. Otherwise the caller drops it, without the lock.
    fn entry(&mut self, key: &mut Option<K>) -> Option<&mut Entry> {
        if self.entries.contains_key(key.as_ref()?) {
            return self.entries.get_mut(key.as_ref()?);
        }
        let new = || Entry { woken: false, waiters: Arc::new(SharedList(UnsafeCell::new(Waiters::new()))) };
        Some(self.entries.entry(key.take()?).or_insert_with(new))
    }

    /// Takes the entry of `key` out if it says nothing; the caller drops it, and with it a key of the user's.
    fn forget_if_unused(&mut self, key: &K, and_woken: bool) -> Option<(K, Entry)> {
        let entry = self.entries.get(key)?;
        // SAFETY: under the lock, since `self` is reached through it.
        let is_empty = unsafe { entry.waiters.get() }.is_empty();
        if is_empty && (and_woken || !entry.woken) { self.entries.remove_entry(key) } else { None }
    }
}

impl<K: Ord + Clone> WakerMap<K> {
    /// An empty map.
    pub const fn new() -> WakerMap<K> {
        WakerMap(Lock::new(Map { entries: BTreeMap::new() }))
    }

    /// Waits until `key` is woken; at once, if it was since the last wait for it ended. Of several waiters each wake
    /// reaches one, the most urgent.
    pub fn wait(&self, key: K) -> Wait<'_, K> {
        Wait { map: self, key, node: Node::new(()), list: None }
    }

    /// Wakes the most urgent waiter for `key`; if there is none, the next wait for it ends at once.
    pub fn wake(&self, key: K) {
        let mut key = Some(key);
        let waiter = self.0.with(|map| {
            let entry = map.entry(&mut key)?;
            // SAFETY: under the lock.
            let waiter = unsafe { entry.waiters.get() }.pop_best();
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
    node: Node<()>,
    /// The list into which it went, as long as it has not learnt of a wake.
    list: Option<Arc<SharedList>>,
}

impl<K: Ord + Clone> Future for Wait<'_, K> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the node is not moved; the key is not pinned.
        let Wait { map, key, node, list } = unsafe { self.get_unchecked_mut() };
        // SAFETY: it is a part of the future, which is pinned.
        let node = unsafe { Pin::new_unchecked(&*node) };
        let mut own = Some(key.clone());
        let mut waker = Some(cx.waker().clone());
        let (now, forgotten) = map.0.with(|map| {
            if let Some(list) = &*list {
                // SAFETY: under the lock; it is the node's only list, and the future's drop removes it.
                match unsafe { list.get().refresh(node, &mut waker) } {
                    Polled::Waits => return (Some(list.clone()), None),
                    // A wake took it out.
                    Polled::Out => return (None, map.forget_if_unused(key, false)),
                    Polled::Forgotten => {}
                }
            }
            let Some(entry) = map.entry(&mut own) else { return (None, None) };
            if core::mem::take(&mut entry.woken) {
                return (None, map.forget_if_unused(key, false));
            }
            // SAFETY: as above; it does not wait.
            unsafe { entry.waiters.get().push(node, &mut waker, ()) };
            (Some(entry.waiters.clone()), None)
        });
        drop(forgotten);
        *list = now;
        if list.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<K: Ord + Clone> Drop for Wait<'_, K> {
    fn drop(&mut self) {
        let Some(list) = self.list.take() else { return };
        // SAFETY: a future that waits was polled, so it is pinned.
        let node = unsafe { Pin::new_unchecked(&self.node) };
        let (waiter, forgotten) = self.map.0.with(|map| {
            // SAFETY: under the lock; it is the node's only list.
            let waiter = unsafe { list.get().remove(node) };
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
