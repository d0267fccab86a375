//! How free slots get from fresh memory to the cores, and from a core that has too many to one that has none.

#[cfg(feature = "std")]
use super::shrink;
use super::{Global, grow};
use crate::core_entry::CoreEntry;
use crate::sched::{Batches, CoreState, Table};

/// Slots in a batch.
pub(super) const BATCH: u32 = 64;

/// A core that holds more free slots than this gives a batch back.
const HOARD: u32 = 32 * BATCH;

static BATCHES: Batches = Batches::new();

/// Gives `core` a batch of free slots. `false` if there are none. Owner only.
#[cold]
pub(crate) fn refill(core: &CoreEntry) -> bool {
    let Some(mut index) = take().or_else(fresh).or_else(late) else { return false };
    while let Some(slot) = if index == 0 { None } else { Global.slot(index) } {
        let next = slot.free_next();
        core.note_slot(index);
        core.state.give_slot(&Global, index);
        index = next;
    }
    true
}

/// One free slot for a caller that is no core, who posts a coroutine to `core`.
pub(crate) fn single(core: &CoreEntry) -> Option<u32> {
    let first = match BATCHES.take(&Global) {
        Some(first) => {
            // The rest goes back as it is: a count of each slot would take longer than all else.
            #[cfg(feature = "std")]
            shrink::count(super::chunk_of(first), 1, false);
            let rest = Global.slot(first)?.free_next();
            if rest != 0 {
                BATCHES.put(&Global, rest);
            }
            first
        }
        None => {
            let first = fresh().or_else(late)?;
            let rest = Global.slot(first)?.free_next();
            if rest != 0 {
                put(rest);
            }
            first
        }
    };
    core.note_slot(first);
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
    give(core, if all { 0 } else { HOARD / 2 });
    #[cfg(feature = "std")]
    shrink_if_due(core);
}

/// Gives memory of free slots back to the system, if there is much. Owner only, before it sleeps.
#[cfg(feature = "std")]
#[inline]
pub(crate) fn shrink_if_due(core: &CoreState) {
    if shrink::is_mostly_free() {
        // One slot that the core keeps would keep a chunk.
        give(core, 0);
    }
    if shrink::is_due() {
        give(core, 0);
        shrink::shrink();
    }
}

/// Gives batches until `core` has no more than `rest` free slots.
fn give(core: &CoreState, rest: u32) {
    while core.free_slots() > rest {
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

/// A batch from the stack.
pub(super) fn take() -> Option<u32> {
    let first = BATCHES.take(&Global)?;
    #[cfg(feature = "std")]
    shrink::count_batch(first, false);
    Some(first)
}

/// Puts a batch of slots that only the caller knows on the stack.
pub(super) fn put(first: u32) {
    #[cfg(feature = "std")]
    shrink::count_batch(first, true);
    BATCHES.put(&Global, first);
}

/// A batch when there seems to be none any more: they may all be in the hands of a thread that sorts them, or have been
/// a moment ago.
#[cold]
fn late() -> Option<u32> {
    #[cfg(feature = "std")]
    while shrink::wait_for_sort() {
        if let Some(first) = take().or_else(fresh) {
            return Some(first);
        }
    }
    take().or_else(fresh)
}

/// A batch from fresh memory.
#[cold]
fn fresh() -> Option<u32> {
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
