//! One coroutine's entry in the table.

use super::Rank;
use crate::sync::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, maybe_const};

/// Where a coroutine is, as its owner sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[non_exhaustive]
pub enum Phase {
    /// In no queue; a wake queues it. Also the phase of a free slot.
    Waiting = 0,
    /// In its owner's ready queue of its level.
    Queued = 1,
    /// Being polled.
    Running = 2,
    /// Being polled, and woken since; or on its way from one core's queue to another's.
    Notified = 3,
}

/// The word that others may write: `generation << 32 | request`.
pub(super) mod remote {
    /// The slot is linked into an inbox, or about to be: whoever set it links it.
    pub const LINKED: u64 = 1;
    /// Queue the coroutine if it waits.
    pub const WAKE: u64 = 2;
    /// Mark the coroutine cancelled and queue it, so that its owner drops the future.
    pub const CANCEL: u64 = 4;
    /// Give it the base level in bits 8 to 13, with the order in bits 5 to 7.
    pub const BASE: u64 = 8;
    /// Give it the lent level in bits 16 to 22 (64: none).
    pub const LENT: u64 = 16;
    /// Every request bit and operand.
    pub const REQUESTS: u64 = 0xffff_ffff & !LINKED;
    /// Level and order, as they lie in a `Rank`.
    pub const BASE_SHIFT: u32 = 5;
    pub const BASE_MASK: u64 = 0x1ff << BASE_SHIFT;
    /// With `BASE`: if it is queued, it goes before the others of its new rank.
    pub const FRONT: u64 = 1 << 14;
    pub const LENT_SHIFT: u32 = 16;
    pub const LENT_MASK: u64 = 0x7f << LENT_SHIFT;
}

/// The word that only the holder of the owner's gate writes.
pub(super) mod local {
    pub const PHASE: u16 = 3;
    /// The future is to be dropped at the next turn.
    pub const CANCELLED: u16 = 4;
    /// Requeue at the head: the coroutine was preempted.
    pub const HEAD: u16 = 8;
    pub const LEVEL_SHIFT: u32 = 4;
    pub const LEVEL: u16 = 63 << LEVEL_SHIFT;
    pub const BASE_SHIFT: u32 = 10;
    pub const BASE: u16 = 63 << BASE_SHIFT;
}

/// The word that names the owner, which only the holder of the owner's gate writes: the core's index, and the order
/// within the base level, for which there is no room elsewhere.
mod owner {
    pub const INDEX: u16 = (1 << ORDER_SHIFT) - 1;
    pub const ORDER_SHIFT: u32 = 12;
}

/// Most cores of a table.
pub const MAX_OWNERS: usize = 1 << owner::ORDER_SHIFT;

/// One coroutine's entry in the table: 32 bytes, all-zero when it was never used.
#[repr(C, align(32))]
pub struct Slot {
    /// Generation and pending requests. Any core, by compare-and-swap.
    pub(super) remote: AtomicU64,
    /// The task that the layer above runs for this coroutine.
    pub(super) task: AtomicPtr<()>,
    /// Next slot in the inbox that this one is linked into. Whoever set `LINKED`, then the inbox's drainer.
    pub(super) inbox_next: AtomicU32,
    /// Next in the ready queue or in the free list. Owner's gate.
    pub(super) next: AtomicU32,
    /// Previous in the ready queue; meaningless for the queue's head. Owner's gate.
    pub(super) prev: AtomicU32,
    /// Phase, level and base level. Owner's gate.
    pub(super) local: AtomicU16,
    /// Index of the owning core, and the order. Written under the owner's gate; read by anybody, as a hint.
    owner: AtomicU16,
}

impl Slot {
    maybe_const! {
        /// A slot that was never used.
        pub fn new() -> Slot {
            Slot {
                remote: AtomicU64::new(0),
                task: AtomicPtr::new(core::ptr::null_mut()),
                inbox_next: AtomicU32::new(0),
                next: AtomicU32::new(0),
                prev: AtomicU32::new(0),
                local: AtomicU16::new(0),
                owner: AtomicU16::new(0),
            }
        }
    }

    /// The pointer that the layer above stored for this coroutine when it was spawned.
    #[inline(always)]
    pub fn task(&self) -> *mut () {
        self.task.load(Ordering::Relaxed)
    }

    /// Index of the core that owns the coroutine; a hint for those who don't hold that core's gate.
    #[inline(always)]
    pub fn owner(&self) -> u16 {
        self.owner.load(Ordering::Relaxed) & owner::INDEX
    }

    /// Gives it to another core. Gate of the owner held.
    #[inline(always)]
    pub(super) fn set_owner(&self, index: u16) {
        let order = self.owner.load(Ordering::Relaxed) & !owner::INDEX;
        self.owner.store(order | index, Ordering::Relaxed);
    }

