//! Memory of free slots goes back to the system after a burst.
//!
//! Free slots lie in batches, in the order in which coroutines ended. Of each chunk it is known how many of its slots
//! lie there, and so how many chunks are wholly free. When these are a good part of what is free, all of it is sorted
//! by chunk, by a thread of its own: that takes as long as they are many. Of chunks that are wholly free some are kept;
//! the pages of the others are the system's until the chunk is needed again. Their addresses stay slots, of all-zero
//! words, which nobody uses, so that whoever has a stale id may go on looking. A chunk that comes back begins with a
//! generation that is later than all that its slots have had, so that no stale id names one of its coroutines.
#![allow(unsafe_code)] // Gives pages back.

use super::pool::{BATCH, put, take};
use super::{
    CHUNK_LAYOUT, CHUNK_SLOTS, CHUNKS, Global, SLOTS, chunk_of, chunks::ChunkSet, for_each_slot_of, usable,
};
use crate::os;
use crate::sched::{Slot, Table};
use crate::sync::{AtomicU16, AtomicU32, Ordering};
use std::thread;
use std::vec::Vec;

/// Wholly free chunks that are kept: a megabyte.
const KEPT_CHUNKS: u32 = 64;
/// So many chunks at least are given back at once, and at least this part of the free slots.
const LEAST_CHUNKS: u32 = 64;
const LEAST_PART: u32 = 4;

/// Chunks whose pages are the system's.
static RELEASED: ChunkSet = ChunkSet::new();
/// The latest generation of a slot of each released chunk.
static GENERATIONS: [AtomicU32; CHUNKS] = [const { AtomicU32::new(0) }; CHUNKS];
/// How many slots of each chunk lie in batches that no core has.
static FREE_OF: [AtomicU16; CHUNKS] = [const { AtomicU16::new(0) }; CHUNKS];
/// How many that are of all chunks together.
static FREE: AtomicU32 = AtomicU32::new(0);
/// How many chunks are wholly free.
static FREE_CHUNKS: AtomicU32 = AtomicU32::new(0);
/// How many chunks have memory.
static IN_USE: AtomicU32 = AtomicU32::new(0);
/// 1: a thread sorts.
static SORTING: AtomicU32 = AtomicU32::new(0);

/// The batch that begins with `first`, which only the caller knows, is about to be one that no core has, or has just
/// been taken from these.
pub(super) fn count_batch(first: u32, given: bool) {
    let mut run = (0, 0);
    for_each_free(first, |index, _| {
        if run.1 != 0 && run.0 != chunk_of(index) {
            count(run.0, run.1, given);
            run.1 = 0;
        }
        run = (chunk_of(index), run.1 + 1);
    });
    count(run.0, run.1, given);
}

