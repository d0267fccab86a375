//! ReadyQueues queues: one FIFO list per rank, and bitmaps of those that are not empty.
//!
//! The rank is the index of the queue: to append is the same few steps whatever is queued, and to pick is to look for
//! the first bit of the levels, and where orders are used for the first of the orders. Lists are linked through the
//! slots in both directions, so that a queued coroutine changes its rank in constant time. All of it is guarded by the
//! owner's gate; the words are atomic only so that others may read them.

use super::{ORDERS, Rank, Slot, Table};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, maybe_const};

/// Number of priority levels; 0 is the most urgent. The model checker pays for every word, so it gets few.
pub const LEVELS: usize = if cfg!(heddle_loom) { 4 } else { 64 };

/// Queues of a level. Under the model checker all of its orders share one.
const QUEUES: usize = if cfg!(heddle_loom) { 1 } else { ORDERS as usize };

/// The coroutines of one rank.
#[repr(C)]
struct Queue {
    head: AtomicU32,
    tail: AtomicU32,
}

impl Queue {
    maybe_const! {
        fn new() -> Queue {
            Queue { head: AtomicU32::new(0), tail: AtomicU32::new(0) }
        }
    }
}

/// The counters of one level.
#[repr(C)]
struct Level {
    /// How often a coroutine of the level was picked.
    picks: AtomicU64,
    /// Number of the pick at which the level last became non-empty, or another was first picked after it.
    since: AtomicU32,
    /// Most picks that its first coroutine ever saw go to other levels.
    longest: AtomicU32,
}

impl Level {
    maybe_const! {
        fn new() -> Level {
            Level { picks: AtomicU64::new(0), since: AtomicU32::new(0), longest: AtomicU32::new(0) }
        }
    }
}

/// A core's ready queues.
#[repr(C)]
pub struct ReadyQueues {
    bitmap: AtomicU64,
    picks: AtomicU64,
    /// The level that was picked last.
    last: AtomicU32,
    /// For each level the orders other than 0 that are queued, a bit each.
    orders: [AtomicU8; LEVELS],
    queues: [Queue; LEVELS * QUEUES],
    levels: [Level; LEVELS],
}

impl ReadyQueues {
    /// Empty queues.
    #[cfg(not(heddle_loom))]
    pub const fn new() -> ReadyQueues {
        ReadyQueues {
            bitmap: AtomicU64::new(0),
            picks: AtomicU64::new(0),
            last: AtomicU32::new(0),
            orders: [const { AtomicU8::new(0) }; LEVELS],
            queues: [const { Queue::new() }; LEVELS * QUEUES],
            levels: [const { Level::new() }; LEVELS],
        }
    }

