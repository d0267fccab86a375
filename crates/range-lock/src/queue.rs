//! Waiting in a chunk: finding what a waiter waits for, and who waits for what was released.
//!
//! Waiters for one range stand in a row. The first of them is found from the front, where all that is released has been
//! passed over; a newcomer finds itself and the one before it from the end.
#![allow(unsafe_code)] // Follows the nodes of a chunk that a pin keeps in place.

use core::iter;
use core::marker::PhantomData;
use core::ptr;

use crate::chunk::{ChunkRef, seal, settled};
use crate::epoch::Pin;
use crate::node::{Node, follow};
use crate::span::Bounds;
use crate::sync::Ordering;

/// Nodes looked at from the front, before a waiter looks for itself from the end.
const FRONT: usize = if cfg!(heddle_loom) { 2 } else { 32 };
/// Waiters looked at by a newcomer, from the last one.
const BACK: usize = 8;

impl<'g, T: Ord + Copy, P: Copy> ChunkRef<'g, T, P> {
    /// Slots that are filled for good, by bisection: they fill in order, and only the last one's node may leave.
    #[cold]
    #[inline(never)]
    pub(crate) fn filled(self, pin: &Pin) -> usize {
        let is_filled = |node: *mut Node<T, P>| !node.is_null() && node != seal();
        let filled = self.slots().partition_point(|slot| is_filled(pin.read(slot)));
        match filled.checked_sub(1) {
            Some(last) if !is_filled(settled(pin, &self.slots()[last])) => last,
            _ => filled,
        }
    }

    /// The node at a place in the order of arrival, which is filled.
    fn at(self, pin: &'g Pin, place: usize) -> &'g Node<T, P> {
        let entries = self.entries();
        let node = match entries.get(place) {
            Some(entry) => entry.node(),
            None => pin.read(&self.slots()[place - entries.len()]),
        };
        // SAFETY: a node in a chunk is not reused while the chunk's readers are pinned.
        unsafe { follow(node, PhantomData) }
    }

    /// How many nodes from the first one on are known to be released. Acquire: what their holders did, for a waiter
    /// that is granted without looking at them again.
    fn passed(self) -> usize {
        self.get().passed.load(Ordering::Acquire) as usize
    }

    /// Notes that the nodes before `place` were seen released.
    fn pass(self, known: usize, place: usize) {
        if place > known {
            // Release: what was acquired with their states. A smaller number that comes later is true too.
            self.get().passed.store(place as u32, Ordering::Release);
        }
    }

    /// All nodes that may be live, in the order of their arrival; notes how many at the front are not.
    pub(crate) fn standing(self, pin: &'g Pin) -> impl Iterator<Item = &'g Node<T, P>> {
        let (mut known, end) = (self.passed(), self.entries().len() + self.filled(pin));
        let (mut place, mut contiguous) = (known, known);
        iter::from_fn(move || {
            while place < end {
                let node = self.at(pin, place);
                place += 1;
                if node.is_live() {
                    self.pass(known, contiguous);
                    known = contiguous;
                    return Some(node);
                }
                if contiguous + 1 == place {
                    contiguous = place;
                }
            }
            None
        })
    }

    /// The last live node before `mine` that conflicts with it; `None` if `mine` is not here.
    pub(crate) fn last_conflict(self, pin: &'g Pin, mine: &Node<T, P>) -> Option<Option<&'g Node<T, P>>> {
        let mut last = None;
        for other in self.standing(pin).take(FRONT) {
            if ptr::eq(other, mine) {
                return Some(last);
            }
            if other.conflicts(&mine.bounds, mine.is_shared()) {
                last = Some(other);
            }
        }
        let passed = self.passed();
        let mut places = (passed..self.entries().len() + self.filled(pin)).rev();
        places.find(|&place| ptr::eq(self.at(pin, place), mine))?;
        let mut before = places.map(|place| self.at(pin, place));
        Some(before.find(|other| other.conflicts(&mine.bounds, mine.is_shared())))
    }

    /// Whether one of the last to arrive is in the way.
    pub(crate) fn queue_blocks(self, pin: &Pin, bounds: &Bounds<T>, shared: bool) -> bool {
        let filled = self.filled(pin);
        self.slots()[filled.saturating_sub(BACK)..filled].iter().any(|slot| {
            // SAFETY: as in `at`.
            let other: &Node<T, P> = unsafe { follow(pin.read(slot), PhantomData) };
            other.conflicts(bounds, shared)
        })
    }
}
