//! Waiters by level: adding, removing one and removing the most urgent one take a bounded number of steps, however
//! many wait, and no memory.
//!
//! A waiter lies in its future, and is linked into one ring per level that has any; the first of the rings are linked
//! from the most urgent level to the least, at most 64. A waiter is filed at the level that it has when its future is
//! polled. A coroutine whose level changes is polled soon, and then filed anew; one that has become less urgent is also
//! filed anew when its turn comes.
//!
//! In a forked child ([`follow_forks`](crate::follow_forks)) waiters of other threads are gone with their stacks. So a
//! list begins anew there, without a look at those that it had, and a waiter that goes on comes to it anew.
//!
//! Wakers are anybody's code when they are cloned or dropped, so they come in and go out through the caller's hands,
//! who clones before and drops after the lock around the list.
#![allow(unsafe_code)] // Futures are linked by address: they are pinned, and leave the list when they are dropped.

use crate::forks::forks;
use crate::registry::Global;
use crate::sched::{Id, Table};
use crate::waker::id_of;
use core::cell::UnsafeCell;
use core::marker::PhantomPinned;
use core::mem;
use core::pin::Pin;
use core::ptr;
use core::task::Waker;

/// Whoever waited.
pub(crate) struct Waiter {
    pub waker: Waker,
}

/// A future's place in a list. `T` is what it waits for, beyond its turn.
///
/// # Safety
/// All functions with a node have this contract:
/// - It is used with one list, or with the one to which [`Waiters::append`] has moved that one's waiters, and only by
///   whoever has the lock around it.
/// - If it was pushed, it is removed before its memory goes, unless it was taken out before.
pub(crate) struct Node<T> {
    links: UnsafeCell<Links<T>>,
    _pinned: PhantomPinned,
}

struct Links<T> {
    is_filed: bool,
    /// In which process it was filed.
    forks: u32,
    level: u8,
    waker: Option<Waker>,
    wants: T,
    /// Neighbours in the ring of its level.
    next: *const Node<T>,
    prev: *const Node<T>,
    /// If it is the first of its ring: the first of the next more urgent level that has one, and of the next less
    /// urgent one.
    above: *const Node<T>,
    below: *const Node<T>,
}

/// Waiters, first in first out within a level.
pub(crate) struct Waiters<T> {
    /// The first of the most urgent level.
    first: *const Node<T>,
    /// In which process that is so. In a child of it the list is empty.
    forks: u32,
}

/// How a waiter that was polled stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Polled {
    /// It waits on.
    Waits,
    /// It was taken out of the list before, to go on.
    Out,
    /// It waited before a fork: it has got nothing, and is in no list.
    Forgotten,
}

// SAFETY: a node's future and a list share it under the list's lock; what it holds may go to other threads.
unsafe impl<T: Send> Send for Node<T> {}
// SAFETY: a shared node gives nothing but under that lock.
unsafe impl<T: Send> Sync for Node<T> {}
// SAFETY: as for nodes; the list has nothing else.
unsafe impl<T: Send> Send for Waiters<T> {}
// SAFETY: a shared list gives a pointer to compare, no more.
unsafe impl<T: Send> Sync for Waiters<T> {}

/// The level of the coroutine that `waker` wakes, now; others' tasks rank as the least urgent coroutines.
pub(crate) fn level_of(waker: &Waker) -> u8 {
    id_of(waker).and_then(|id| Global.slot(id.index())).map_or(63, |slot| slot.level())
}

impl Waiter {
    pub fn id(&self) -> Option<Id> {
        id_of(&self.waker)
    }
}

impl<T> Node<T> {
    /// In no list.
    pub const fn new(wants: T) -> Node<T> {
        let links = Links {
            is_filed: false,
            forks: 0,
            level: 0,
            waker: None,
            wants,
            next: ptr::null(),
            prev: ptr::null(),
            above: ptr::null(),
            below: ptr::null(),
        };
        Node { links: UnsafeCell::new(links), _pinned: PhantomPinned }
    }
}

/// The content of node `node`.
///
/// # Safety
/// The node is there, and the caller has the lock around its list. No other reference to its links is in use.
#[inline(always)]
unsafe fn links<'n, T>(node: *const Node<T>) -> &'n mut Links<T> {
    // SAFETY: by contract.
    unsafe { &mut *UnsafeCell::raw_get(ptr::addr_of!((*node).links)) }
}

impl<T: Copy> Waiters<T> {
    pub const fn new() -> Waiters<T> {
        Waiters { first: ptr::null(), forks: 0 }
    }

