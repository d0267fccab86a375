//! The core that an executor has in reserve.
//!
//! It has a thread, which sleeps as long as it is of no use. Coroutines that it has run are its own afterwards, as
//! with any core; when they become ready again and there is no need for it, it hands them to another.

use super::next;
use crate::core_entry::CoreEntry;
use crate::host::{Told, host};
use crate::machine::{Shared, victims};
use crate::os;
use crate::reactor::Looked;
use crate::registry::Global;
use crate::sched::{LEVELS, Picked, Table, WATCH_PARKED, steal};
use crate::sync::{Ordering, fence};
use crate::turn;

/// The thread's loop.
pub(super) fn work(shared: &Shared, entry: &'static CoreEntry) {
    let Some(host) = host() else { return };
    host.reserve();
    // Either the end of the executor is seen below, or whoever ends it reaches this thread.
    fence(Ordering::SeqCst);
    let (mut look, mut told) = ((0, Looked::new()), Told::Urgent);
    while !shared.is_closed() {
        if let Some(picked) = next(shared, entry, &mut look) {
            match home(shared, entry, &picked, told) {
                None => turn::run(entry, picked),
                Some(other) => entry.state.hand_over(&Global, picked.id, picked.slot, &other.state),
            }
            continue;
        }
        entry.running.store(LEVELS as u32, Ordering::Relaxed);
        if !take(shared, entry, told) && entry.state.expose(WATCH_PARKED) {
            // Whoever closes calls afterwards.
            if !shared.is_closed() {
                told = host.stand_by();
            }
            entry.state.inbox().cover();
        }
    }
}

/// Takes one coroutine that another core cannot run now.
fn take(shared: &Shared, entry: &CoreEntry, told: Told) -> bool {
    victims(shared, entry).any(|victim| {
        let running = victim.running.load(Ordering::Relaxed).min(LEVELS as u32);
        let levels = match told {
            Told::Spare => u64::MAX,
            Told::Urgent if running == LEVELS as u32 => return false,
            Told::Urgent => (1 << running) - 1,
        };
        steal(&Global, &entry.state, &victim.state, levels, 1, os::heavy_barrier) != 0
    })
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
