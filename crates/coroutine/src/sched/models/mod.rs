//! Models of the scheduler's core: the real code, run by loom through every interleaving and every value that the
//! orderings allow, up to a bound on preemptions.
//!
//! A coroutine here is a slot and a cell. Whoever wakes it writes the cell first; a turn reads it. So a lost wake shows
//! as a missing turn, a wake without its happens-before as a data race, and a turn on two cores as both.
#![allow(unsafe_code)] // The cells are the model checker's, which reports a race itself.

mod cores;
mod requests;

use super::{CoreState, Id, Outcome, Slot, Stealing, Table, post_new};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use std::vec::Vec;

const SLOTS: usize = 3;
const CORES: usize = 3;

/// A small machine.
struct World {
    slots: Vec<Slot>,
    cores: Vec<CoreState>,
    kicks: [AtomicU32; CORES],
    cells: [UnsafeCell<u32>; SLOTS],
    turns: [AtomicU32; SLOTS],
}

impl Table for World {
    fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)
    }
    fn core(&self, index: u32) -> Option<&CoreState> {
        self.cores.get(index as usize)
    }
    fn kick(&self, core: u32) {
        self.kicks[core as usize].fetch_add(1, Ordering::Relaxed);
        // SAFETY: the model checker reports it if the core still writes.
        self.cells[0].with(|cell| unsafe { assert!(core != 0 || *cell != 0) });
    }
}

impl World {
    /// Three cores; the slots that can be used are core 0's.
    fn new() -> Arc<World> {
        let world = World {
            slots: (0..SLOTS).map(|_| Slot::new()).collect(),
            cores: (0..CORES).map(|_| CoreState::new()).collect(),
            kicks: Default::default(),
            cells: Default::default(),
            turns: Default::default(),
        };
        for (index, core) in world.cores.iter().enumerate() {
            core.set_index(index as u16, index as u32);
            core.gate().set_stealing(Stealing::Fenced);
        }
        for index in (1..SLOTS as u32).rev() {
            world.cores[0].give_slot(&world, index);
        }
        Arc::new(world)
    }

    /// A coroutine of core 0 that has had its first turn, and waits.
    fn waiting(&self, level: u8) -> Id {
        let id = self.cores[0].spawn(self, core::ptr::null_mut(), level).unwrap();
        let picked = self.cores[0].pick(self).unwrap();
        self.cores[0].finish(self, id, picked.slot, Outcome::Pending);
        id
    }

    /// One turn on core `core`; the coroutine reads its cell if `reads`, and then waits. Returns its id.
    fn turn(&self, core: usize, reads: bool) -> Option<Id> {
        let picked = self.cores[core].pick(self)?;
        let index = picked.id.index() as usize;
        if reads {
            // SAFETY: the model checker reports it if another thread writes at the same time.
            self.cells[index].with(|cell| unsafe { assert_ne!(*cell, 0) });
        }
        self.turns[index].fetch_add(1, Ordering::Relaxed);
        self.cores[core].finish(self, picked.id, picked.slot, Outcome::Pending);
        Some(picked.id)
    }

    /// The write of a waker before it wakes.
    fn write(&self, id: Id) {
        // SAFETY: the model checker reports it if another thread reads or writes at the same time.
        self.cells[id.index() as usize].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn turns(&self, id: Id) -> u32 {
        self.turns[id.index() as usize].load(Ordering::Relaxed)
    }

    /// The write of core 0 before it exposes itself, which whoever kicks it must see.
    fn prepare_to_expose(&self) {
        // SAFETY: the model checker reports it if a kick reads at the same time.
        self.cells[0].with_mut(|cell| unsafe { *cell = 1 });
    }

    /// Takes `want` or less from core 0 for core `thief`.
    fn steal(&self, thief: usize, want: usize) -> usize {
        let heavy = || loom::sync::atomic::fence(Ordering::SeqCst);
        super::steal(self, &self.cores[thief], &self.cores[0], u64::MAX, want, heavy)
    }
}

/// Runs `model` with at most `preemptions` preemptions in each execution.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}
