//! Free slots that belong to no core: a lock-free stack of batches.
//!
//! A batch is a list of free slots linked through `next`; batches are linked through the first slot's `inbox_next`.
//! The head carries a tag against ABA, because slots come back.

use super::{Global, grow};
use crate::sched::{CoreState, Slot, Table};
use crate::sync::{AtomicU64, Ordering};

/// Slots in a batch.
const BATCH: u32 = 64;

/// A core that holds more free slots than this gives a batch back.
const HOARD: u32 = 4 * BATCH;

/// `tag << 32 | first slot of the first batch`.
static BATCHES: AtomicU64 = AtomicU64::new(0);

/// Gives `core` a batch of free slots. `false` if there is no memory for more. Owner only.
#[cold]
pub(crate) fn refill(core: &CoreState) -> bool {
    let Some(mut index) = take() else { return false };
    while let Some(slot) = if index == 0 { None } else { Global.slot(index) } {
        let next = slot.free_next();
        core.give_slot(&Global, index);
        index = next;
    }
    true
}

/// One free slot for a caller that is no core.
pub(crate) fn single() -> Option<u32> {
    let first = take()?;
    let rest = Global.slot(first)?.free_next();
    if rest != 0 {
        put(rest);
    }
    Some(first)
}

/// Gives batches back if `core` holds too many, or all of them if `all`. Owner only.
#[inline(always)]
pub(crate) fn spill(core: &CoreState, all: bool) {
    if core.free_slots() > HOARD || all {
        spill_batches(core, all);
    }
}

#[cold]
fn spill_batches(core: &CoreState, all: bool) {
    while core.free_slots() > if all { 0 } else { HOARD / 2 } {
        let mut first = 0;
        for _ in 0..BATCH {
            let Some(index) = core.take_slot(&Global) else { break };
            if let Some(slot) = Global.slot(index) {
                slot.set_free_next(first);
                first = index;
            }
        }
        if first == 0 {
            return;
        }
        put(first);
    }
}

/// A batch from the stack, or from fresh memory.
fn take() -> Option<u32> {
    let mut head = BATCHES.load(Ordering::Acquire);
    while let Some(slot) = if head as u32 == 0 { None } else { Global.slot(head as u32) } {
        // The link may be stale if another took the batch meanwhile; then the tag differs and the exchange fails.
        let next = (head >> 32).wrapping_add(1) << 32 | slot.batch_next() as u64;
        match BATCHES.compare_exchange_weak(head, next, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(head as u32),
            Err(now) => head = now,
        }
    }
    let (first, count) = grow()?;
    let mut taken = 0;
    let mut index = first;
    while index < first + count {
        let end = (index + BATCH).min(first + count);
        for i in index..end {
            if let Some(slot) = Global.slot(i) {
                slot.set_free_next(if i + 1 < end { i + 1 } else { 0 });
            }
        }
        if taken == 0 {
            taken = index
        } else {
            put(index)
        }
        index = end;
    }
    Some(taken)
}

fn put(first: u32) {
    let Some(slot): Option<&Slot> = Global.slot(first) else { return };
    let mut head = BATCHES.load(Ordering::Relaxed);
    loop {
        slot.set_batch_next(head as u32);
        let next = (head >> 32).wrapping_add(1) << 32 | first as u64;
        match BATCHES.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}
