//! Taking work from a core that has more than it can run.

use super::slot::Slot;
use super::{CoreState, Id, Phase, Rank, Table};
use crate::sync::Ordering;

/// Most coroutines that are taken at a time.
pub const BATCH: usize = 16;

/// How many coroutines of a level are looked at for one that may run on another core.
pub(super) const LOOK: u32 = 8;

/// Moves up to `want` ready coroutines, the most urgent first, from `victim` to `thief`, the calling core; returns
/// how many. Only levels in `levels` are taken, and no more than half of what the victim has in them, rounded up.
/// `heavy` is the barrier that [`Gate`](super::Gate) describes.
///
/// They pass from gate to gate without either being held for the other: in between they belong to the thief, are
/// in no queue and count as notified, so that wakes and changes of level find a state they know.
pub fn steal<T: Table>(
    table: &T,
    thief: &CoreState,
    victim: &CoreState,
    levels: u64,
    want: usize,
    heavy: impl FnOnce(),
) -> usize {
    take(table, thief, victim, (levels, None), want, heavy, |_| true).unwrap_or(0)
}

/// [`steal`] from a core that is watched over and in a turn of the level `running`, or in none (64). A post from then
/// on that is more urgent than that turn kicks again. `None`: the gate is closed, and there may be something.
pub fn steal_watched<T: Table>(
    table: &T,
    thief: &CoreState,
    victim: &CoreState,
    (levels, want): (u64, usize),
    running: impl Fn() -> u8,
    heavy: impl FnOnce(),
) -> Option<usize> {
    let watches = |victim: &CoreState| victim.inbox.watch_again(running());
    take(table, thief, victim, (levels, None), want, heavy, watches)
}

/// [`steal`] of one that is more urgent than `rank`, orders within a level included. `false` if there was none; `true`
/// also if others were at the queue, so that there may be one.
pub fn steal_before<T: Table>(
    table: &T,
    thief: &CoreState,
    victim: &CoreState,
    rank: Rank,
    heavy: impl FnOnce(),
) -> bool {
    let levels = (2u64 << rank.level()).wrapping_sub(1);
    take(table, thief, victim, (levels, Some(rank)), 1, heavy, |_| true) != Some(0)
}

/// Where a coroutine was found that was to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fetched {
    /// In the thief's queue, by now or before.
    Here,
    /// In no queue, for as long as it takes to end its turn or to get from one queue to another.
    Moving,
    /// It waits, has ended, or may not run on the thief.
    Elsewhere,
}

impl Fetched {
    /// Gate of the owner held.
    fn of(slot: &Slot, id: Id) -> Fetched {
        match slot.phase() {
            _ if slot.generation() != id.generation() => Fetched::Elsewhere,
            Phase::Queued => Fetched::Here,
            Phase::Running | Phase::Notified => Fetched::Moving,
            Phase::Waiting => Fetched::Elsewhere,
        }
    }
}

/// [`steal`] of the coroutine `id` from its owner, for `thief`, the calling core.
pub fn fetch<T: Table>(table: &T, thief: &CoreState, id: Id, heavy: impl FnOnce()) -> Fetched {
    let slot = table.slot(id.index());
    let victim = slot.and_then(|slot| table.core(slot.owner() as u32));
    let (Some(slot), Some(victim)) = (slot, victim) else { return Fetched::Elsewhere };
    if victim.index() == thief.index() {
        thief.gate.enter();
        let is_own = slot.owner() as u32 == thief.index();
        let found = if is_own { Fetched::of(slot, id) } else { Fetched::Moving };
        thief.gate.leave();
        return found;
    }
    if !victim.gate.thief_enter(heavy) {
        return Fetched::Moving;
    }
    // Requests for it must not be left with the core that it leaves.
    if !victim.inbox.is_empty() {
        victim.drain_in_gate(table);
    }
    let is_its = slot.owner() as u32 == victim.index();
    let mut found = if is_its { Fetched::of(slot, id) } else { Fetched::Moving };
    if found == Fetched::Here && !table.may_run(slot, thief) {
        found = Fetched::Elsewhere;
    }
    if found == Fetched::Here {
        victim.ready.unlink(table, id.index(), slot, slot.rank());
        slot.set_phase(Phase::Notified);
        slot.set_owner(thief.index() as u16);
    }
    victim.gate.thief_leave();
    if found == Fetched::Here {
        thief.gate.enter();
        thief.enqueue(table, id.index(), slot);
        thief.gate.leave();
    }
    found
}

/// How many were taken; `None`: the victim or another thief was at the queue.
fn take<T: Table>(
    table: &T,
    thief: &CoreState,
    victim: &CoreState,
    (levels, before): (u64, Option<Rank>),
    want: usize,
    heavy: impl FnOnce(),
    is_settled: impl Fn(&CoreState) -> bool,
) -> Option<usize> {
    if !victim.gate.thief_enter(heavy) {
        return None;
    }
    loop {
        if !victim.inbox.is_empty() {
            victim.drain_in_gate(table);
        }
        if is_settled(victim) {
            break;
        }
    }
    let mut taken = [(0, None::<&Slot>); BATCH];
    let mut count = 0;
    let mut left = victim.ready.bitmap() & levels;
    let want = want.min(BATCH);
    while left != 0 && count < want {
        let level = left.trailing_zeros() as u8;
        let Some((index, slot)) = victim.give_up(table, (level, before), thief) else {
            left &= left.wrapping_sub(1);
            continue;
        };
        if let Some(place) = taken.get_mut(count) {
            *place = (index, Some(slot));
        }
        count += 1;
        if victim.ready.bitmap() & 1 << level == 0 {
            left &= !(1 << level);
        }
    }
    victim.gate.thief_leave();
    if count == 0 {
        return Some(0);
    }
    thief.gate.enter();
    for (index, slot) in taken.iter().take(count) {
        if let Some(slot) = slot {
            thief.enqueue(table, *index, slot);
        }
    }
    let steals = thief.steals.load(Ordering::Relaxed);
    thief.steals.store(steals.wrapping_add(count as u32), Ordering::Relaxed);
    thief.gate.leave();
    Some(count)
}
