//! Taking work from a core that has more than it can run.

use super::slot::Slot;
use super::{CoreState, Rank, Table};
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
    take(table, thief, victim, (levels, None), want, heavy).unwrap_or(0)
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
    take(table, thief, victim, (levels, Some(rank)), 1, heavy) != Some(0)
}

/// How many were taken; `None`: the victim or another thief was at the queue.
fn take<T: Table>(
    table: &T,
    thief: &CoreState,
    victim: &CoreState,
    (levels, before): (u64, Option<Rank>),
    want: usize,
    heavy: impl FnOnce(),
) -> Option<usize> {
    if !victim.gate.thief_enter(heavy) {
        return None;
    }
    if !victim.inbox.is_empty() {
        victim.drain_in_gate(table);
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
