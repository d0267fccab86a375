//! A core's inbox: where everybody but the owner leaves requests, lock-free, from any context.
//!
//! A stack of slots under one word, which also says whom to disturb: `watch << 24 | first index`. A core that parks
//! or enters a program sets `watch` in the same word as the list's head, by a compare-and-swap that fails if the
//! list is not empty; a poster reads it in the compare-and-swap that links its slot. So either the core sees the
//! request or the poster sees that it must kick: there is no window between them and no fence.
//!
//! A core that another stands in for while it is in a turn *keeps* its watch: a kick leaves the level of its post
//! there, and whatever is more urgent than that kicks again.

use super::{Slot, Table};
use crate::sync::{AtomicU32, Ordering, maybe_const};

const INDEX: u32 = (1 << 24) - 1;
const WATCH_SHIFT: u32 = 24;

/// The watch of a parked core: a post of any level kicks it.
pub const WATCH_PARKED: u8 = 64;

/// The watch of a core that nobody runs: every post kicks, so that another core takes the work, and none clears it.
pub const WATCH_ABSENT: u8 = 127;

/// With another watch: it is kept, see the module.
pub(super) const WATCH_KEPT: u8 = 1 << 7;

/// The level of a watch, without [`WATCH_KEPT`].
const WATCH_LEVEL: u8 = WATCH_KEPT - 1;

/// Whether a post of `level` kicks a core of this watch, and the watch from then on.
#[inline(always)]
const fn meet(watch: u8, level: u8) -> (bool, u8) {
    let below = watch & WATCH_LEVEL;
    if level >= below || below == WATCH_ABSENT {
        (level < below, watch)
    } else if watch & WATCH_KEPT != 0 {
        (true, WATCH_KEPT | level)
    } else {
        (true, 0)
    }
}

/// A core's inbox, on a cache line of its own.
#[repr(C, align(128))]
pub struct Inbox {
    word: AtomicU32,
}

impl Inbox {
    maybe_const! {
        /// An empty inbox of a core that nobody need kick.
        pub fn new() -> Inbox {
            Inbox { word: AtomicU32::new(0) }
        }
    }

    /// Whether no request is linked. The owner's quick look before each pick.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.word.load(Ordering::Relaxed) & INDEX == 0
    }

    /// The level below which a post kicks: 0 none, [`WATCH_PARKED`] all.
    #[inline(always)]
    pub fn watch(&self) -> u8 {
        (self.word.load(Ordering::Relaxed) >> WATCH_SHIFT) as u8 & WATCH_LEVEL
    }

    /// Whether the core is parked or runs a program, so that what is queued at home by a handler needs a kick. One that
    /// keeps its watch during its turns looks by itself before the next.
    #[inline(always)]
    pub(super) fn is_away(&self) -> bool {
        let watch = (self.word.load(Ordering::Relaxed) >> WATCH_SHIFT) as u8;
        watch != 0 && !(WATCH_KEPT..WATCH_KEPT | WATCH_PARKED).contains(&watch)
    }

    /// Links `slot`; returns whether the poster must kick the core. A kick clears the watch, or lowers one that is
    /// kept, so one poster does it.
    #[inline]
    pub(super) fn push(&self, index: u32, slot: &Slot, level: u8) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            slot.inbox_next.store(word & INDEX, Ordering::Relaxed);
            let (kick, watch) = meet((word >> WATCH_SHIFT) as u8, level);
            let kept = (watch as u32) << WATCH_SHIFT;
            // Release: the drainer sees the link, and everything that the requester did before. Acquire: what the
            // core did before it exposed itself is visible to the kick.
            match self.word.compare_exchange_weak(word, kept | index, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return kick,
                Err(now) => word = now,
            }
        }
    }

    /// Takes the watch off if a request of `level`, linked or about to be, should kick; returns whether the caller
    /// must. Always writes, so that a push that comes later sees what the caller did before.
    #[inline]
    pub fn prod(&self, level: u8) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (kick, watch) = meet((word >> WATCH_SHIFT) as u8, level);
            let left = (watch as u32) << WATCH_SHIFT | word & INDEX;
            match self.word.compare_exchange_weak(word, left, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return kick,
                Err(now) => word = now,
            }
        }
    }

    /// Owner: asks to be kicked for posts more urgent than `watch`. Fails if requests are waiting.
    #[inline]
    pub(super) fn expose(&self, watch: u8) -> bool {
        self.expose_from(self.word.load(Ordering::Relaxed), watch)
    }

    /// In the owner's gate: if the watch is one that is kept, and was lowered by a kick, it is `level` again. Fails if
    /// requests have come.
    pub(super) fn watch_again(&self, level: u8) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let watch = (word >> WATCH_SHIFT) as u8;
        let is_lower = watch & WATCH_KEPT != 0 && watch & WATCH_LEVEL < level;
        !is_lower || self.expose_from(word, WATCH_KEPT | level)
    }

    /// A watch that is kept is for all posts again, whoever has seen to those that are linked.
    #[cfg(all(feature = "std", not(heddle_loom)))]
    pub(crate) fn watch_all(&self) {
        let mut word = self.word.load(Ordering::Relaxed);
        while (word >> WATCH_SHIFT) as u8 & WATCH_KEPT != 0 {
            let all = ((WATCH_KEPT | WATCH_PARKED) as u32) << WATCH_SHIFT | word & INDEX;
            // Release and acquire: see `push`; the list goes on.
            match self.word.compare_exchange_weak(word, all, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    #[inline(always)]
    fn expose_from(&self, word: u32, watch: u8) -> bool {
        if word & INDEX != 0 {
            return false;
        }
        let exposed = (watch as u32) << WATCH_SHIFT;
        // Release: see `push`.
        word == exposed
            || self.word.compare_exchange(word, exposed, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Owner: nobody runs the core from now on. Returns whether requests are waiting.
    #[inline]
    pub fn leave(&self) -> bool {
        let absent = (WATCH_ABSENT as u32) << WATCH_SHIFT;
        // Release: see `push`.
        self.word.fetch_or(absent, Ordering::Release) & INDEX != 0
    }

    /// Owner: no kick is needed from now on.
    #[inline]
    pub fn cover(&self) {
        if self.word.load(Ordering::Relaxed) & !INDEX != 0 {
            self.word.fetch_and(INDEX, Ordering::Relaxed);
        }
    }

    /// Takes the whole list and hands its slots to `each`, oldest first. Under the owner's gate.
    #[inline]
    pub(super) fn drain<T: Table>(&self, table: &T, mut each: impl FnMut(u32, &Slot)) {
        // Acquire: pairs with each push's release, whose compare-and-swaps form one release sequence.
        let mut index = self.word.fetch_and(!INDEX, Ordering::Acquire) & INDEX;
        let mut reversed = 0;
        while let Some(slot) = if index == 0 { None } else { table.slot(index) } {
            let next = slot.inbox_next.load(Ordering::Relaxed);
            slot.inbox_next.store(reversed, Ordering::Relaxed);
            reversed = index;
            index = next;
        }
        while let Some(slot) = if reversed == 0 { None } else { table.slot(reversed) } {
            let index = reversed;
            reversed = slot.inbox_next.load(Ordering::Relaxed);
            each(index, slot);
        }
    }
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox::new()
    }
}
