//! Interests of instances that have ended, freed in steps by a coroutine: a close must not take longer the more the
//! instance watches.
//!
//! The ready list is closed at once, so a wake that still finds an interest ends there, and nobody waits behind it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_kernel_core::fallible::push_reserved;

use crate::fs::epoll::interests::Interests;
use crate::fs::epoll::ready::Ready;
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue};

/// An instance with no more interests is freed on the spot.
const AT_ONCE: usize = 64;
/// The cost of freeing so many.
const STEP_COST: u32 = 32;

static REMAINS: SpinLock<Vec<Remains>> = SpinLock::new(Vec::new());
static ADDED: WaitQueue = WaitQueue::new();

/// The interests of an instance that has ended, and its ready list.
struct Remains {
    interests: Interests,
    ready: Arc<Ready>,
}

impl Remains {
    /// Frees some of it. Returns whether nothing is left.
    fn free_some(&mut self) -> bool {
        for _ in 0..AT_ONCE {
            if self.ready.pop().is_none() {
                return self.interests.retire_some(AT_ONCE);
            }
        }
        false
    }
}

/// Frees what an instance held, now or soon. Its ready list is closed.
pub(super) fn free(interests: Interests, ready: Arc<Ready>) {
    let mut remains = Remains { interests, ready };
    if remains.interests.len().max(remains.ready.len()) > AT_ONCE {
        let mut all = REMAINS.lock();
        if all.try_reserve(1).is_ok() {
            push_reserved(&mut all, remains);
            drop(all);
            ADDED.wake(Events::all());
            return;
        }
    }
    while !remains.free_some() {}
}

/// Frees what has been left, in steps.
pub async fn run() {
    let mut budget = Budget::new();
    loop {
        crate::device::wait(&ADDED, || !REMAINS.lock().is_empty()).await;
        while let Some(mut remains) = next() {
            while !remains.free_some() {
                budget.step(STEP_COST).await;
            }
        }
    }
}

/// Frees all that has been left. For when memory is short.
pub fn drain() {
    while let Some(mut remains) = next() {
        while !remains.free_some() {}
    }
}

fn next() -> Option<Remains> {
    let mut all = REMAINS.lock();
    let next = all.pop();
    let unused = if all.is_empty() { core::mem::take(&mut *all) } else { Vec::new() };
    drop(all);
    drop(unused);
    next
}
