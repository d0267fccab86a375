//! Waiters by level: adding, removing one and removing the most urgent one take a bounded number of steps, however
//! many wait.
//!
//! Waiters lie in a table and are linked by index into one ring per level that has any. A waiter is filed at the level
//! that it has when its future is polled. A coroutine whose level changes is polled soon, and then filed anew; one that
//! has become less urgent is also filed anew when its turn comes.
//!
//! Wakers are anybody's code when they are cloned or dropped, so they come in and go out through the caller's hands,
//! who clones before and drops after the lock around the list.

use crate::registry::Global;
use crate::sched::{Id, Table};
use crate::waker::id_of;
use alloc::vec::Vec;
use core::mem;
use core::num::NonZeroU64;
use core::task::Waker;

/// Whoever waited.
pub(crate) struct Waiter {
    pub waker: Waker,
}

/// A place in a list: found as long as the waiter is there, and by nobody after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaitPosition {
    key: NonZeroU64,
    index: u32,
}

/// Waiters, first in first out within a level. `T` is what each waits for, beyond its turn.
pub(crate) struct Waiters<T> {
    nodes: Vec<Node<T>>,
    /// The first of each level that has a waiter, by level: at most 64.
    firsts: Vec<(u8, u32)>,
    /// The first node that is not in use, [`NONE`] if there is none; they are linked through `next`.
    free: u32,
    /// The last key given.
    last: u64,
}

struct Node<T> {
    /// 0 while the node is not in use.
    key: u64,
    waker: Option<Waker>,
    wants: T,
    level: u8,
    next: u32,
    prev: u32,
}

const NONE: u32 = u32::MAX;

/// So many unused nodes are kept when nobody waits.
const KEPT_NODES: usize = 64;

/// The level of the coroutine that `waker` wakes, now; others' tasks rank as the least urgent coroutines.
pub(crate) fn level_of(waker: &Waker) -> u8 {
    id_of(waker).and_then(|id| Global.slot(id.index())).map_or(63, |slot| slot.level())
}

impl WaitPosition {
    /// The key of the waiter, larger than those of all that were added before.
    pub fn key(self) -> u64 {
        self.key.get()
    }
}

impl Waiter {
    pub fn id(&self) -> Option<Id> {
        id_of(&self.waker)
    }
}

impl<T: Copy> Waiters<T> {
    pub const fn new() -> Waiters<T> {
        Waiters::after(0)
    }

    /// An empty list whose places are none of another's, the last of whose keys was `last`.
    pub const fn after(last: u64) -> Waiters<T> {
        Waiters { nodes: Vec::new(), firsts: Vec::new(), free: NONE, last }
    }

    /// See [`Waiters::after`].
    pub fn last_key(&self) -> u64 {
        self.last
    }

    pub fn is_empty(&self) -> bool {
        self.firsts.is_empty()
    }

    /// The level of the most urgent waiter, as it is filed.
    pub fn best_level(&self) -> Option<u8> {
        self.firsts.first().map(|first| first.0)
    }

    /// Adds a waiter, whose waker is taken out of `waker`.
    pub fn push(&mut self, waker: &mut Option<Waker>, wants: T) -> WaitPosition {
        self.last += 1;
        let waker = waker.take();
        let level = waker.as_ref().map_or(63, level_of);
        let node = Node { key: self.last, waker, wants, level, next: NONE, prev: NONE };
        let index = match self.nodes.get_mut(self.free as usize) {
            Some(place) => {
                let index = self.free;
                self.free = place.next;
                *place = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.link(index);
        WaitPosition { key: NonZeroU64::new(self.last).unwrap_or(NonZeroU64::MIN), index }
    }

    /// Whether the waiter at `place` is still in the list; then `waker` is the one to wake it by, and its former one is
    /// left in `waker`.
    pub fn refresh(&mut self, place: WaitPosition, waker: &mut Option<Waker>) -> bool {
        let Some(node) = self.node(place) else { return false };
        mem::swap(&mut node.waker, waker);
        self.file(place.index);
        true
    }

    /// Takes the waiter at `place` out, if it is there.
    pub fn remove(&mut self, place: WaitPosition) -> Option<Waiter> {
        self.node(place)?;
        self.take(place.index)
    }

    /// The request of the most urgent waiter.
    pub fn best(&mut self) -> Option<T> {
        let index = self.first()?;
        self.nodes.get(index as usize).map(|node| node.wants)
    }

    /// Takes the most urgent waiter out.
    pub fn pop_best(&mut self) -> Option<Waiter> {
        let index = self.first()?;
        self.take(index)
    }

    /// The most urgent waiter. One that is less urgent than when it was filed goes where it belongs first; it does so
    /// once for each time that its level changed.
    fn first(&mut self) -> Option<u32> {
        loop {
            let &(filed, index) = self.firsts.first()?;
            let waker = self.nodes.get(index as usize).and_then(|node| node.waker.as_ref());
            if waker.map_or(63, level_of) <= filed {
                return Some(index);
            }
            self.file(index);
        }
    }

    fn node(&mut self, place: WaitPosition) -> Option<&mut Node<T>> {
        self.nodes.get_mut(place.index as usize).filter(|node| node.key == place.key.get())
    }

    /// Files a waiter at the level that it has now, if that is another.
    fn file(&mut self, index: u32) {
        let Some(node) = self.nodes.get(index as usize) else { return };
        let level = node.waker.as_ref().map_or(63, level_of);
        if level != node.level {
            self.unlink(index);
            self.nodes[index as usize].level = level;
            self.link(index);
        }
    }

    /// Puts a node behind the others of its level.
    fn link(&mut self, index: u32) {
        let level = self.nodes[index as usize].level;
        match self.firsts.binary_search_by_key(&level, |first| first.0) {
            Ok(at) => {
                let first = self.firsts[at].1;
                let last = mem::replace(&mut self.nodes[first as usize].prev, index);
                self.nodes[last as usize].next = index;
                let node = &mut self.nodes[index as usize];
                (node.next, node.prev) = (first, last);
            }
            Err(at) => {
                self.firsts.insert(at, (level, index));
                let node = &mut self.nodes[index as usize];
                (node.next, node.prev) = (index, index);
            }
        }
    }

    /// Takes a node out of its ring.
    fn unlink(&mut self, index: u32) {
        let Node { level, next, prev, .. } = self.nodes[index as usize];
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
        if let Ok(at) = self.firsts.binary_search_by_key(&level, |first| first.0) {
            if next == index {
                self.firsts.remove(at);
            } else if self.firsts[at].1 == index {
                self.firsts[at].1 = next;
            }
        }
    }

    fn take(&mut self, index: u32) -> Option<Waiter> {
        self.unlink(index);
        let node = &mut self.nodes[index as usize];
        let waiter = node.waker.take().map(|waker| Waiter { waker });
        node.key = 0;
        node.next = mem::replace(&mut self.free, index);
        if self.firsts.is_empty() {
            // Keys are not used again, so no place leads to what comes here next.
            self.nodes.clear();
            self.free = NONE;
            if self.nodes.capacity() > KEPT_NODES {
                self.nodes.shrink_to(KEPT_NODES);
            }
        }
        waiter
    }
}
