//! One core's scheduling state and what its owner does with it.

use super::slot::{asked_rank, local, remote};
use super::steal::LOOK;
use super::{Gate, Id, Inbox, Phase, Rank, ReadyQueues, Slot, Table};
use crate::sync::{AtomicU32, AtomicU64, Ordering, maybe_const};

/// A core's whole state. All-zero memory is a core of index 0 with nothing to do.
#[repr(C, align(128))]
pub struct CoreState {
    pub(super) gate: Gate,
    pub(super) inbox: Inbox,
    /// Index in the table, which slots name in `owner`.
    index: AtomicU32,
    /// Number within its machine, which core masks refer to.
    number: AtomicU32,
    /// First free slot that belongs to this core, linked through `next`.
    free: AtomicU32,
    free_count: AtomicU32,
    /// Every how many picks a level below the most urgent one is served; 0 never.
    share: AtomicU32,
    /// The most urgent level at whose cost that is.
    share_from: AtomicU32,
    /// Picks until the next such turn, and the level that had the last one.
    share_left: AtomicU32,
    share_level: AtomicU32,
    pub(super) steals: AtomicU32,
    /// How often nothing was ready.
    idles: AtomicU64,
    wakes: AtomicU64,
    pub(super) posts: AtomicU64,
    pub(super) ready: ReadyQueues,
}

/// A coroutine that was taken from the queue to be run, until [`CoreState::finish`].
pub struct Picked<'t> {
    /// Its name.
    pub id: Id,
    /// The pointer that the layer above stored for it.
    pub task: *mut (),
    /// The level at which it was picked.
    pub level: u8,
    /// Its future is to be dropped, not polled.
    pub cancelled: bool,
    /// Its entry in the table.
    pub slot: &'t Slot,
}

/// How a turn of a coroutine ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It waits, unless it was woken meanwhile.
    Pending,
    /// It gave way and is ready.
    Yielded,
    /// It has ended: its id becomes stale and its slot free.
    Complete,
}

impl CoreState {
    maybe_const! {
        /// A core with nothing to do.
        pub fn new() -> CoreState {
            CoreState {
                gate: Gate::new(),
                inbox: Inbox::new(),
                index: AtomicU32::new(0),
                number: AtomicU32::new(0),
                free: AtomicU32::new(0),
                free_count: AtomicU32::new(0),
                share: AtomicU32::new(0),
                share_from: AtomicU32::new(0),
                share_left: AtomicU32::new(0),
                share_level: AtomicU32::new(0),
                steals: AtomicU32::new(0),
                idles: AtomicU64::new(0),
                wakes: AtomicU64::new(0),
                posts: AtomicU64::new(0),
                ready: ReadyQueues::new(),
            }
        }
    }

    /// Tells the core its index in the table and its number in core masks. Before it is used.
    #[inline]
    pub fn set_index(&self, index: u16, number: u32) {
        self.index.store(index as u32, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
    }

    /// Serves a level below the most urgent one at every `every`-th pick, in rotation; 0, the default, never.
    pub fn set_share(&self, every: u32) {
        self.share.store(every, Ordering::Relaxed);
        self.share_left.store(every, Ordering::Relaxed);
    }

    /// Levels more urgent than `level` are exact: nothing below is served at their cost.
    pub fn set_share_from(&self, level: u8) {
        self.share_from.store(level as u32, Ordering::Relaxed);
    }

    /// Index in the table.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// Number in core masks.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// The lock around the ready queues.
    #[inline(always)]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Where others leave requests.
    #[inline(always)]
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// The ready queues: their bitmap and counters may be read by anybody.
    #[inline(always)]
    pub fn ready(&self) -> &ReadyQueues {
        &self.ready
    }

    /// How often the core looked for a coroutine and none was ready. Unchanged between two looks: it was busy.
    #[inline]
    pub fn idles(&self) -> u64 {
        self.idles.load(Ordering::Relaxed)
    }

    /// How many wakes made a waiting coroutine ready here.
    pub fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    /// How many requests came through the inbox.
    pub fn posts(&self) -> u64 {
        self.posts.load(Ordering::Relaxed)
    }

    /// How many coroutines this core took from others.
    pub fn steals(&self) -> u32 {
        self.steals.load(Ordering::Relaxed)
    }

    /// How many free slots this core holds.
    #[inline(always)]
    pub fn free_slots(&self) -> u32 {
        self.free_count.load(Ordering::Relaxed)
    }

    /// Whether a coroutine is ready here or a request waits; a hint, since a thief may be moving it.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.ready.bitmap() != 0 || !self.inbox.is_empty()
    }

