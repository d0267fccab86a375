//! One order of urgency over several processes (papers 1 to 3): an executor publishes which of its levels are ready,
//! sees the most urgent one anywhere else, and gives way to it.
//!
//! How bitmaps travel is the [`System`]'s business: a page that the kernel reads, words in shared memory, or a test
//! double. When to compare is the [`Policy`]'s.

use core::cell::Cell;

/// Where executors of different processes see each other's urgency.
pub trait System {
    /// Makes `bitmap` (bit `n`: level `n` has a ready coroutine) known to the others.
    fn publish(&self, bitmap: u64);

    /// The most urgent level that is ready elsewhere; 64 if none is.
    fn best_elsewhere(&self) -> u8;

    /// Lets what is more urgent elsewhere run, and returns when it is this process's turn again. Does not return at
    /// once if others are to have a chance: a kernel schedules another process, a test double runs one.
    fn give_way(&self);
}

/// When an executor looks whether something more urgent is ready elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Policy {
    /// Never by itself: the system preempts it, say at each clock interrupt. Cheapest, and an inversion lasts a slice.
    Relaxed,
    /// Before every turn: an inversion lasts one turn.
    Strict,
    /// Before every `n`-th turn: an inversion lasts up to `n` turns.
    Every(u32),
}

/// An executor's place in a [`System`].
#[derive(Debug)]
pub struct Place<S> {
    system: S,
    policy: Policy,
    left: Cell<u32>,
    published: Cell<u64>,
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Step {
    /// A coroutine had its turn.
    Ran,
    /// Something elsewhere was more urgent, and has been given way to.
    GaveWay,
    /// Nothing is ready here.
    Idle,
}

impl<S: System> Place<S> {
    /// A place in `system`, with nothing published.
    pub fn new(system: S, policy: Policy) -> Place<S> {
        Place { system, policy, left: Cell::new(1), published: Cell::new(0) }
    }

    /// The system.
    pub fn system(&self) -> &S {
        &self.system
    }

    /// Publishes `bitmap` if it has changed.
    pub fn publish(&self, bitmap: u64) {
        if self.published.replace(bitmap) != bitmap {
            self.system.publish(bitmap);
        }
    }

    /// Before a turn, with `bitmap` ready here: publishes it and, if the policy says so and something elsewhere is more
    /// urgent, gives way. Returns whether it did.
    pub fn before_turn(&self, bitmap: u64) -> bool {
        self.publish(bitmap);
        let every = match self.policy {
            Policy::Relaxed => return false,
            Policy::Strict => 1,
            Policy::Every(turns) => turns.max(1),
        };
        let left = self.left.get() - 1;
        self.left.set(if left == 0 { every } else { left });
        if left != 0 || u32::from(self.system.best_elsewhere()) >= bitmap.trailing_zeros() {
            return false;
        }
        self.system.give_way();
        true
    }
}
