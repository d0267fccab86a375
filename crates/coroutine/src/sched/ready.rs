//! Ready queues: one FIFO list per level and a bitmap of those that are not empty.
//!
//! Lists are linked through the slots in both directions, so that a queued coroutine changes its level in constant
//! time. All of it is guarded by the owner's gate; the words are atomic only so that others may read the bitmap.

use super::{Rank, Slot, Table};
use crate::sync::{AtomicU32, AtomicU64, Ordering, maybe_const};

/// Number of priority levels; 0 is the most urgent. The model checker pays for every word, so it gets few.
pub const LEVELS: usize = if cfg!(heddle_loom) { 4 } else { 64 };

/// One level's list.
#[repr(C)]
pub struct Level {
    head: AtomicU32,
    tail: AtomicU32,
    /// Number of the pick at which the level was last served or last became non-empty.
    since: AtomicU32,
    /// Most picks that its first coroutine ever saw go to other levels.
    longest: AtomicU32,
    /// How often a coroutine of the level was picked.
    picks: AtomicU64,
}

impl Level {
    maybe_const! {
        fn new() -> Level {
            Level {
                head: AtomicU32::new(0),
                tail: AtomicU32::new(0),
                since: AtomicU32::new(0),
                longest: AtomicU32::new(0),
                picks: AtomicU64::new(0),
            }
        }
    }
}

/// A core's ready queues.
#[repr(C)]
pub struct Ready {
    bitmap: AtomicU64,
    picks: AtomicU64,
    levels: [Level; LEVELS],
}

impl Ready {
    /// Empty queues.
    #[cfg(not(heddle_loom))]
    pub const fn new() -> Ready {
        Ready {
            bitmap: AtomicU64::new(0),
            picks: AtomicU64::new(0),
            levels: [const { Level::new() }; LEVELS],
        }
    }

    /// Empty queues.
    #[cfg(heddle_loom)]
    pub fn new() -> Ready {
        Ready {
            bitmap: AtomicU64::new(0),
            picks: AtomicU64::new(0),
            levels: core::array::from_fn(|_| Level::new()),
        }
    }

