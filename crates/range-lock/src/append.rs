//! Entering a chunk: judging what is there, and taking the first free slot behind it.
#![allow(unsafe_code)] // Follows the nodes of a chunk that a pin keeps in place.

use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;

use crate::chunk::{ChunkRef, Entry, SLOTS_MAX, seal};
use crate::epoch::Pin;
use crate::node::{Node, follow};
use crate::span::Bounds;
use crate::sync::Ordering;

/// Entries looked at together.
const PART: usize = 64;

/// How an append ended.
pub(crate) enum Append {
    /// The node is in; whether it has to wait.
    Done { blocked: bool },
    /// A conflict, and the request does not wait.
    Refused,
    /// The chunk is closed; whether something in it conflicts.
    Closed { blocked: bool },
}

/// Whether some node of these entries is in the way.
#[inline(never)]
fn blocks<T: Ord + Copy, P: Copy>(entries: &[Entry<T, P>], bounds: &Bounds<T>, shared: bool) -> bool {
    let mut overlapping = entries.iter().filter(|entry| entry.bounds().overlaps(bounds));
    // SAFETY: a node in a chunk is not reused while the chunk's readers are pinned.
    overlapping.any(|entry| unsafe { follow(entry.node(), PhantomData) }.blocks(shared))
}

impl<'g, T: Ord + Copy, P: Copy> ChunkRef<'g, T, P> {
    /// Whether some carried node is in the way.
    #[inline(always)]
    fn carried_conflict(self, bounds: &Bounds<T>, shared: bool) -> bool {
        let entries = self.entries();
        if entries.len() <= PART {
            return self.overlap(entries, bounds) && blocks(entries, bounds, shared);
        }
        self.many_conflict(entries, bounds, shared)
    }

    /// The same for many, from the last one: a request for everything that waits stands behind what it waits for, and
    /// keeps everybody else waiting too.
    #[inline(never)]
    fn many_conflict(self, entries: &[Entry<T, P>], bounds: &Bounds<T>, shared: bool) -> bool {
        entries.rchunks(PART).any(|part| self.overlap(part, bounds) && blocks(part, bounds, shared))
    }

    /// Whether the range of one of these entries overlaps, released or not.
    #[inline(always)]
    fn overlap(self, entries: &[Entry<T, P>], bounds: &Bounds<T>) -> bool {
        if self.get().open as usize | bounds.open != 0 {
            return entries.iter().any(|entry| entry.bounds().overlaps(bounds));
        }
        // Without a branch in it: nearly all of them do not overlap, and the way out comes too late to matter.
        // SAFETY: no bound is missing.
        entries.iter().fold(false, |found, entry| found | unsafe { entry.bounds().overlaps_closed(bounds) })
    }

    /// Whether some node in these slots, which are filled, is in the way.
    #[inline(never)]
    fn tail_blocks(self, pin: &Pin, filled: Range<usize>, bounds: &Bounds<T>, shared: bool) -> bool {
        self.slots()[filled].iter().any(|slot| {
            // SAFETY: as in `blocks`.
            let other: &Node<T, P> = unsafe { follow(pin.read(slot), PhantomData) };
            other.conflicts(bounds, shared)
        })
    }

    /// Tries to put `new`, the caller's own and not published, behind everything that is there. Its range and mode
    /// are passed along because they were written a moment ago: reading them back would stall.
    #[inline]
    pub(crate) fn append(
        self,
        pin: &Pin,
        new: NonNull<Node<T, P>>,
        bounds: &Bounds<T>,
        shared: bool,
        queue: bool,
    ) -> Append {
        // SAFETY: the caller owns the node.
        let node: &Node<T, P> = unsafe { follow(new.as_ptr(), PhantomData) };
        let slots = self.slots();
        // One that conflicts is enough to wait for: the others are looked at before it is granted. In a crowd, those that
        // came last are the likeliest.
        let crowd = slots.len() > SLOTS_MAX || self.entries().len() > PART;
        let mut blocked =
            (crowd && self.queue_blocks(pin, bounds, shared)) || self.carried_conflict(bounds, shared);
        if blocked && !queue {
            return Append::Refused;
        }
        // Relaxed: whoever noted it had filled a slot behind those that it passed over, and nothing is entered here
        // before that slot was read, which acquires the releases it had seen.
        let known_dead = self.get().dead.load(Ordering::Relaxed) as usize;
        // Nothing is noted for what was not looked at.
        let (mut at, noted) = if blocked { (self.filled(pin), usize::MAX) } else { (known_dead, known_dead) };
        let mut dead = at;
        let mut overlapping = false;
        loop {
            let mut end = seal();
            while let Some(slot) = slots.get(at) {
                end = pin.read(slot);
                if end.is_null() || end == seal() {
                    break;
                }
                // SAFETY: as in `blocks`.
                let other: &Node<T, P> = unsafe { follow(end, PhantomData) };
                if at == dead && !other.is_live() {
                    dead += 1;
                } else {
                    // As in `overlap`, no branch on what is as good as random.
                    overlapping |= other.bounds.overlaps(bounds);
                }
                at += 1;
            }
            if overlapping && self.tail_blocks(pin, dead..at, bounds, shared) {
                if !queue {
                    return Append::Refused;
                }
                blocked = true;
            }
            let Some(free) = slots.get(at).filter(|_| end.is_null()) else { break };
            node.arrive(blocked);
            // Release: the node's range and state.
            if free.compare_exchange(end, new.as_ptr(), Ordering::Release, Ordering::Relaxed).is_ok() {
                self.note_dead(noted, dead);
                return Append::Done { blocked };
            }
            self.get().header.state.fetch_add(1, Ordering::Relaxed);
        }
        // Not noted: no slot of this context's stands for what it has seen.
        Append::Closed { blocked }
    }

    /// Remembers how many slots at the front nobody needs to look at any more, for a context that has just filled a
    /// slot behind them.
    #[inline]
    fn note_dead(self, known: usize, dead: usize) {
        if dead > known {
            // Relaxed: the slot that was filled released what was seen. A smaller number that comes later is true too.
            self.get().dead.store(dead as u32, Ordering::Relaxed);
        }
    }
}
