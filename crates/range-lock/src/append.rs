//! Entering a chunk: judging what is there, and taking the first free slot behind it.
#![allow(unsafe_code)] // Follows the nodes of a chunk that a pin keeps in place.

use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::{self, NonNull};

use crate::chunk::{CROWD, ChunkRef, Entry, PART, UNSEEN, seal, settled};
use crate::epoch::Pin;
use crate::node::{Node, follow};
use crate::span::{Bounds, NO_END, NO_START};
use crate::sync::Ordering;

/// Entries of a bucket through which requests pass at most, without ever filling its tail.
const PASSED: usize = 32;

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

/// Whether the range of one of these entries overlaps, released or not.
///
/// # Safety
/// None of the ranges lacks a bound.
#[inline(always)]
unsafe fn overlap_closed<T: Ord + Copy, P: Copy>(entries: &[Entry<T, P>], bounds: &Bounds<T>) -> bool {
    // Without a branch in it: nearly all of them do not overlap, and the way out comes too late to matter.
    // SAFETY: see the contract.
    entries.iter().fold(false, |found, entry| found | unsafe { entry.bounds().overlaps_closed(bounds) })
}

impl<'g, T: Ord + Copy, P: Copy> ChunkRef<'g, T, P> {
    /// Whether some carried node is in the way, or one of the last to arrive. From the last one: a request for
    /// everything that waits stands behind what it waits for, and keeps everybody else waiting too.
    #[inline(never)]
    fn special_blocks(self, pin: &Pin, bounds: &Bounds<T>, shared: bool) -> bool {
        let special = self.get().special as usize;
        let overlap = |entries: &[Entry<T, P>]| {
            if (special & (NO_START | NO_END)) | bounds.open != 0 {
                return entries.iter().any(|entry| entry.bounds().overlaps(bounds));
            }
            // SAFETY: no bound is missing.
            unsafe { overlap_closed(entries, bounds) }
        };
        let mut parts = self.entries().rchunks(PART);
        (special & CROWD != 0 && self.queue_blocks(pin, bounds, shared))
            || parts.any(|part| overlap(part) && blocks(part, bounds, shared))
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
        let mut blocked = if self.get().special as usize | bounds.open == 0 {
            // SAFETY: no bound is missing.
            unsafe { overlap_closed(self.entries(), bounds) && blocks(self.entries(), bounds, shared) }
        } else {
            self.special_blocks(pin, bounds, shared)
        };
        if blocked {
            // One that conflicts is enough: the others are looked at before the request is granted.
            return if queue { self.append_waiting(pin, new) } else { Append::Refused };
        }
        // Relaxed: whoever noted it had filled a slot behind those that it passed over, and nothing is entered here
        // before that slot was read, which acquires the releases it had seen.
        let known_dead = self.get().dead.load(Ordering::Relaxed) as usize;
        let (slots, mut dead, mut at) = (self.slots(), known_dead, known_dead);
        let mut overlapping = false;
        loop {
            let mut end = seal();
            while let Some(slot) = slots.get(at) {
                end = settled(pin, slot);
                if end.is_null() || end == seal() {
                    break;
                }
                // SAFETY: as in `blocks`.
                let other: &Node<T, P> = unsafe { follow(end, PhantomData) };
                if at == dead && !other.is_live() {
                    dead += 1;
                } else {
                    // As in `overlap_closed`, no branch on what is as good as random.
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
            // Behind live ones it fills the tail, so that they become entries, which are searched faster; and where
            // there is much, so that the bucket is cut.
            let may_leave =
                at == dead && !blocked && self.entries().len() <= PASSED && pin.context().may_pass();
            let entered = if may_leave {
                node.arrive_passing(self.header(), at, pin.since(), shared);
                new.as_ptr().map_addr(|addr| addr | UNSEEN)
            } else {
                node.arrive(blocked);
                new.as_ptr()
            };
            // Release: the node's range and state. Acquire: the doings of whoever has left the slot.
            if free.compare_exchange(end, entered, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.note_dead(known_dead, dead);
                return Append::Done { blocked };
            }
            if may_leave {
                node.settle();
            }
            self.get().header.state.fetch_add(1, Ordering::Relaxed);
        }
        // Not noted: no slot of this context's stands for what it has seen.
        Append::Closed { blocked }
    }

    /// [`Self::append`] for a request that is known to wait. It looks at no node, so it notes nothing.
    #[cold]
    #[inline(never)]
    fn append_waiting(self, pin: &Pin, new: NonNull<Node<T, P>>) -> Append {
        // SAFETY: the caller owns the node.
        let node: &Node<T, P> = unsafe { follow(new.as_ptr(), PhantomData) };
        node.arrive(true);
        for slot in &self.slots()[self.filled(pin)..] {
            loop {
                let free = ptr::null_mut();
                // Release: the node's range and state. Not acquire: before it is granted, the waiter finds itself in
                // this slot, whose value continues the release sequence of whoever has left it, or in a successor,
                // whose builder has found it so.
                if slot.compare_exchange(free, new.as_ptr(), Ordering::Release, Ordering::Relaxed).is_ok() {
                    return Append::Done { blocked: true };
                }
                let found = settled(pin, slot);
                if found == seal() {
                    return Append::Closed { blocked: true };
                }
                if !found.is_null() {
                    break;
                }
            }
        }
        Append::Closed { blocked: true }
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