    /// Owner: about to sleep ([`WATCH_PARKED`](super::WATCH_PARKED)) or to run a program of level `watch`. `true`:
    /// nothing more urgent is ready, and whoever posts something more urgent from now on kicks the core, until
    /// [`Inbox::cover`]. `false`: there is, or may be.
    #[inline]
    pub fn expose(&self, watch: u8) -> bool {
        self.expose_unless(watch, || self.ready.bitmap().trailing_zeros() < watch as u32)
    }

    /// [`CoreState::expose`] with a program of `rank`. Others of its level disturb it too, if some of them could be
    /// more urgent.
    #[inline]
    pub fn expose_program(&self, rank: Rank) -> bool {
        let watch = rank.level() + (rank.order() != 0) as u8;
        self.expose_unless(watch, || self.ready.is_before(rank))
    }

    #[inline(always)]
    fn expose_unless(&self, watch: u8, is_before: impl FnOnce() -> bool) -> bool {
        if !self.inbox.expose(watch) {
            return false;
        }
        // Only now, and in the gate: a thief may have moved a request from the inbox to the queue, between a look at
        // the one and a look at the other. From here on whatever gets into the queue came through a kick.
        self.gate.enter();
        let urgent = is_before();
        self.gate.leave();
        if urgent {
            self.inbox.cover();
        }
        !urgent
    }

    /// Owner: looks at the most urgent coroutine that is queued.
    pub fn first_queued<R>(&self, table: &impl Table, look: impl FnOnce(&Slot) -> R) -> Option<R> {
        self.gate.enter();
        let level = self.ready.bitmap().trailing_zeros();
        let slot = if level < 64 { table.slot(self.ready.first(level as u8)) } else { None };
        let seen = slot.map(look);
        self.gate.leave();
        seen
    }

    /// Owner: whether one of the first coroutines of some level is as `is_wanted` says.
    pub fn is_any_queued(&self, table: &impl Table, mut is_wanted: impl FnMut(&Slot) -> bool) -> bool {
        self.gate.enter();
        let (mut levels, mut found) = (self.ready.bitmap(), false);
        while levels != 0 && !found {
            let level = levels.trailing_zeros() as u8;
            levels &= levels.wrapping_sub(1);
            let mut index = self.ready.first(level);
            for _ in 0..LOOK {
                let Some(slot) = (if index == 0 { None } else { table.slot(index) }) else { break };
                found = is_wanted(slot);
                if found {
                    break;
                }
                index = self.next_queued(slot);
            }
        }
        self.gate.leave();
        found
    }

    /// The coroutine that is queued behind the one in `slot` at its level, 0 if none. Gate held.
    #[inline(always)]
    fn next_queued(&self, slot: &Slot) -> u32 {
        match slot.next.load(Ordering::Relaxed) {
            0 => self.ready.first_behind(slot.rank()),
            next => next,
        }
    }

    /// Owner: adds a free slot, fresh or given by another core.
    pub fn give_slot(&self, table: &impl Table, index: u32) {
        if let Some(slot) = table.slot(index) {
            self.gate.enter();
            self.push_free(index, slot);
            self.gate.leave();
        }
    }

    /// Owner: takes a free slot away, for another core.
    pub fn take_slot(&self, table: &impl Table) -> Option<u32> {
        self.gate.enter();
        let taken = self.pop_free(table);
        self.gate.leave();
        taken.map(|(index, _)| index)
    }

    /// Owner: queues a new coroutine at the tail of `rank`, or of a level. `None` if the core has no free slot.
    #[inline(always)]
    pub fn spawn(&self, table: &impl Table, task: *mut (), rank: impl Into<Rank>) -> Option<Id> {
        let rank = rank.into();
        self.gate.enter();
        let spawned = self.pop_free(table).and_then(|(index, slot)| {
            let generation = slot.begin(task, rank, self.index() as u16, Phase::Queued, 0);
            self.ready.push_back(table, index, slot, rank);
            table.queued(index, slot, rank.level());
            Id::of_living(index, generation)
        });
        self.gate.leave();
        spawned
    }