    /// Its order within its own level.
    #[inline(always)]
    pub fn base_order(&self) -> u8 {
        (self.owner.load(Ordering::Relaxed) >> owner::ORDER_SHIFT) as u8
    }

    /// Gives it another order within its own level. Gate of the owner held.
    #[inline(always)]
    pub(super) fn set_base_order(&self, order: u8) {
        self.owner.store(self.owner() | (order as u16) << owner::ORDER_SHIFT, Ordering::Relaxed);
    }

    /// How urgent it is; a hint for those who don't hold the owner's gate. At a level that is lent to it, it is one of
    /// the first.
    #[inline]
    pub fn rank(&self) -> Rank {
        let level = self.level();
        Rank::pack(level, if level == self.base_level() { self.base_order() } else { 0 })
    }

    /// Whether [`Slot::rank`] may be another than the first of its level.
    #[inline(always)]
    pub(super) fn has_order(&self) -> bool {
        self.owner.load(Ordering::Relaxed) > owner::INDEX
    }

    /// The level at which it is scheduled; a hint for those who don't hold the owner's gate.
    #[inline(always)]
    pub fn level(&self) -> u8 {
        (self.local() >> local::LEVEL_SHIFT) as u8 & 63
    }

    /// Its own level, without what was lent to it.
    #[inline(always)]
    pub fn base_level(&self) -> u8 {
        (self.local() >> local::BASE_SHIFT) as u8 & 63
    }

    /// Its own level, a change that its owner has not applied yet included.
    pub fn asked_base_level(&self) -> u8 {
        let word = self.remote.load(Ordering::Relaxed);
        if word & remote::BASE != 0 { asked_rank(word).level() } else { self.base_level() }
    }

    /// Whether a wake waits for its owner, who has not applied it yet.
    pub fn is_asked_to_run(&self) -> bool {
        self.remote.load(Ordering::Relaxed) & (remote::WAKE | remote::CANCEL) != 0
    }

    /// Where it is; a hint for those who don't hold the owner's gate.
    #[inline(always)]
    pub fn phase(&self) -> Phase {
        match self.local() & local::PHASE {
            0 => Phase::Waiting,
            1 => Phase::Queued,
            2 => Phase::Running,
            _ => Phase::Notified,
        }
    }

    /// Generation of the slot; odd while a coroutine lives in it.
    #[inline(always)]
    pub fn generation(&self) -> u32 {
        (self.remote.load(Ordering::Relaxed) >> 32) as u32
    }

    #[inline(always)]
    pub(super) fn local(&self) -> u16 {
        self.local.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn set_local(&self, word: u16) {
        self.local.store(word, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn set_phase(&self, phase: Phase) {
        self.set_local((self.local() & !local::PHASE) | phase as u16);
    }

    /// Starts a new use of a free slot: returns the new generation. The caller is the only one who may know the
    /// slot, so plain stores are enough: a stale requester's compare-and-swap fails on the generation.
    #[inline]
    pub(super) fn begin(&self, task: *mut (), rank: Rank, owner: u16, phase: Phase, requests: u64) -> u32 {
        let generation = self.generation().wrapping_add(1);
        let level = rank.level() as u16;
        self.task.store(task, Ordering::Relaxed);
        self.set_local(phase as u16 | (level << local::LEVEL_SHIFT) | (level << local::BASE_SHIFT));
        self.owner.store(owner | (rank.order() as u16) << owner::ORDER_SHIFT, Ordering::Relaxed);
        self.remote.store(((generation as u64) << 32) | requests, Ordering::Relaxed);
        generation
    }
}

/// The rank that a request word with `BASE` asks for.
#[inline(always)]
pub(super) fn asked_rank(word: u64) -> Rank {
    let bits = (word & remote::BASE_MASK) >> remote::BASE_SHIFT;
    Rank::new((bits >> 3) as u8, bits as u8 & 7)
}

/// Lists of free slots, for the layer that shares them out among cores.
#[cfg(all(feature = "alloc", not(heddle_loom)))]
impl Slot {
    /// Next in a list of free slots that only the caller knows.
    pub(crate) fn free_next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn set_free_next(&self, index: u32) {
        self.next.store(index, Ordering::Relaxed);
    }

    /// Makes the free slot one that was used last in `generation`. The caller is the only one who may use it.
    #[cfg(feature = "std")]
    pub(crate) fn begin_after(&self, generation: u32) {
        self.remote.store((generation as u64) << 32, Ordering::Relaxed);
    }
}

impl Default for Slot {
    fn default() -> Slot {
        Slot::new()
    }
}