    /// Bit `n` is set while level `n` has a queued coroutine. Anybody may read it, as a hint.
    #[inline(always)]
    pub fn bitmap(&self) -> u64 {
        self.bitmap.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn level(&self, level: u8) -> &Level {
        &self.levels[level as usize & (LEVELS - 1)]
    }

    #[inline(always)]
    fn set(&self, level: u8) {
        self.level(level).since.store(self.picks() as u32, Ordering::Relaxed);
        self.bitmap.store(self.bitmap() | 1 << (level & 63), Ordering::Relaxed);
    }

    #[inline(always)]
    fn clear(&self, level: u8) {
        self.bitmap.store(self.bitmap() & !(1 << (level & 63)), Ordering::Relaxed);
    }

    /// Whether two or more coroutines are queued.
    #[inline(always)]
    pub fn has_two(&self) -> bool {
        let bitmap = self.bitmap();
        let first = self.level(bitmap.trailing_zeros() as u8);
        bitmap & bitmap.wrapping_sub(1) != 0
            || first.head.load(Ordering::Relaxed) != first.tail.load(Ordering::Relaxed)
    }

    /// How many coroutines were picked so far.
    #[inline(always)]
    pub fn picks(&self) -> u64 {
        self.picks.load(Ordering::Relaxed)
    }

    /// How many coroutines of `level` were picked so far.
    pub fn picks_of(&self, level: u8) -> u64 {
        self.level(level).picks.load(Ordering::Relaxed)
    }

    /// The longest that `level` ever waited while it was not empty, in picks of other levels.
    pub fn longest_wait(&self, level: u8) -> u32 {
        let waited = self.level(level).longest.load(Ordering::Relaxed);
        waited.max(self.waiting(level))
    }

    /// For how many picks of other levels `level` has now been waiting; 0 if it is empty.
    pub fn waiting(&self, level: u8) -> u32 {
        if self.bitmap() & 1 << (level & 63) == 0 {
            return 0;
        }
        (self.picks() as u32).wrapping_sub(self.level(level).since.load(Ordering::Relaxed))
    }

    /// Counts a pick of `level`.
    #[inline(always)]
    pub(super) fn count_pick(&self, level: u8) {
        let picks = self.picks();
        self.picks.store(picks.wrapping_add(1), Ordering::Relaxed);
        let list = self.level(level);
        let waited = (picks as u32).wrapping_sub(list.since.load(Ordering::Relaxed));
        if waited > list.longest.load(Ordering::Relaxed) {
            list.longest.store(waited, Ordering::Relaxed);
        }
        list.since.store((picks as u32).wrapping_add(1), Ordering::Relaxed);
        list.picks.store(list.picks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether something more urgent than `rank` is queued; a hint without the gate.
    #[inline(always)]
    pub fn is_before(&self, table: &impl Table, rank: Rank) -> bool {
        let first = self.bitmap().trailing_zeros();
        first < rank.level() as u32
            || rank.order() != 0 && first == rank.level() as u32 && self.first_rank(table) < Some(rank)
    }

    /// The rank of the most urgent; a hint without the gate.
    #[cold]
    pub fn first_rank(&self, table: &impl Table) -> Option<Rank> {
        let level = self.bitmap().trailing_zeros();
        let first = if level < 64 { self.first(level as u8) } else { return None };
        Some(table.slot(first).map_or(Rank::new(level as u8, 0), Slot::rank))
    }

    /// Index of the first coroutine of `level`, 0 if there is none.
    #[inline(always)]
    pub(super) fn first(&self, level: u8) -> u32 {
        self.level(level).head.load(Ordering::Relaxed)
    }

    /// Appends `slot`, of index `index`, to those of its order in `level`.
    #[inline(always)]
    pub(super) fn push_back(&self, table: &impl Table, index: u32, slot: &Slot, level: u8) {
        let list = self.level(level);
        let tail = list.tail.load(Ordering::Relaxed);
        let last = if tail == 0 { None } else { table.slot(tail) };
        if last.is_some_and(|last| last.base_order() != 0 && slot.rank() < last.rank()) {
            return self.insert(table, index, slot, level, false);
        }
        slot.next.store(0, Ordering::Relaxed);
        slot.prev.store(tail, Ordering::Relaxed);
        list.tail.store(index, Ordering::Relaxed);
        match last {
            Some(last) => last.next.store(index, Ordering::Relaxed),
            None => {
                list.head.store(index, Ordering::Relaxed);
                self.set(level);
            }
        }
    }

    /// Puts `slot`, of index `index`, into `level`, before all others of its order.
    #[inline]
    pub(super) fn push_front(&self, table: &impl Table, index: u32, slot: &Slot, level: u8) {
        let list = self.level(level);
        let head = list.head.load(Ordering::Relaxed);
        if head != 0 && slot.base_order() != 0 {
            return self.insert(table, index, slot, level, true);
        }
        slot.next.store(head, Ordering::Relaxed);
        list.head.store(index, Ordering::Relaxed);
        match if head == 0 { None } else { table.slot(head) } {
            Some(first) => first.prev.store(index, Ordering::Relaxed),
            None => {
                list.tail.store(index, Ordering::Relaxed);
                self.set(level);
            }
        }
    }

    /// Puts `slot`, of index `index`, into `level`, which is not empty, before or behind the others of its order.
    #[cold]
    #[inline(never)]
    fn insert(&self, table: &impl Table, index: u32, slot: &Slot, level: u8, ahead: bool) {
        let list = self.level(level);
        let rank = slot.rank();
        let (mut before, mut next) = (None, list.head.load(Ordering::Relaxed));
        let mut prev = 0;
        while let Some(other) = if next == 0 { None } else { table.slot(next) } {
            if other.rank() > rank || ahead && other.rank() == rank {
                break;
            }
            (before, prev) = (Some(other), next);
            next = other.next.load(Ordering::Relaxed);
        }
        slot.next.store(next, Ordering::Relaxed);
        slot.prev.store(prev, Ordering::Relaxed);
        match before {
            Some(before) => before.next.store(index, Ordering::Relaxed),
            None => list.head.store(index, Ordering::Relaxed),
        }
        match if next == 0 { None } else { table.slot(next) } {
            Some(behind) => behind.prev.store(index, Ordering::Relaxed),
            None => list.tail.store(index, Ordering::Relaxed),
        }
    }

    /// Takes the first coroutine of `level`. Does not touch the one behind it.
    #[inline(always)]
    pub(super) fn pop_front<'t>(&self, table: &'t impl Table, level: u8) -> Option<(u32, &'t Slot)> {
        let list = self.level(level);
        let index = list.head.load(Ordering::Relaxed);
        let slot = if index == 0 { None } else { table.slot(index) }?;
        let next = slot.next.load(Ordering::Relaxed);
        list.head.store(next, Ordering::Relaxed);
        if next == 0 {
            list.tail.store(0, Ordering::Relaxed);
            self.clear(level);
        }
        Some((index, slot))
    }

    /// Takes `slot`, of index `index`, out of `level`, in which it is queued.
    #[inline]
    pub(super) fn unlink(&self, table: &impl Table, index: u32, slot: &Slot, level: u8) {
        let list = self.level(level);
        if list.head.load(Ordering::Relaxed) == index {
            self.pop_front(table, level);
            return;
        }
        let next = slot.next.load(Ordering::Relaxed);
        let prev = slot.prev.load(Ordering::Relaxed);
        if let Some(before) = table.slot(prev) {
            before.next.store(next, Ordering::Relaxed);
        }
        match if next == 0 { None } else { table.slot(next) } {
            Some(behind) => behind.prev.store(prev, Ordering::Relaxed),
            None => list.tail.store(prev, Ordering::Relaxed),
        }
    }
}

impl Default for Ready {
    fn default() -> Ready {
        Ready::new()
    }
}
