//! How ordinary threads share a processor.
//!
//! A thread has a *budget* of processor time, its slice by nice value. As long as some of it is left the thread is
//! *fresh*: it runs before those that have used theirs up, so whoever sleeps a lot runs soon after it wakes. A thread
//! that uses its budget up is *spent*: all spent threads take turns in one queue, each for a slice of its nice value,
//! which is what makes them share in proportion. Sleeping refills the budget at a third of the time slept, so a thread
//! that wants more than a quarter of a processor ends up among the spent ones, and a spent thread that has slept for as
//! long as its slice is fresh again.
//!
//! This is the active and expired queues of Linux's O(1) scheduler, without its second array: the spent queue is the
//! expired array, and a scheduler that serves less urgent levels now and then keeps fresh threads from starving it.

#![no_std]

#[cfg(test)]
mod tests;

/// The slice of nice value 0.
pub const SLICE_NS: u64 = 10_000_000;
const SLICE_STEP_BELOW_NS: u64 = 3_500_000;
const SLICE_STEP_ABOVE_NS: u64 = 500_000;
/// A part in so many of the time slept comes back as budget.
const REFILL_DIVISOR: u64 = 3;

/// The slice of a nice value, -20 to 19: 80 ms to 0.5 ms.
#[must_use]
pub const fn slice_ns(nice: i8) -> u64 {
    if nice < 0 {
        SLICE_NS + SLICE_STEP_BELOW_NS * nice.unsigned_abs() as u64
    } else {
        SLICE_NS - SLICE_STEP_ABOVE_NS * if nice > 19 { 19 } else { nice as u64 }
    }
}

/// What a thread may still use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    budget_ns: u64,
    is_spent: bool,
}

impl Account {
    /// A fresh thread with a whole slice.
    #[must_use]
    pub const fn new(nice: i8) -> Self {
        Self { budget_ns: slice_ns(nice), is_spent: false }
    }

    /// Gives a child half of what is left, so that making children brings no time ahead of others. Spent threads have
    /// none: the child of one takes turns as its parent does, and does not make its parent's turns shorter.
    pub const fn split(&mut self) -> Self {
        if !self.is_spent {
            self.budget_ns /= 2;
        }
        Self { budget_ns: self.budget_ns, is_spent: self.is_spent }
    }

    /// Time until the thread has to give way to others.
    #[must_use]
    pub const fn budget_ns(&self) -> u64 {
        self.budget_ns
    }

    /// Whether the thread takes turns with others that have used up their budget.
    #[must_use]
    pub const fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// The thread ran for `ran_ns`. Returns whether its turn is over: then it goes to the end of the spent queue,
    /// with a new slice.
    pub fn ran(&mut self, ran_ns: u64, nice: i8) -> bool {
        self.budget_ns = self.budget_ns.saturating_sub(ran_ns);
        let is_over = self.budget_ns == 0;
        if is_over {
            *self = Self { budget_ns: slice_ns(nice), is_spent: true };
        }
        is_over
    }

    /// The thread slept for `slept_ns`.
    pub fn slept(&mut self, slept_ns: u64, nice: i8) {
        let slice = slice_ns(nice);
        self.budget_ns = self.budget_ns.saturating_add(slept_ns / REFILL_DIVISOR).min(slice);
        if slept_ns >= slice {
            self.is_spent = false;
        }
    }
}