    /// In a forked child, forgets the waiters that were there before.
    fn follow(&mut self) {
        if self.forks != forks() {
            (self.first, self.forks) = (ptr::null(), forks());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_null() || self.forks != forks()
    }

    /// The level of the most urgent waiter, as it is filed.
    pub fn best_level(&self) -> Option<u8> {
        // SAFETY: a node of the list, under its lock.
        (!self.is_empty()).then(|| unsafe { links(self.first) }.level)
    }

    /// Adds a waiter, whose waker is taken out of `waker`; one that it had before a fork is left there.
    ///
    /// # Safety
    /// See [`Node`]; it is in no list.
    pub unsafe fn push(&mut self, node: Pin<&Node<T>>, waker: &mut Option<Waker>, wants: T) {
        let node = ptr::from_ref(node.get_ref());
        self.follow();
        // SAFETY: by contract, and `link` ends with it filed.
        unsafe {
            let own = links(node);
            own.forks = self.forks;
            mem::swap(&mut own.waker, waker);
            own.wants = wants;
            own.level = own.waker.as_ref().map_or(63, level_of);
            own.is_filed = true;
            self.link(node);
        }
    }

    /// Whether the waiter is still in the list; then `waker` is the one to wake it by, and its former one is left in
    /// `waker`.
    ///
    /// # Safety
    /// See [`Node`].
    pub unsafe fn refresh(&mut self, node: Pin<&Node<T>>, waker: &mut Option<Waker>) -> Polled {
        let node = ptr::from_ref(node.get_ref());
        self.follow();
        // SAFETY: by contract.
        unsafe {
            let own = links(node);
            if !own.is_filed {
                return Polled::Out;
            }
            if own.forks != self.forks {
                own.is_filed = false;
                return Polled::Forgotten;
            }
            mem::swap(&mut own.waker, waker);
            self.file(node);
        }
        Polled::Waits
    }

    /// Takes the waiter out, if it is there.
    ///
    /// # Safety
    /// See [`Node`].
    pub unsafe fn remove(&mut self, node: Pin<&Node<T>>) -> Option<Waiter> {
        let node = ptr::from_ref(node.get_ref());
        self.follow();
        // SAFETY: by contract; one of before a fork is in no list.
        unsafe {
            let own = links(node);
            match own.is_filed {
                true if own.forks == self.forks => self.take(node),
                true => {
                    own.is_filed = false;
                    own.waker.take().map(|waker| Waiter { waker })
                }
                false => None,
            }
        }
    }

    /// Takes the most urgent waiter out.
    pub fn pop_best(&mut self) -> Option<Waiter> {
        self.pop_best_if(|_| true)
    }

    /// Takes the most urgent waiter out if its request is one for `may`. Which one that is may change at any time, so
    /// it is looked for once.
    pub fn pop_best_if(&mut self, may: impl FnOnce(T) -> bool) -> Option<Waiter> {
        let node = self.most_urgent()?;
        // SAFETY: a node of the list, under its lock.
        unsafe { if may(links(node).wants) { self.take(node) } else { None } }
    }

    /// Moves all waiters of `other` here, behind those of their levels.
    pub fn append(&mut self, other: &mut Waiters<T>) {
        self.follow();
        other.follow();
        let mut ring = mem::replace(&mut other.first, ptr::null());
        if self.is_empty() {
            self.first = ring;
            return;
        }
        while !ring.is_null() {
            // SAFETY: nodes of the two lists, under the lock around both.
            unsafe {
                let last = links(ring).prev;
                let below = links(ring).below;
                (links(ring).above, links(ring).below) = (ptr::null(), ptr::null());
                self.link_ring(ring, last);
                ring = below;
            }
        }
    }

    /// The most urgent waiter. One that is less urgent than when it was filed goes where it belongs first; it does so
    /// once for each time that its level changed.
    fn most_urgent(&mut self) -> Option<*const Node<T>> {
        self.follow();
        while !self.first.is_null() {
            let node = self.first;
            // SAFETY: a node of the list, under its lock.
            unsafe {
                let filed = links(node).level;
                if links(node).waker.as_ref().map_or(63, level_of) <= filed {
                    return Some(node);
                }
                self.file(node);
            }
        }
        None
    }

    /// Files a waiter at the level that it has now, if that is another.
    ///
    /// # Safety
    /// `node` is in the list.
    unsafe fn file(&mut self, node: *const Node<T>) {
        // SAFETY: by contract.
        unsafe {
            let level = links(node).waker.as_ref().map_or(63, level_of);
            if level != links(node).level {
                self.unlink(node);
                links(node).level = level;
                self.link(node);
            }
        }
    }

    /// Puts a node that is in no ring behind the others of its level.
    ///
    /// # Safety
    /// See [`Node`].
    unsafe fn link(&mut self, node: *const Node<T>) {
        // SAFETY: by contract; a ring of one.
        unsafe {
            let own = links(node);
            (own.next, own.prev) = (node, node);
            (own.above, own.below) = (ptr::null(), ptr::null());
            self.link_ring(node, node);
        }
    }

    /// Puts the ring from `first` to `last`, of one level and in no list, behind the others of its level.
    ///
    /// # Safety
    /// See [`Node`].
    unsafe fn link_ring(&mut self, first: *const Node<T>, last: *const Node<T>) {
        // SAFETY: the nodes of the list are there, and those of the ring by contract.
        unsafe {
            let level = links(first).level;
            let (mut above, mut at) = (ptr::null(), self.first);
            while !at.is_null() && links(at).level < level {
                (above, at) = (at, links(at).below);
            }
            if !at.is_null() && links(at).level == level {
                let end = mem::replace(&mut links(at).prev, last);
                links(end).next = first;
                links(first).prev = end;
                links(last).next = at;
                return;
            }
            (links(first).above, links(first).below) = (above, at);
            self.lead(above, first);
            if !at.is_null() {
                links(at).above = first;
            }
        }
    }

    /// Makes `to` what comes below `above`, the first of a ring; the first of all if that is null.
    ///
    /// # Safety
    /// `above` is null, or in the list.
    unsafe fn lead(&mut self, above: *const Node<T>, to: *const Node<T>) {
        if above.is_null() {
            self.first = to;
        } else {
            // SAFETY: by contract.
            unsafe { links(above) }.below = to;
        }
    }

    /// Takes a node out of its ring.
    ///
    /// # Safety
    /// `node` is in the list.
    unsafe fn unlink(&mut self, node: *const Node<T>) {
        // SAFETY: by contract, as are the nodes to which it is linked.
        unsafe {
            let Links { next, prev, above, below, .. } = *links(node);
            let is_alone = next == node;
            links(prev).next = next;
            links(next).prev = prev;
            if !above.is_null() || self.first == node {
                // It is the first of its ring: the next one is now, or the ring is gone.
                let (heir, to_below) = if is_alone { (below, above) } else { (next, next) };
                if !is_alone {
                    (links(next).above, links(next).below) = (above, below);
                }
                self.lead(above, heir);
                if !below.is_null() {
                    links(below).above = to_below;
                }
            }
        }
    }

    /// Takes a node out of the list.
    ///
    /// # Safety
    /// `node` is in the list.
    unsafe fn take(&mut self, node: *const Node<T>) -> Option<Waiter> {
        // SAFETY: by contract.
        unsafe {
            self.unlink(node);
            let own = links(node);
            own.is_filed = false;
            own.waker.take().map(|waker| Waiter { waker })
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::{Node, Polled, Waiter, Waiters};
    use crate::{Builder, Id, LocalExecutor, set_priority, waker};
    use std::boxed::Box;
    use std::collections::BTreeSet;
    use std::future::pending;
    use std::pin::Pin;
    use std::vec::Vec;

    /// A waiter as the list should have it: filed level, its turn there, number.
    type Model = BTreeSet<(u8, u32, usize)>;

    struct Games {
        executor: LocalExecutor,
        ids: Vec<Id>,
        nodes: Vec<Pin<Box<Node<usize>>>>,
        turn: u32,
        seed: u64,
    }

    impl Games {
        fn random(&mut self, below: usize) -> usize {
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.seed >> 33) as usize % below
        }

        fn level(&self, number: usize) -> u8 {
            crate::priority(self.ids[number]).unwrap()
        }

        fn filed(&mut self, number: usize) -> (u8, u32, usize) {
            self.turn += 1;
            (self.level(number), self.turn, number)
        }

        fn place(model: &Model, number: usize) -> Option<(u8, u32, usize)> {
            model.iter().copied().find(|place| place.2 == number)
        }

        /// Takes the most urgent one out of the model, which refiles those that have become less urgent.
        fn pop(&mut self, model: &mut Model) -> Option<Id> {
            loop {
                let first = model.pop_first()?;
                if self.level(first.2) <= first.0 {
                    return Some(self.ids[first.2]);
                }
                let anew = self.filed(first.2);
                model.insert(anew);
            }
        }
    }

    #[test]
    fn the_waiter_that_is_taken_is_the_one_that_was_judged() {
        let executor = LocalExecutor::new();
        let ids = [10, 20].map(|level| {
            let handle = executor.try_spawn(Builder::new().priority(level), pending::<()>()).unwrap();
            let id = handle.id();
            handle.detach();
            id
        });
        executor.run_until_idle();
        let nodes = [1, 2].map(|wants| Box::pin(Node::new(wants)));
        let mut list = Waiters::new();
        for ((id, node), wants) in ids.into_iter().zip(&nodes).zip([1, 2]) {
            // SAFETY: in no list; nodes live longer than it.
            unsafe { list.push(node.as_ref(), &mut Some(waker(id)), wants) };
        }
        let taken = list.pop_best_if(|wants| {
            assert_eq!(wants, 1);
            // Its level changes meanwhile.
            set_priority(ids[0], 30);
            executor.run_until_idle();
            true
        });
        assert_eq!(taken.as_ref().and_then(Waiter::id), Some(ids[0]));
        assert!(list.pop_best_if(|wants| wants != 2).is_none());
        assert_eq!(list.pop_best().as_ref().and_then(Waiter::id), Some(ids[1]));
    }

    #[test]
    fn a_list_serves_as_a_search_by_level_and_arrival_would() {
        let executor = LocalExecutor::new();
        let number = if cfg!(miri) { 12 } else { 40 };
        let ids = (0..number)
            .map(|_| {
                let handle = executor.try_spawn(Builder::new(), pending::<()>()).unwrap();
                let id = handle.id();
                handle.detach();
                id
            })
            .collect();
        executor.run_until_idle();
        let nodes = (0..number).map(|_| Box::pin(Node::new(0))).collect();
        let mut games = Games { executor, ids, nodes, turn: 0, seed: 1 };
        let (mut list, mut model) = (Waiters::new(), Model::new());
        // A second list, whose waiters move to the first.
        let (mut others, mut other_model) = (Waiters::new(), Model::new());
        for _ in 0..if cfg!(miri) { 600 } else { 100_000 } {
            let at = games.random(number);
            let mut waker = Some(waker(games.ids[at]));
            let (here, there) = (Games::place(&model, at), Games::place(&other_model, at));
            match games.random(8) {
                0..2 if here.is_none() && there.is_none() => {
                    let place = games.filed(at);
                    let to_other = games.random(4) == 0;
                    let list = if to_other { &mut others } else { &mut list };
                    // SAFETY: in no list; nodes live longer than the lists.
                    unsafe { list.push(games.nodes[at].as_ref(), &mut waker, at) };
                    if to_other {
                        other_model.insert(place)
                    } else {
                        model.insert(place)
                    };
                }
                0..3 if there.is_none() => {
                    // SAFETY: in this list or in none.
                    let is_there = unsafe { list.refresh(games.nodes[at].as_ref(), &mut waker) };
                    assert_eq!(is_there == Polled::Waits, here.is_some());
                    if let Some(place) = here.filter(|place| place.0 != games.level(at)) {
                        model.remove(&place);
                        let anew = games.filed(at);
                        model.insert(anew);
                    }
                }
                3 => {
                    let list = if there.is_some() { &mut others } else { &mut list };
                    // SAFETY: in this list or in none.
                    let waiter = unsafe { list.remove(games.nodes[at].as_ref()) };
                    assert_eq!(waiter.is_some(), here.or(there).is_some());
                    model.retain(|place| place.2 != at);
                    other_model.retain(|place| place.2 != at);
                }
                4 => {
                    let expected = games.pop(&mut model);
                    let mut wanted = None;
                    let best = list.pop_best_if(|at| {
                        wanted = Some(games.ids[at]);
                        true
                    });
                    assert_eq!((best.as_ref().and_then(Waiter::id), wanted), (expected, expected));
                }
                5 if games.random(4) == 0 => {
                    for place in core::mem::take(&mut other_model) {
                        games.turn += 1;
                        model.insert((place.0, games.turn, place.2));
                    }
                    list.append(&mut others);
                    assert!(others.is_empty());
                }
                _ => {
                    let levels = if games.random(2) == 0 { 3 } else { 64 };
                    let level = games.random(levels) as u8;
                    set_priority(games.ids[at], level);
                    // Changed by its owner.
                    games.executor.run_until_idle();
                }
            }
            assert_eq!(list.best_level(), model.first().map(|place| place.0));
        }
    }
}
