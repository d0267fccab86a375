//! The core that an executor has in reserve.
//!
//! It has a thread, which sleeps as long as it is of no use. Coroutines that it has run are its own afterwards, as
//! with any core; when they become ready again and there is no need for it, it hands them to another. Before each of
//! its turns it takes what is more urgent than its own from those that cannot run it now: they may have lost their
//! processor to this thread, and get it back when this one has nothing left.

use super::next;
use crate::core_entry::CoreEntry;
use crate::host::{Told, host};
use crate::machine::{Shared, victims};
use crate::reactor::Looked;
use crate::registry::Global;
use crate::sched::{BATCH, LEVELS, Picked, Table, steal_watched};
use crate::sync::{Ordering, fence};
use crate::{os, threads, turn};
use core::cell::Cell;
use core::ptr;
use core::time::Duration;
use std::thread;

/// How often a core is tried again whose thread has lost its processor inside its gate.
const TRIES: u32 = 3;
/// How long that thread gets for what it does there: twice as long each time, since the first moment may be over before
/// it has its processor back.
const MOMENT: Duration = Duration::from_micros(1);
const MOMENTS_DOUBLED_MAX: u32 = 7;

/// Leaves the processor to a thread inside its gate, after so many attempts in vain.
fn rest(failures: u32) {
    thread::sleep(MOMENT * (1 << failures.min(MOMENTS_DOUBLED_MAX)));
}

/// The thread's loop.
pub(super) fn work(shared: &Shared, entry: &'static CoreEntry) {
    let Some(host) = host() else { return };
    host.reserve();
    // Either the end of the executor is seen below, or whoever ends it reaches this thread.
    fence(Ordering::SeqCst);
    let (mut look, mut told) = ((0, Looked::new()), Told::Urgent);
    // How many turns the others had begun when none of them could run.
    let mut spare_at = 0;
    // How often in a row a core with something urgent could not be looked at.
    let failures = Cell::new(0);
    while !shared.is_closed() {
        if told == Told::Spare && turns_of_others(shared, entry) != spare_at {
            told = Told::Urgent;
        }
        if let Some(picked) = next(shared, entry, &mut look, || settle(shared, entry, told, &failures)) {
            match home(shared, entry, &picked, told) {
                None => turn::run(entry, picked),
                Some(other) => entry.state.hand_over(&Global, picked.id, picked.slot, &other.state),
            }
            continue;
        }
        // Others may have taken what there was since the core settled: then its watch is for too little.
        if entry.is_in_turn() && settle(shared, entry, told, &failures) != 0 {
            continue;
        }
        // Whatever comes since the core has settled reaches the thread in its sleep; whoever closes calls afterwards.
        if failures.get() == 0 && !shared.is_closed() {
            told = host.stand_by();
            spare_at = turns_of_others(shared, entry);
        }
    }
}

/// Turns that the cores which are not in reserve have begun.
fn turns_of_others(shared: &Shared, entry: &CoreEntry) -> u64 {
    let others = (0..entry.state.number()).filter_map(|number| shared.core(number));
    others.fold(0, |sum: u64, core| sum.wrapping_add(core.state.ready().picks()))
}

/// Applies what others posted, and takes what is more urgent than all that is ready here and another core cannot run
/// now. The core watches from then on. Returns the bitmap of the levels that are ready.
fn settle(shared: &Shared, entry: &CoreEntry, told: Told, failures: &Cell<u32>) -> u64 {
    entry.state.drain(&Global);
    for _ in 0..TRIES {
        if take(shared, entry, told) {
            failures.set(0);
            break;
        }
        rest(failures.get());
        failures.set(failures.get().saturating_add(1));
    }
    entry.state.settle(&Global, true, |level| entry.running.store(level.into(), Ordering::Relaxed))
}

/// Takes a coroutine from each core that has one it cannot run now, and which is more urgent than all here. `false`:
/// one may have such a coroutine, but could not be looked at.
fn take(shared: &Shared, entry: &CoreEntry, told: Told) -> bool {
    let mut is_open = true;
    for victim in victims(shared, entry) {
        let running = || victim.running.load(Ordering::Relaxed).min(LEVELS as u32) as u8;
        let own = entry.state.ready().bitmap().trailing_zeros();
        let limit = match (told, u32::from(running())) {
            (Told::Spare, _) => own,
            // It has no turn, and finds what it has.
            (Told::Urgent, running) if running == LEVELS as u32 => 0,
            (Told::Urgent, running) => own.min(running),
        };
        let levels = levels_before(limit);
        if levels == 0 || victim.state.inbox().is_empty() && victim.state.ready().bitmap() & levels == 0 {
            continue;
        }
        let (core, other) = (&entry.state, &victim.state);
        is_open &= steal_watched(&Global, core, other, (levels, 1), running, os::heavy_barrier).is_some();
    }
    is_open
}

