//! The scheduler's core: it queues, picks, wakes and re-prioritizes, and knows nothing of futures.
//!
//! It is the part that a kernel, its programs and a vDSO can share, so it keeps all its state in two `repr(C)`
//! structures whose memory the caller gives, [`Slot`] (one per coroutine) and [`CoreState`] (one per core), refers
//! to them by index and never by address, and has no statics, no thread-locals, no function pointers and no panic.
//! All-zero memory is a valid empty state of both.
//!
//! The one idea behind it: **every coroutine has an owner, and only the owner's gate guards its queue state.** The
//! owner is the core that ran it last. Its own operations take the gate without an atomic read-modify-write
//! ([`Gate`]); everybody else (other cores, interrupt and signal handlers that find the gate closed) leaves a
//! request in the coroutine's `remote` word and links the slot into the owner's [`Inbox`], which costs two
//! read-modify-writes, no lock and no allocation. The owner applies requests before each pick. `PROTOCOL.md` has
//! the rules and the proofs.

mod batches;
mod core_state;
mod gate;
mod id;
mod inbox;
mod post;
mod rank;
mod ready;
mod slot;
mod steal;
mod watch;

#[cfg(all(test, heddle_loom, not(heddle_shuttle)))]
mod models;
#[cfg(all(test, heddle_shuttle))]
mod schedules;

pub use batches::Batches;
pub use core_state::{CoreState, Outcome, Picked};
pub use gate::{Gate, Stealing};
pub use id::{Id, MAX_SLOTS};
pub use inbox::{Inbox, WATCH_ABSENT, WATCH_PARKED};
pub use post::{Woken, cancel, lend, post_new, set_priority, set_rank, wake};
pub use rank::{ORDERS, Rank};
pub use ready::{LEVELS, ReadyQueues};
pub use slot::{MAX_OWNERS, Phase, Slot};
pub use steal::{BATCH, Fetched, fetch, steal, steal_before, steal_watched};

/// Where slots and cores are found by index: a slice, or a directory that grows.
///
/// Index 0 of slots is never used: it is the links' "none". An implementation must return the same object for an
/// index as long as the table exists, which is what lets a stale id be looked up safely.
pub trait Table {
    /// The slot of index `index`, if the table has one.
    fn slot(&self, index: u32) -> Option<&Slot>;
    /// The core of index `index`, if the table has one.
    fn core(&self, index: u32) -> Option<&CoreState>;
    /// Whether the coroutine in `slot`, which is queued and whose owner's gate the caller holds, may run on `core`.
    fn may_run(&self, slot: &Slot, core: &CoreState) -> bool {
        let _ = (slot, core);
        true
    }
    /// A request for a coroutine of `level` was left with the core of index `core`, which sleeps or runs a program and
    /// is not disturbed: what it runs is no less urgent.
    fn left(&self, core: u32, level: u8) {
        let _ = (core, level);
    }
    /// Makes the core of index `core` look at its inbox: it is parked, or runs a program less urgent than what was
    /// posted. Called from any context, under any gate; must not wait, and must not call the scheduler.
    fn kick(&self, core: u32);
    /// For those who watch: the coroutine in `slot`, of index `index`, has got into the ready queue of `level`. Under
    /// its owner's gate, so it must not call the scheduler.
    #[inline(always)]
    fn queued(&self, index: u32, slot: &Slot, level: u8) {
        let _ = (index, slot, level);
    }
    /// For those who watch: the coroutine `id` has just been woken, by somebody who is not its owner, unless it has
    /// ended meanwhile. From any context.
    #[inline(always)]
    fn posted(&self, id: Id) {
        let _ = id;
    }
}

/// A table over two slices, with a function to kick by.
#[derive(Clone, Copy)]
pub struct Flat<'a, K: Fn(u32)> {
    /// Slots by index; the first is unused.
    pub slots: &'a [Slot],
    /// Cores by index.
    pub cores: &'a [CoreState],
    /// See [`Table::kick`].
    pub kick: K,
}

impl<K: Fn(u32)> Table for Flat<'_, K> {
    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)
    }

    #[inline(always)]
    fn core(&self, index: u32) -> Option<&CoreState> {
        self.cores.get(index as usize)
    }

    #[inline]
    fn kick(&self, core: u32) {
        (self.kick)(core);
    }
}