    /// Empty queues.
    #[cfg(heddle_loom)]
    pub fn new() -> ReadyQueues {
        ReadyQueues {
            bitmap: AtomicU64::new(0),
            picks: AtomicU64::new(0),
            last: AtomicU32::new(0),
            orders: core::array::from_fn(|_| AtomicU8::new(0)),
            queues: core::array::from_fn(|_| Queue::new()),
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
    fn queue(&self, rank: Rank) -> &Queue {
        if QUEUES == 1 {
            return &self.queues[rank.level() as usize & (LEVELS - 1)];
        }
        &self.queues[rank.to_bits() as usize & (LEVELS * QUEUES - 1)]
    }

    #[inline(always)]
    fn orders(&self, level: u8) -> &AtomicU8 {
        &self.orders[level as usize & (LEVELS - 1)]
    }

    /// The queue of `rank` is not empty any more.
    #[inline(always)]
    fn set(&self, rank: Rank) {
        let (bitmap, bit) = (self.bitmap(), 1 << (rank.level() & 63));
        if rank.order() != 0 && QUEUES != 1 {
            self.set_order(rank);
        }
        if bitmap & bit == 0 {
            self.level(rank.level()).since.store(self.picks() as u32, Ordering::Relaxed);
            self.bitmap.store(bitmap | bit, Ordering::Relaxed);
        }
    }

    #[cold]
    #[inline] // Instantiated by its users: the vDSO has no table through which crates could call each other.
    fn set_order(&self, rank: Rank) {
        let orders = self.orders(rank.level());
        orders.store(orders.load(Ordering::Relaxed) | 1 << rank.order(), Ordering::Relaxed);
    }

    /// The queue of order 0 of `level` is empty.
    #[inline(always)]
    fn clear(&self, level: u8) {
        if self.orders(level).load(Ordering::Relaxed) == 0 {
            self.bitmap.store(self.bitmap() & !(1 << (level & 63)), Ordering::Relaxed);
        }
    }

    /// The queue of `rank`, whose order is not 0, is empty.
    #[cold]
    #[inline] // Instantiated by its users: the vDSO has no table through which crates could call each other.
    fn clear_order(&self, rank: Rank) {
        let orders = self.orders(rank.level());
        orders.store(orders.load(Ordering::Relaxed) & !(1 << rank.order()), Ordering::Relaxed);
        if self.queue(rank.level().into()).head.load(Ordering::Relaxed) == 0 {
            self.clear(rank.level());
        }
    }

    /// The most urgent rank that is queued in `level`, which is not empty.
    #[inline(always)]
    fn first_rank_of(&self, level: u8) -> Rank {
        let first = Rank::pack(level, 0);
        if self.queue(first).head.load(Ordering::Relaxed) != 0 {
            return first;
        }
        Rank::new(level, self.orders(level).load(Ordering::Relaxed).trailing_zeros() as u8)
    }

    /// Whether two or more coroutines are queued.
    #[inline(always)]
    pub fn has_two(&self) -> bool {
        let bitmap = self.bitmap();
        let level = bitmap.trailing_zeros() as u8;
        let rank = self.first_rank_of(level);
        let queue = self.queue(rank);
        bitmap & bitmap.wrapping_sub(1) != 0
            || queue.head.load(Ordering::Relaxed) != queue.tail.load(Ordering::Relaxed)
            || self.orders(level).load(Ordering::Relaxed) & !(1 << rank.order()) != 0
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
        if self.bitmap() & 1 << (level & 63) == 0 || self.last.load(Ordering::Relaxed) == level as u32 {
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
        list.picks.store(list.picks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let last = self.last.load(Ordering::Relaxed) as u8;
        if last != level {
            self.switch(last, level, picks as u32);
        }
    }

    /// The pick number `pick` goes to another level than the one before.
    #[inline]
    fn switch(&self, last: u8, level: u8, pick: u32) {
        self.level(last).since.store(pick, Ordering::Relaxed);
        let list = self.level(level);
        let waited = pick.wrapping_sub(list.since.load(Ordering::Relaxed));
        if waited > list.longest.load(Ordering::Relaxed) {
            list.longest.store(waited, Ordering::Relaxed);
        }
        self.last.store(level as u32, Ordering::Relaxed);
    }

    /// Whether something more urgent than `rank` is queued; a hint without the gate.
    #[inline(always)]
    pub fn is_before(&self, rank: Rank) -> bool {
        let first = self.bitmap().trailing_zeros();
        first < rank.level() as u32
            || rank.order() != 0 && first == rank.level() as u32 && self.first_rank_of(first as u8) < rank
    }

    /// The rank of the most urgent; a hint without the gate.
    #[inline]
    pub fn first_rank(&self) -> Option<Rank> {
        let level = self.bitmap().trailing_zeros();
        (level < 64).then(|| self.first_rank_of(level as u8))
    }

    /// The first coroutine of `level`, 0 if there is none.
    #[inline(always)]
    pub(super) fn first(&self, level: u8) -> u32 {
        self.queue(self.first_rank_of(level)).head.load(Ordering::Relaxed)
    }

    /// The first coroutine of `level` behind those of `rank`, 0 if there is none.
    #[inline]
    pub(super) fn first_behind(&self, rank: Rank) -> u32 {
        let behind =
            self.orders(rank.level()).load(Ordering::Relaxed) & !((2u8 << rank.order()).wrapping_sub(1));
        if behind == 0 || QUEUES == 1 {
            return 0;
        }
        let next = Rank::new(rank.level(), behind.trailing_zeros() as u8);
        self.queue(next).head.load(Ordering::Relaxed)
    }

    /// Appends `slot`, of index `index`, to those of `rank`.
    #[inline(always)]
    pub(super) fn push_back(&self, table: &impl Table, index: u32, slot: &Slot, rank: Rank) {
        let queue = self.queue(rank);
        let tail = queue.tail.load(Ordering::Relaxed);
        slot.next.store(0, Ordering::Relaxed);
        slot.prev.store(tail, Ordering::Relaxed);
        queue.tail.store(index, Ordering::Relaxed);
        match if tail == 0 { None } else { table.slot(tail) } {
            Some(last) => last.next.store(index, Ordering::Relaxed),
            None => {
                queue.head.store(index, Ordering::Relaxed);
                self.set(rank);
            }
        }
    }

    /// Puts `slot`, of index `index`, before all others of `rank`.
    #[inline]
    pub(super) fn push_front(&self, table: &impl Table, index: u32, slot: &Slot, rank: Rank) {
        let queue = self.queue(rank);
        let head = queue.head.load(Ordering::Relaxed);
        slot.next.store(head, Ordering::Relaxed);
        queue.head.store(index, Ordering::Relaxed);
        match if head == 0 { None } else { table.slot(head) } {
            Some(first) => first.prev.store(index, Ordering::Relaxed),
            None => {
                queue.tail.store(index, Ordering::Relaxed);
                self.set(rank);
            }
        }
    }

    /// Takes the first coroutine of `level`. Does not touch the one behind it.
    #[inline(always)]
    pub(super) fn pop_front<'t>(&self, table: &'t impl Table, level: u8) -> Option<(u32, &'t Slot)> {
        let queue = self.queue(Rank::pack(level, 0));
        let index = queue.head.load(Ordering::Relaxed);
        if index == 0 {
            return self.pop_order(table, level);
        }
        let slot = table.slot(index)?;
        let next = slot.next.load(Ordering::Relaxed);
        queue.head.store(next, Ordering::Relaxed);
        if next == 0 {
            queue.tail.store(0, Ordering::Relaxed);
            self.clear(level);
        }
        Some((index, slot))
    }

    /// [`ReadyQueues::pop_front`] of a level that has none of order 0.
    #[cold]
    fn pop_order<'t>(&self, table: &'t impl Table, level: u8) -> Option<(u32, &'t Slot)> {
        let rank = self.first_rank_of(level);
        let index = self.queue(rank).head.load(Ordering::Relaxed);
        let slot = if index == 0 { None } else { table.slot(index) }?;
        self.unlink(table, index, slot, rank);
        Some((index, slot))
    }

    /// Takes `slot`, of index `index`, out of the queue of `rank`, in which it is.
    #[inline]
    pub(super) fn unlink(&self, table: &impl Table, index: u32, slot: &Slot, rank: Rank) {
        let queue = self.queue(rank);
        let next = slot.next.load(Ordering::Relaxed);
        if queue.head.load(Ordering::Relaxed) == index {
            queue.head.store(next, Ordering::Relaxed);
            if next == 0 {
                queue.tail.store(0, Ordering::Relaxed);
                if rank.order() == 0 || QUEUES == 1 {
                    self.clear(rank.level())
                } else {
                    self.clear_order(rank)
                }
            }
            return;
        }
        let prev = slot.prev.load(Ordering::Relaxed);
        if let Some(before) = table.slot(prev) {
            before.next.store(next, Ordering::Relaxed);
        }
        match if next == 0 { None } else { table.slot(next) } {
            Some(behind) => behind.prev.store(prev, Ordering::Relaxed),
            None => queue.tail.store(prev, Ordering::Relaxed),
        }
    }
}

impl Default for ReadyQueues {
    fn default() -> ReadyQueues {
        ReadyQueues::new()
    }
}
