//! Wakers that hold nothing but an id.
#![allow(unsafe_code)] // A `RawWaker`'s functions are unsafe by type; these take any bits.

use crate::core_entry::CoreEntry;
use crate::registry::Global;
use crate::sched::{self, Id, Phase, Rank, Table, Woken};
use core::ptr;
use core::task::{RawWaker, RawWakerVTable, Waker};

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake_raw, wake_raw, drop_raw);

/// A waker of the coroutine `id`. Cloning and dropping it does nothing; after the coroutine's end, nor does waking.
#[inline(always)]
pub fn waker(id: Id) -> Waker {
    // SAFETY: the functions accept every data word and keep no reference, so the contract of `RawWaker` holds: they
    // are thread-safe, and clone and drop own nothing.
    unsafe { Waker::from_raw(RawWaker::new(ptr::without_provenance(id.to_bits() as usize), &VTABLE)) }
}

/// The coroutine that `waker` wakes, if it is one of this crate's.
#[inline(always)]
pub fn id_of(waker: &Waker) -> Option<Id> {
    if ptr::eq(waker.vtable(), &VTABLE) { Id::from_bits(waker.data().addr() as u64) } else { None }
}

fn clone(data: *const ()) -> RawWaker {
    RawWaker::new(data, &VTABLE)
}

fn wake_raw(data: *const ()) {
    let bits = data.addr() as u64;
    #[cfg(feature = "std")]
    if crate::threads::here().is_some_and(|here| here.wake_current(bits)) {
        return;
    }
    if let Some(id) = Id::from_bits(bits) {
        wake_other(id);
    }
}

fn drop_raw(_: *const ()) {}

/// Makes the coroutine `id` ready if it waits; one that is being polled is polled again. A stale id does nothing.
///
/// May be called from everywhere, interrupt and signal handlers included: takes no lock and no memory.
#[inline]
pub fn wake(id: Id) {
    if !here_for(id).is_some_and(|here| here.wake_current(id.to_bits())) {
        wake_other(id);
    }
}

/// [`wake`] of a coroutine whose turn the caller does not run.
#[inline(always)]
fn wake_other(id: Id) {
    let here = here_for(id);
    let woken = sched::wake(&Global, here.map(|entry| &entry.state), id);
    if let (Woken::Queued, Some(here)) = (woken, here) {
        crate::machine::shared_work(here);
    }
}

/// The level at which a coroutine is scheduled, lent ones included; `None` if it has ended. Stale if its core is just
/// changing it.
#[inline]
pub fn priority(id: Id) -> Option<u8> {
    let slot = Global.slot(id.index())?;
    (slot.generation() == id.generation()).then(|| slot.level())
}

/// Where a coroutine is; `None` if it has ended. Stale if its core is just changing it.
pub fn phase(id: Id) -> Option<Phase> {
    let slot = Global.slot(id.index())?;
    (slot.generation() == id.generation()).then(|| slot.phase())
}

/// Whether the coroutine is polled or is to be; a hint, as others may be about to change it.
pub fn is_ready(id: Id) -> bool {
    let slot = Global.slot(id.index()).filter(|slot| slot.generation() == id.generation());
    slot.is_some_and(|slot| slot.phase() != Phase::Waiting || slot.is_asked_to_run())
}

/// Gives the coroutine `id` the level `level` (0 the most urgent, 63 the least), whether it is queued, runs or
/// waits; takes effect at its core's next pick at the latest, in constant time. A stale id does nothing. One that waits
/// and becomes more urgent is polled once, so that it has its new level too where it waits, and lends it.
pub fn set_priority(id: Id, level: u8) {
    set_rank(id, level.into(), false);
}

/// [`set_priority`] with an order within the level. A queued coroutine whose rank changes goes behind the others of its
/// new rank, or with `front` before them.
pub fn set_rank(id: Id, rank: Rank, front: bool) {
    let before = Global.slot(id.index()).map_or(rank.level(), |slot| slot.asked_base_level());
    sched::set_rank(&Global, here_for(id).map(|entry| &entry.state), id, rank, front);
    // It looks again at what it waits for, to be filed at its new level there and to lend it.
    crate::wait::inherit::changed(id, before, rank.level());
}

/// In the turn of `id`: whether it has given way or was woken, so that it is ready when the turn ends.
pub fn is_woken_in_turn(id: Id) -> bool {
    phase(id) == Some(Phase::Notified)
        || here_for(id).is_some_and(|entry| entry.current() == Some(id) && entry.is_current_woken())
}

/// [`set_rank`] that leaves one that waits alone: it has the rank when something else wakes it.
pub fn set_rank_at_rest(id: Id, rank: Rank, front: bool) {
    sched::set_rank(&Global, here_for(id).map(|entry| &entry.state), id, rank, front);
}

/// Runs the coroutine `id` at `level` if its own is less urgent; `None` takes the loan back.
pub(crate) fn lend(id: Id, level: Option<u8>) {
    sched::lend(&Global, here_for(id).map(|entry| &entry.state), id, level);
}

/// Drops the coroutine's future at its next turn, which is due at once; whoever awaits it gets a `JoinError`.
pub fn abort(id: Id) {
    sched::cancel(&Global, here_for(id).map(|entry| &entry.state), id);
}

/// The core on which the caller runs, if it can be the owner of `id`.
#[cfg(feature = "std")]
#[inline(always)]
pub(crate) fn here_for(_: Id) -> Option<&'static CoreEntry> {
    crate::threads::here()
}

/// The core on which the caller runs, if it is the owner of `id`.
#[cfg(not(feature = "std"))]
#[inline(always)]
pub(crate) fn here_for(id: Id) -> Option<&'static CoreEntry> {
    let owner = crate::registry::entry(Global.slot(id.index())?.owner() as u32)?;
    owner.is_here().then_some(owner)
}