/// All levels that are more urgent than `level`.
fn levels_before(level: u32) -> u64 {
    u64::MAX.checked_shr(u64::BITS - level).unwrap_or(0)
}

/// Something was left with `entry` which is more urgent than what that runs or is about to, or it is the one in
/// reserve: has an idle core take it, or else the one in reserve. `false` if that is not how this machine works, or
/// if the core sleeps and is to be woken itself.
pub(super) fn tell(shared: &Shared, entry: &CoreEntry) -> bool {
    if shared.watching.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let is_reserve = |core: &CoreEntry| shared.reserve_core().is_some_and(|reserve| ptr::eq(reserve, core));
    let is_for_reserve = is_reserve(entry);
    if !is_for_reserve && !entry.is_in_turn() {
        return false;
    }
    // The most urgent level that was left since the watch was set.
    let level = entry.state.inbox().watch().min(LEVELS as u8 - 1);
    let Some(host) = host() else { return true };
    if !is_for_reserve {
        if !shared.kick_idle(u64::MAX) {
            host.urgent(level);
        }
        return true;
    }
    let here = threads::here().filter(|here| ptr::eq(here.shared(), shared) && !is_reserve(here));
    if here.is_none() || entry.is_in_turn() {
        host.urgent(level);
        return true;
    }
    // The core that leaves it takes it back before its next turn or its sleep, as it would have run it had it been its
    // own: see `take_back`. So would an idle one.
    entry.state.inbox().watch_all();
    shared.kick_idle(u64::MAX);
    host.raise(level);
    true
}

/// For a core that is not in reserve, between its turns: takes what was left with the one that is, and need not wake
/// for it; if that is in a turn, only what is more urgent than all here. Whether there was something.
pub(super) fn take_back(shared: &Shared, entry: &CoreEntry) -> bool {
    let Some(reserve) = shared.reserve_core().filter(|reserve| reserve.state.has_work()) else {
        return false;
    };
    let running = || reserve.running.load(Ordering::Relaxed).min(LEVELS as u32) as u8;
    let own = entry.state.ready().bitmap().trailing_zeros();
    let levels = levels_before(if reserve.is_in_turn() { own } else { u64::BITS });
    if reserve.state.inbox().is_empty() && reserve.state.ready().bitmap() & levels == 0 {
        return false;
    }
    let (core, other) = (&entry.state, &reserve.state);
    let taken = steal_watched(&Global, core, other, (levels, BATCH), running, os::heavy_barrier);
    let left = reserve.state.ready().bitmap();
    match (taken, host()) {
        (None, Some(host)) => {
            // It is on its way itself, and may have lost its processor there.
            host.urgent(0);
            if entry.state.ready().bitmap() == 0 {
                rest(0);
            }
        }
        // They may not run here. It gives them to a core that may run them.
        (Some(count), Some(host)) if count < BATCH && left != 0 && !reserve.is_in_turn() => {
            host.urgent(left.trailing_zeros() as u8);
        }
        _ => {}
    }
    taken.is_some_and(|count| count != 0)
}

/// A thread stops running coroutines: what it would have taken back is for the reserve itself.
pub(super) fn take_over(shared: &Shared) {
    if let (Some(_), Some(host)) = (shared.reserve_core(), host()) {
        host.urgent(0);
    }
}

/// The core to which a coroutine goes that need not run in reserve: an idle one, or the one with the least urgent turn
/// if not even that is less urgent.
fn home(shared: &Shared, entry: &CoreEntry, picked: &Picked<'_>, told: Told) -> Option<&'static CoreEntry> {
    if told == Told::Spare {
        return None;
    }
    let mut cores = (0..entry.state.number()).filter_map(|number| shared.core(number));
    let may_run = |core: &CoreEntry| core.has_thread() && Global.may_run(picked.slot, &core.state);
    let mut best: Option<(&'static CoreEntry, u32)> = None;
    for core in &mut cores {
        let running = core.running.load(Ordering::Relaxed);
        if may_run(core) && best.is_none_or(|(_, least)| running > least) {
            best = Some((core, running));
        }
    }
    let (core, running) = best?;
    let is_needed = u32::from(picked.level) < running && running < LEVELS as u32;
    (!is_needed).then_some(core)
}