    /// Owner: applies what others posted.
    #[inline(always)]
    pub fn drain(&self, table: &impl Table) {
        if !self.inbox.is_empty() {
            self.gate.enter();
            self.drain_in_gate(table);
            self.gate.leave();
        }
    }

    /// Owner, with an inbox that is empty and that nobody else knows: puts `slot` into it if it was to get there.
    #[cfg(all(feature = "std", feature = "scheduler", not(heddle_loom)))]
    pub(crate) fn link_again(&self, index: u32, slot: &Slot) {
        if slot.remote.load(Ordering::Relaxed) & remote::LINKED != 0 {
            let _ = self.inbox.push(index, slot, slot.level());
        }
    }

    /// Owner: applies what others posted and takes the next coroutine to run: the first of the most urgent level,
    /// but for the shares of lower levels.
    #[inline(always)]
    pub fn pick<'t>(&self, table: &'t impl Table) -> Option<Picked<'t>> {
        self.gate.enter();
        if !self.inbox.is_empty() {
            self.drain_in_gate(table);
        }
        let picked = self.pick_in_gate(table);
        self.gate.leave();
        picked
    }

    #[inline(always)]
    fn pick_in_gate<'t>(&self, table: &'t impl Table) -> Option<Picked<'t>> {
        let bitmap = self.ready.bitmap();
        if bitmap == 0 {
            self.count_idle();
            return None;
        }
        self.pick_of(table, self.level_to_pick(bitmap))
    }

    /// Owner: nothing was ready.
    #[inline(always)]
    pub(crate) fn count_idle(&self) {
        self.idles.store(self.idles().wrapping_add(1), Ordering::Relaxed);
    }

    /// The level whose turn it is. Gate held.
    #[inline(always)]
    pub(super) fn level_to_pick(&self, bitmap: u64) -> u8 {
        let level = bitmap.trailing_zeros() as u8;
        if self.share.load(Ordering::Relaxed) == 0 { level } else { self.shared_level(bitmap, level) }
    }

    /// Takes the first coroutine of `level`. Gate held.
    #[inline(always)]
    pub(super) fn pick_of<'t>(&self, table: &'t impl Table, level: u8) -> Option<Picked<'t>> {
        let (index, slot) = self.ready.pop_front(table, level)?;
        self.ready.count_pick(level);
        let word = slot.local();
        slot.set_local((word & !(local::PHASE | local::HEAD)) | Phase::Running as u16);
        Some(Picked {
            id: Id::of_living(index, slot.generation())?,
            task: slot.task(),
            level,
            cancelled: word & local::CANCELLED != 0,
            slot,
        })
    }

    /// Whose turn it is when lower levels have a share: `first`, or at every `share`-th pick the next in rotation.
    #[cold]
    #[inline]
    fn shared_level(&self, bitmap: u64, first: u8) -> u8 {
        let left = self.share_left.load(Ordering::Relaxed).saturating_sub(1);
        if left != 0 {
            self.share_left.store(left, Ordering::Relaxed);
            return first;
        }
        self.share_left.store(self.share.load(Ordering::Relaxed), Ordering::Relaxed);
        let lower = bitmap & bitmap.wrapping_sub(1);
        if lower == 0 || (first as u32) < self.share_from.load(Ordering::Relaxed) {
            return first;
        }
        let last = self.share_level.load(Ordering::Relaxed) & 63;
        let behind = lower & !((2u64 << last).wrapping_sub(1));
        let level = if behind != 0 { behind } else { lower }.trailing_zeros();
        self.share_level.store(level, Ordering::Relaxed);
        level as u8
    }

    /// Owner: ends the turn of the coroutine that [`CoreState::pick`] gave.
    #[inline(always)]
    pub fn finish(&self, table: &impl Table, id: Id, slot: &Slot, outcome: Outcome) {
        self.gate.enter();
        match outcome {
            Outcome::Yielded => self.enqueue(table, id.index(), slot),
            Outcome::Pending if slot.phase() == Phase::Notified => self.enqueue(table, id.index(), slot),
            Outcome::Pending => slot.set_phase(Phase::Waiting),
            Outcome::Complete => self.release(id.index(), slot),
        }
        self.gate.leave();
    }

    /// Owner, between turns: takes the coroutine in `slot`, queued or waiting, for a last turn in which it is
    /// cancelled. `None` if the slot is free, another core's, or in a turn further out on the owner's stack.
    pub fn pick_to_cancel<'t>(&self, table: &impl Table, index: u32, slot: &'t Slot) -> Option<Picked<'t>> {
        self.gate.enter();
        let mine = slot.owner() as u32 == self.index();
        let id = Id::new(index, slot.generation()).filter(|_| mine);
        let phase = slot.phase();
        let (rank, level) = (slot.rank(), slot.level());
        let idle = matches!(phase, Phase::Queued | Phase::Waiting);
        if id.is_some() && phase == Phase::Queued {
            self.ready.unlink(table, index, slot, rank);
        }
        if id.is_some() && idle {
            slot.set_phase(Phase::Running);
        }
        self.gate.leave();
        Some(Picked { id: id.filter(|_| idle)?, task: slot.task(), level, cancelled: true, slot })
    }

    /// Owner, instead of running the coroutine that [`CoreState::pick`] gave: makes it ready on `target`.
    pub fn hand_over(&self, table: &impl Table, id: Id, slot: &Slot, target: &CoreState) {
        self.gate.enter();
        slot.set_phase(Phase::Waiting);
        slot.set_owner(target.index() as u16);
        self.gate.leave();
        super::wake(table, None, id);
    }

    /// Owner, during the turn of `slot`: if it is queued again, it goes before the others of its level.
    #[inline]
    pub fn requeue_at_head(&self, slot: &Slot) {
        self.gate.enter();
        slot.set_local(slot.local() | local::HEAD);
        self.gate.leave();
    }

    /// Queues a coroutine that is in no queue. Gate held.
    #[inline(always)]
    pub(super) fn enqueue(&self, table: &impl Table, index: u32, slot: &Slot) {
        let word = (slot.local() & !local::PHASE) | Phase::Queued as u16;
        slot.set_local(word & !local::HEAD);
        let level = (word >> local::LEVEL_SHIFT) as u8 & 63;
        if word & local::HEAD != 0 || slot.has_order() {
            self.enqueue_in_order(table, index, slot, word & local::HEAD != 0);
        } else {
            self.ready.push_back(table, index, slot, Rank::pack(level, 0));
        }
        table.queued(index, slot, level);
    }

    /// Puts `slot` behind the others of its rank, or with `front` before them.
    #[inline(never)]
    fn enqueue_in_order(&self, table: &impl Table, index: u32, slot: &Slot, front: bool) {
        if front {
            self.ready.push_front(table, index, slot, slot.rank());
        } else {
            self.ready.push_back(table, index, slot, slot.rank());
        }
    }

    /// A wake reached the owner's queue. Gate held, `slot` owned.
    #[inline(always)]
    pub(super) fn wake_in_gate(&self, table: &impl Table, index: u32, slot: &Slot) -> bool {
        match slot.phase() {
            Phase::Waiting => {
                self.enqueue(table, index, slot);
                self.wakes.store(self.wakes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
                true
            }
            Phase::Running => {
                slot.set_phase(Phase::Notified);
                false
            }
            Phase::Queued | Phase::Notified => false,
        }
    }

    /// A cancellation reached the owner's queue. Gate held, `slot` owned.
    pub(super) fn cancel_in_gate(&self, table: &impl Table, index: u32, slot: &Slot) {
        slot.set_local(slot.local() | local::CANCELLED);
        self.wake_in_gate(table, index, slot);
    }

    /// Gives `slot` another base rank or lent level (64: nothing is lent), and if it is queued, another place: behind
    /// the others of its rank, or with `front` before them. Gate held, `slot` owned.
    pub(super) fn relevel(
        &self,
        table: &impl Table,
        index: u32,
        slot: &Slot,
        base: Option<Rank>,
        lent: Option<u8>,
        front: bool,
    ) {
        let old_rank = slot.rank();
        let (old, old_base) = (slot.level(), slot.base_level());
        let lent = lent.unwrap_or(if old < old_base { old } else { LEVEL_NONE });
        if let Some(base) = base {
            slot.set_base_order(base.order());
        }
        let base = base.map_or(old_base, Rank::level);
        let level = base.min(lent);
        let word = slot.local() & !(local::LEVEL | local::BASE);
        slot.set_local(word | ((level as u16) << local::LEVEL_SHIFT) | ((base as u16) << local::BASE_SHIFT));
        if slot.rank() != old_rank && slot.phase() == Phase::Queued {
            self.ready.unlink(table, index, slot, old_rank);
            self.enqueue_in_order(table, index, slot, front);
            table.queued(index, slot, level);
        }
    }

    /// Takes the first coroutine of `level`, of a rank before `before`, that may run on `thief`, looking at no more
    /// than `look`. Gate held by
    /// `thief`, who becomes its owner; it is in no queue and counts as notified until it is put into one.
    pub(super) fn give_up<'t>(
        &self,
        table: &'t impl Table,
        (level, before): (u8, Option<Rank>),
        thief: &CoreState,
    ) -> Option<(u32, &'t Slot)> {
        let mut index = self.ready.first(level);
        for _ in 0..LOOK {
            let slot = if index == 0 { None } else { table.slot(index) }?;
            if table.may_run(slot, thief) && before.is_none_or(|before| slot.rank() < before) {
                self.ready.unlink(table, index, slot, slot.rank());
                slot.set_phase(Phase::Notified);
                slot.set_owner(thief.index() as u16);
                return Some((index, slot));
            }
            index = self.next_queued(slot);
        }
        None
    }

    /// Applies every posted request. Gate held, by the owner or a thief.
    #[inline(never)]
    pub(super) fn drain_in_gate(&self, table: &impl Table) {
        self.inbox.drain(table, |index, slot| {
            let owner = slot.owner();
            if owner as u32 != self.index() {
                // Stolen since it was posted: the new owner applies the request.
                let core = table.core(owner as u32);
                if core.is_some_and(|core| core.inbox.push(index, slot, slot.level())) {
                    table.kick(owner as u32);
                }
                return;
            }
            self.posts.store(self.posts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            // Acquire: what the requesters did before they asked is visible to the coroutine's next turn.
            let clear = !(remote::REQUESTS | remote::LINKED);
            let word = slot.remote.fetch_and(clear, Ordering::Acquire);
            if (word >> 32) & 1 == 0 {
                // It ended while it was linked, and its slot could not be freed then.
                self.push_free(index, slot);
                return;
            }
            if word & (remote::BASE | remote::LENT) != 0 {
                let lent = (word & remote::LENT_MASK) >> remote::LENT_SHIFT;
                let base = (word & remote::BASE != 0).then(|| asked_rank(word));
                let lent = (word & remote::LENT != 0).then_some(lent as u8);
                self.relevel(table, index, slot, base, lent, word & remote::FRONT != 0);
            }
            if word & remote::CANCEL != 0 {
                self.cancel_in_gate(table, index, slot);
            } else if word & remote::WAKE != 0 {
                self.wake_in_gate(table, index, slot);
            }
        });
    }

    /// Ends the use of `slot`. Gate held, `slot` owned and in no queue.
    #[inline(always)]
    fn release(&self, index: u32, slot: &Slot) {
        slot.task.store(core::ptr::null_mut(), Ordering::Relaxed);
        slot.set_phase(Phase::Waiting);
        // The generation alone: requests are there only if the slot is linked, and then the drain clears them.
        let word = slot.remote.fetch_add(1 << 32, Ordering::Relaxed);
        if word & remote::LINKED == 0 {
            self.push_free(index, slot);
        }
    }

    /// Gate held; `slot` is free and in no inbox. A slot whose generations are used up is left out for good.
    #[inline(always)]
    fn push_free(&self, index: u32, slot: &Slot) {
        if slot.generation() >= u32::MAX - 1 {
            return;
        }
        slot.next.store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
        self.free.store(index, Ordering::Relaxed);
        self.free_count.store(self.free_slots().wrapping_add(1), Ordering::Relaxed);
    }

    /// Gate held.
    #[inline(always)]
    fn pop_free<'t>(&self, table: &'t impl Table) -> Option<(u32, &'t Slot)> {
        let index = self.free.load(Ordering::Relaxed);
        let slot = if index == 0 { None } else { table.slot(index) }?;
        self.free.store(slot.next.load(Ordering::Relaxed), Ordering::Relaxed);
        self.free_count.store(self.free_slots().wrapping_sub(1), Ordering::Relaxed);
        Some((index, slot))
    }
}

/// The lent level of a coroutine to which nobody lends: less urgent than every base level.
pub(super) const LEVEL_NONE: u8 = 64;

impl Default for CoreState {
    fn default() -> CoreState {
        CoreState::new()
    }
}
