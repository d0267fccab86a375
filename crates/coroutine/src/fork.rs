//! Executors in a forked child: the thread that forked, and the coroutines of the core that it runs, are left.
//!
//! The others' threads are gone, and their coroutines with them, as POSIX has it for threads. State that the process
//! shares under locks is locked by the forking thread before, so that the child finds it whole; the queues of the cores
//! that are gone, which may be in the midst of a change, are left alone from then on. Then every coroutine that goes on
//! is woken, so that it sees what a fork means for what it waits for.
#![allow(unsafe_code)] // Handlers of the C library.

use crate::core_entry::CoreEntry;
use crate::host::host;
use crate::registry::{self, Global, for_each_core, for_each_slot, for_each_slot_of_cores};
use crate::sched::{Id, Slot};
use crate::{blocking, forks, pool, reactor, threads, wait::inherit, waker};
use core::any::Any;
use core::cell::Cell;
use core::ptr;
use std::boxed::Box;
use std::sync::OnceLock;
use std::vec::Vec;

type Held = [Box<dyn Any>; 3];

std::thread_local! {
    /// The guards of what is locked during a fork, on the thread that forks.
    static HELD: Cell<Option<Held>> = const { Cell::new(None) };
}

/// Has executors go on in forked children, where the thread that forks is their only one: the coroutines of its core
/// go on and are woken once, the others are gone with their threads. [`forks`](crate::forks) counts from here on.
/// Before the first fork; it cannot be undone, and makes every fork of the process do what that takes, one to `exec`
/// too. Does nothing where there are no forks.
///
/// Without it a child must not use executors, timers and descriptors of its parent, as is usual with threads.
pub fn follow_forks() {
    static IS_WATCHED: OnceLock<()> = OnceLock::new();
    if !cfg!(miri) {
        IS_WATCHED.get_or_init(|| {
            #[cfg(unix)]
            // SAFETY: functions that stay, and do what a thread may that forks. Without memory for them a child can
            // do nothing but exec.
            unsafe {
                libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child))
            };
        });
    }
}

extern "C" fn before() {
    if let Some(host) = host() {
        host.before_fork();
    }
    let held: Held = [Box::new(pool::lock()), Box::new(reactor::lock()), Box::new(blocking::lock())];
    HELD.set(Some(held));
    registry::pause_sorts();
    if let Some(here) = threads::here() {
        // A thief that was inside would never leave in the child.
        here.state.gate().hold();
    }
}

fn release_gate(is_child: bool) {
    if let Some(here) = threads::here() {
        here.state.gate().release(is_child);
    }
}

extern "C" fn in_parent() {
    release_gate(false);
    registry::resume_sorts();
    drop(HELD.take());
    if let Some(host) = host() {
        host.after_fork(false);
    }
}

extern "C" fn in_child() {
    forks::count();
    release_gate(true);
    let here = threads::here();
    for_each_core(|entry| {
        if !here.is_some_and(|here| ptr::eq(here, entry)) {
            entry.lose_thread();
        }
    });
    registry::resume_sorts();
    let cores = here.map_or_else(Vec::new, CoreEntry::cores_of_machine);
    if let Some(here) = here {
        here.stay_alone();
        here.state.drain(&Global);
        // A request that a thread was about to leave in the inbox is not in it after all.
        for_each_slot_of_cores(&cores, |index, slot| {
            if is_owner(here, slot.owner()) {
                here.state.link_again(index, slot);
            }
            true
        });
    }
    drop(HELD.take());
    inherit::start_anew();
    blocking::start_anew();
    reactor::start_anew();
    if let Some(host) = host() {
        host.after_fork(true);
    }
    for_each_slot_of_cores(&cores, |index, slot| {
        if let Some(id) = Id::new(index, slot.generation()).filter(|_| is_mine(here, slot)) {
            waker::wake(id);
        }
        true
    });
    if let Some(host) = host() {
        for_each_slot(|index, slot| {
            if let Some(id) = Id::new(index, slot.generation()).filter(|_| !is_mine(here, slot)) {
                host.turn_ends(id, true);
            }
            true
        });
    }
}

fn is_mine(here: Option<&CoreEntry>, slot: &Slot) -> bool {
    here.is_some_and(|here| is_owner(here, slot.owner()))
}

fn is_owner(entry: &CoreEntry, owner: u16) -> bool {
    entry.state.index() == u32::from(owner)
}