/// Counts `slots` free slots of chunk `chunk` that come or go.
pub(super) fn count(chunk: u32, slots: u16, given: bool) {
    let Some(of_chunk) = FREE_OF.get(chunk as usize) else { return };
    let all = usable(chunk).1 as u16;
    if given {
        FREE.fetch_add(slots.into(), Ordering::Relaxed);
        if of_chunk.fetch_add(slots, Ordering::Relaxed).wrapping_add(slots) == all {
            FREE_CHUNKS.fetch_add(1, Ordering::Relaxed);
        }
    } else {
        FREE.fetch_sub(slots.into(), Ordering::Relaxed);
        if of_chunk.fetch_sub(slots, Ordering::Relaxed) == all {
            FREE_CHUNKS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether the slots that no core has are many, and most of all that there are.
#[inline]
pub(super) fn is_mostly_free() -> bool {
    let free = FREE.load(Ordering::Relaxed) / CHUNK_SLOTS;
    free >= KEPT_CHUNKS + LEAST_CHUNKS
        && free >= IN_USE.load(Ordering::Relaxed) / 8 * 7
        && os::can_discard(CHUNK_LAYOUT)
}

/// Memory was taken for a chunk.
pub(super) fn count_grown() {
    IN_USE.fetch_add(1, Ordering::Relaxed);
}

/// Whether [`shrink`] would give back what is worth its time.
pub(super) fn is_due() -> bool {
    let part = FREE.load(Ordering::Relaxed) / CHUNK_SLOTS / LEAST_PART;
    FREE_CHUNKS.load(Ordering::Relaxed) >= KEPT_CHUNKS + LEAST_CHUNKS.max(part)
        && os::can_discard(CHUNK_LAYOUT)
}

/// Whether nothing is in the chunk's slots.
#[cfg(feature = "scheduler")]
pub(crate) fn is_released(chunk: u32) -> bool {
    RELEASED.contains(chunk)
}

/// Has no thread sort until [`resume_sorts`]: in a forked child it would be gone, with all free slots in hand.
#[cfg(feature = "scheduler")]
pub(crate) fn pause_sorts() {
    while SORTING.swap(1, Ordering::Acquire) != 0 {
        thread::yield_now();
    }
}

/// See [`pause_sorts`].
#[cfg(feature = "scheduler")]
pub(crate) fn resume_sorts() {
    SORTING.store(0, Ordering::Release);
}

/// Waits for a thread that sorts, if there is one: it has all free slots in hand. Whether there was one.
#[cold]
pub(super) fn wait_for_sort() -> bool {
    let is_sorting = || SORTING.load(Ordering::Acquire) != 0;
    let was_sorting = is_sorting();
    while is_sorting() {
        thread::yield_now();
    }
    was_sorting
}

/// The first free slot of each chunk, which are linked, and how many there are.
type Lists = Vec<(u32, u32)>;

/// Empty ones, if there is memory for them.
fn lists() -> Option<Lists> {
    let mut lists = Vec::new();
    lists.try_reserve_exact(CHUNKS).ok()?;
    lists.resize(CHUNKS, (0, 0));
    Some(lists)
}

/// Has a thread give memory back, unless one is at it. If the system gives none, the caller does it; without memory for
/// it, nobody now.
#[cold]
pub(super) fn shrink() {
    if SORTING.swap(1, Ordering::Acquire) != 0 {
        return;
    }
    let start = |lists| {
        let builder = thread::Builder::new().name("heddle-shrink".into());
        builder.spawn(move || sort_and_release(lists)).is_ok()
    };
    match lists().map(start) {
        Some(true) => {}
        Some(false) => lists().map_or_else(|| SORTING.store(0, Ordering::Release), sort_and_release),
        None => SORTING.store(0, Ordering::Release),
    }
}

/// Sorts the free slots that no core has, and gives the pages of wholly free chunks back.
fn sort_and_release(mut chunks: Lists) {
    sort(&mut chunks);
    release(&mut chunks);
    // The lowest are put last, and taken first.
    let mut batch = (0, 0);
    for (first, _) in chunks.iter().rev() {
        for_each_free(*first, |index, slot| {
            slot.set_free_next(batch.0);
            batch = (index, batch.1 + 1);
            if batch.1 == BATCH {
                put(core::mem::take(&mut batch).0);
            }
        });
    }
    if batch.0 != 0 {
        put(batch.0);
    }
    SORTING.store(0, Ordering::Release);
}

/// Calls `each` with the free slots of a list that only the caller knows. It may link the slot anew.
fn for_each_free(first: u32, mut each: impl FnMut(u32, &'static Slot)) {
    let mut index = first;
    while let Some(slot) = if index == 0 { None } else { Global.slot(index) } {
        let next = slot.free_next();
        each(index, slot);
        index = next;
    }
}

/// Takes the batches that are there, and links their slots by chunk.
fn sort(chunks: &mut [(u32, u32)]) {
    // Batches that others give meanwhile are for the next time.
    let mut left = FREE.load(Ordering::Relaxed);
    while left != 0 {
        let Some(first) = take() else { return };
        for_each_free(first, |index, slot| {
            left = left.saturating_sub(1);
            if let Some((first, count)) = chunks.get_mut(chunk_of(index) as usize) {
                slot.set_free_next(*first);
                (*first, *count) = (index, *count + 1);
            }
        });
    }
}

/// Releases the wholly free chunks but for the lowest, and takes them out of `chunks`.
fn release(chunks: &mut [(u32, u32)]) {
    let mut kept = 0;
    for (chunk, free) in (0..).zip(chunks) {
        if free.1 != usable(chunk).1 {
            continue;
        }
        if kept < KEPT_CHUNKS {
            kept += 1;
            continue;
        }
        *free = (0, 0);
        let mut latest = 0;
        for_each_slot_of(chunk, &mut |_, slot| {
            latest = latest.max(slot.generation());
            true
        });
        if let (Some(generation), Some(place)) = (GENERATIONS.get(chunk as usize), SLOTS.get(chunk as usize))
        {
            generation.store(latest, Ordering::Relaxed);
            // SAFETY: a chunk, all of whose slots are free and known to nobody else; stale ids find none of theirs in
            // it, whether it has zeros or what it had.
            unsafe { os::discard(place.load(Ordering::Relaxed).cast(), CHUNK_LAYOUT) };
            IN_USE.fetch_sub(1, Ordering::Relaxed);
            RELEASED.insert(chunk);
        }
    }
}

/// Takes a released chunk into use again.
pub(super) fn take_back() -> Option<u32> {
    let chunk = RELEASED.take()?;
    count_grown();
    let latest = GENERATIONS.get(chunk as usize)?.load(Ordering::Relaxed);
    for_each_slot_of(chunk, &mut |_, slot| {
        slot.begin_after(latest);
        true
    });
    Some(chunk)
}
