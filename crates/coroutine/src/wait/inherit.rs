//! Priority inheritance: who waits for whom, and the level that is lent along.
//!
//! An edge leads from a waiter to a coroutine that it waits for. A coroutine runs at the most urgent of its own level
//! and the levels of its waiters, theirs being found the same way, so that a loan passes along a chain. The graph is
//! one for all executors and knows only edges along which something may have to be lent: waits for a held mutex, and
//! joins of a coroutine that was less urgent than its joiner when the joiner looked.

use crate::lock::Lock;
use crate::registry::Global;
use crate::sched::{Id, Table};
use crate::sync::{AtomicUsize, Ordering};
use crate::waker;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

struct Graph {
    /// (waiter, target) of each edge.
    targets: BTreeSet<(Id, Id)>,
    /// (target, waiter) of each edge.
    waiters: BTreeSet<(Id, Id)>,
    /// What is lent to a target.
    lent: BTreeMap<Id, u8>,
}

static GRAPH: Lock<Graph> =
    Lock::new(Graph { targets: BTreeSet::new(), waiters: BTreeSet::new(), lent: BTreeMap::new() });

/// Number of edges, so that those who don't use the graph don't take its lock.
static EDGES: AtomicUsize = AtomicUsize::new(0);

/// Locks the graph during a fork.
#[cfg(feature = "std")]
pub(crate) fn lock() -> impl Sized + 'static {
    GRAPH.guard()
}

/// `waiter` waits for `target` from now on.
pub(crate) fn wait_for(waiter: Id, target: Id) {
    GRAPH.with(|graph| {
        if graph.targets.insert((waiter, target)) {
            graph.waiters.insert((target, waiter));
            EDGES.fetch_add(1, Ordering::Relaxed);
        }
        graph.settle(target);
    });
}

/// All of `waiters` wait for `new` instead of `old`; either may be no coroutine.
pub(crate) fn hand_over(waiters: impl Iterator<Item = Id>, old: Option<Id>, new: Option<Id>) {
    GRAPH.with(|graph| {
        for waiter in waiters {
            if let Some(old) = old.filter(|old| graph.targets.remove(&(waiter, *old))) {
                graph.waiters.remove(&(old, waiter));
                EDGES.fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(new) = new.filter(|new| *new != waiter && graph.targets.insert((waiter, *new))) {
                graph.waiters.insert((new, waiter));
                EDGES.fetch_add(1, Ordering::Relaxed);
            }
        }
        old.into_iter().chain(new).for_each(|target| graph.settle(target));
    });
}

/// `waiter` does not wait for `target` any more: takes its loan back.
pub(crate) fn stop_waiting(waiter: Id, target: Id) {
    if EDGES.load(Ordering::Relaxed) == 0 {
        return;
    }
    GRAPH.with(|graph| {
        if graph.targets.remove(&(waiter, target)) {
            graph.waiters.remove(&(target, waiter));
            EDGES.fetch_sub(1, Ordering::Relaxed);
            graph.settle(target);
        }
    });
}

/// The own level of `id` has changed: so may what it lends, and what is lent to it must be lent again.
pub(crate) fn changed(id: Id) {
    if EDGES.load(Ordering::Relaxed) == 0 {
        return;
    }
    GRAPH.with(|graph| {
        if let Some(level) = graph.lent.get(&id) {
            waker::lend(id, Some(*level));
        }
        for target in second_of(&graph.targets, id) {
            graph.settle(target);
        }
    });
}

/// The second parts of the pairs that begin with `first`.
fn second_of(pairs: &BTreeSet<(Id, Id)>, first: Id) -> Vec<Id> {
    pairs.range((first, Id::MIN)..=(first, Id::MAX)).map(|pair| pair.1).collect()
}

impl Graph {
    /// At which level `id` runs, all loans considered; `None` if it has ended.
    fn level(&self, id: Id) -> Option<u8> {
        let slot = Global.slot(id.index()).filter(|slot| slot.generation() == id.generation())?;
        let own = slot.asked_base_level();
        Some(self.lent.get(&id).map_or(own, |lent| own.min(*lent)))
    }

    /// Lends to `target` what its waiters give, and passes a change on to those that it waits for. Who waits in a ring
    /// waits for ever; the bound only ends the way around it.
    fn settle(&mut self, target: Id) {
        let mut left = Vec::from([target]);
        let mut bound = 2 * self.targets.len() + 2;
        while let Some(target) = left.pop().filter(|_| bound > 0) {
            bound -= 1;
            let lent =
                second_of(&self.waiters, target).into_iter().filter_map(|waiter| self.level(waiter)).min();
            let before = match lent {
                Some(level) => self.lent.insert(target, level),
                None => self.lent.remove(&target),
            };
            if before != lent {
                waker::lend(target, lent);
                left.extend(second_of(&self.targets, target));
            }
        }
    }
}
