//! The waker of whoever awaits a coroutine, in one word.
//!
//! A joiner is nearly always a coroutine, whose waker is its id. Any other waker is kept in a box of its own.
#![allow(unsafe_code)] // One word is an id or a pointer, told apart by its lowest bit.

use crate::foreign::contain;
use crate::sched::Id;
use alloc::alloc::{Layout, alloc};
use alloc::boxed::Box;
use core::ptr::{self, NonNull};
use core::task::Waker;

/// Set in the word of an id; a box is aligned, so never in a pointer.
const ID: usize = 1;
/// An index has 24 bits, so there is room for the mark below it.
const INDEX_SHIFT: u32 = 8;

/// A waker: `generation << 32 | index << 8 | 1` if it is a coroutine's, else a pointer to it.
pub(super) struct Joiner(NonNull<Waker>);

const _: () = assert!(size_of::<Option<Joiner>>() == 8 && align_of::<Waker>() > ID);

#[inline(always)]
fn pack(id: Id) -> Option<NonNull<Waker>> {
    let bits = (id.generation() as usize) << 32 | (id.index() as usize) << INDEX_SHIFT | ID;
    NonNull::new(ptr::without_provenance_mut(bits))
}

#[cfg(not(heddle_loom))]
use crate::waker::{id_of, wake};

// The models of the join know nothing of coroutines.
#[cfg(heddle_loom)]
fn id_of(_: &Waker) -> Option<Id> {
    None
}
#[cfg(heddle_loom)]
fn wake(_: Id) {}

impl Joiner {
    /// Keeps `waker`; `None` if there is no memory for it, which a coroutine's waker does not need.
    #[inline(always)]
    pub fn new(waker: &Waker) -> Option<Joiner> {
        match id_of(waker) {
            Some(id) => pack(id).map(Joiner),
            None => Joiner::foreign(waker),
        }
    }

    #[cold]
    fn foreign(waker: &Waker) -> Option<Joiner> {
        let waker = waker.clone();
        // SAFETY: a waker is not zero-sized.
        let place = NonNull::new(unsafe { alloc(Layout::new::<Waker>()) })?.cast::<Waker>();
        // SAFETY: freshly allocated with the layout of a waker.
        unsafe { place.write(waker) };
        Some(Joiner(place))
    }

    #[inline(always)]
    fn id(&self) -> Option<Id> {
        let bits = self.0.as_ptr().addr();
        if bits & ID == 0 { None } else { Id::new(bits as u32 >> INDEX_SHIFT, (bits >> 32) as u32) }
    }

    /// The waker of a joiner that is no coroutine.
    fn other(&self) -> Option<&Waker> {
        if self.0.as_ptr().addr() & ID != 0 {
            return None;
        }
        // SAFETY: not an id, so a pointer to a waker that this owns.
        Some(unsafe { self.0.as_ref() })
    }

    /// Wakes it.
    #[inline(always)]
    pub fn wake(&self) {
        match self.id() {
            Some(id) => wake(id),
            None => contain(|| self.other().map_or((), Waker::wake_by_ref)),
        }
    }

    /// Whether it is `waker`, or another that does the same.
    #[inline(always)]
    pub fn is(&self, waker: &Waker) -> bool {
        match self.id() {
            Some(id) => id_of(waker) == Some(id),
            None => self.other().is_some_and(|other| other.will_wake(waker)),
        }
    }
}

impl Drop for Joiner {
    #[inline(always)]
    fn drop(&mut self) {
        if self.other().is_some() {
            // SAFETY: an owned waker, allocated with its own layout by the global allocator, as a box's is.
            contain(|| drop(unsafe { Box::from_raw(self.0.as_ptr()) }));
        }
    }
}
