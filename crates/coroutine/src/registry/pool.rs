//! How free slots get from fresh memory to the cores, and from a core that has too many to one that has none.

use super::{Global, grow};
use crate::sched::{Batches, CoreState, Table};

/// Slots in a batch.
const BATCH: u32 = 64;

/// A core that holds more free slots than this gives a batch back.
const HOARD: u32 = 32 * BATCH;

static BATCHES: Batches = Batches::new();

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
        BATCHES.put(&Global, rest);
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
        BATCHES.put(&Global, first);
    }
}

/// A batch from the stack, or from fresh memory.
fn take() -> Option<u32> {
    if let Some(first) = BATCHES.take(&Global) {
        return Some(first);
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
            BATCHES.put(&Global, index)
        }
        index = end;
    }
    Some(taken)
}
