//! A list of waiters, from which the most urgent one is taken.

use crate::registry::Global;
use crate::sched::{Id, Table};
use crate::sync::{AtomicU64, Ordering};
use crate::waker::id_of;
use alloc::vec::Vec;
use core::task::Waker;

/// Whoever waits. `T` is what it waits for, beyond its turn.
pub(crate) struct Waiter<T> {
    pub key: u64,
    pub waker: Waker,
    pub wants: T,
}

/// Waiters in order of arrival.
pub(crate) struct Waiters<T> {
    list: Vec<Waiter<T>>,
}

/// The last key that was given. Keys are unique among all lists, because a list may be given up and made again while
/// somebody who was taken out of it still asks for his place.
static KEYS: AtomicU64 = AtomicU64::new(0);

/// The level of the coroutine that `waker` wakes, now; others' tasks rank as the least urgent coroutines.
pub(crate) fn level_of(waker: &Waker) -> u8 {
    id_of(waker).and_then(|id| Global.slot(id.index())).map_or(63, |slot| slot.level())
}

impl<T> Waiter<T> {
    pub fn id(&self) -> Option<Id> {
        id_of(&self.waker)
    }
}

impl<T> Waiters<T> {
    pub const fn new() -> Waiters<T> {
        Waiters { list: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Waiter<T>> {
        self.list.iter()
    }

    /// Adds a waiter; returns its key, which is not 0.
    pub fn push(&mut self, waker: &Waker, wants: T) -> u64 {
        // Under the list's lock, so keys rise along the list.
        let key = KEYS.fetch_add(1, Ordering::Relaxed) + 1;
        self.list.push(Waiter { key, waker: waker.clone(), wants });
        key
    }

    /// Whether the waiter `key` is still in the list; then `waker` is the one to wake it by.
    pub fn refresh(&mut self, key: u64, waker: &Waker) -> bool {
        match self.list.binary_search_by_key(&key, |waiter| waiter.key) {
            Ok(at) => {
                self.list[at].waker.clone_from(waker);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes the waiter `key` out, if it is there.
    pub fn remove(&mut self, key: u64) -> Option<Waiter<T>> {
        let at = self.list.binary_search_by_key(&key, |waiter| waiter.key).ok()?;
        Some(self.list.remove(at))
    }

    /// The most urgent waiter, the first among equals. Looks at all: levels change while their owners wait.
    pub fn best(&self) -> Option<&Waiter<T>> {
        self.list.iter().min_by_key(|waiter| (level_of(&waiter.waker), waiter.key))
    }

    /// Takes the most urgent waiter out.
    pub fn pop_best(&mut self) -> Option<Waiter<T>> {
        let key = self.best()?.key;
        self.remove(key)
    }
}
