//! How ordinary threads share a processor.
//!
//! A thread has a *budget* of processor time. A thread with some of it left is *fresh*: it runs before those whose
//! budget is exhausted, so a thread that sleeps a lot runs soon after it wakes. All exhausted threads share one queue
//! and take turns there, each for a slice in proportion to its weight, so they receive processor time in that
//! proportion. Sleeping refills the budget at a third of the time slept, so a thread that wants more than a quarter of
//! a processor ends up among the exhausted ones, and an exhausted thread that has slept for as long as a slice is fresh
//! again.
//!
//! Weights are Linux's: a nice value more is a fifth less. The lightest slices would be shorter than the change of
//! threads is worth, so a thread with such a slice runs for [`TURN_MIN_NS`] and then skips as many rounds of the queue
//! as it has taken ahead.
//!
//! This is the active and expired queues of Linux's O(1) scheduler, without its second array: the exhausted queue is
//! the expired array, and a scheduler that serves less urgent levels now and then keeps fresh threads from starving it.

#[cfg(test)]
mod tests;

/// The slice of nice value 0.
pub const SLICE_NS: u64 = 10_000_000;
/// The shortest turn.
pub const TURN_MIN_NS: u64 = 1_000_000;
/// No thread runs longer ahead of others for having slept.
const FRESH_MAX_NS: u64 = 80_000_000;
/// The budget is refilled by the time slept divided by this.
const REFILL_DIVISOR: u64 = 3;
/// The weight of nice value 0.
const WEIGHT_UNIT: u64 = 1024;

/// No thread skips more rounds, whatever happened to the clock.
const SKIPS_MAX: u16 = 200;

/// A thread's part in the processor, beside others' parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u64);

impl Weight {
    /// The weight of `SCHED_IDLE`.
    pub const IDLE: Self = Self(3);
    /// The units of nice value 0.
    pub const UNIT: u64 = WEIGHT_UNIT;

    /// The weight of a nice value, -20 to 19: 88817 to 15.
    #[must_use]
    pub const fn of_nice(nice: i8) -> Self {
        let nice = if nice < -20 {
            -20
        } else if nice > 19 {
            19
        } else {
            nice
        };
        // A fixed point of 20 bits keeps each step exact enough, and below 2^64.
        let (mut weight, mut steps) = (WEIGHT_UNIT << 20, nice.unsigned_abs());
        while steps > 0 {
            weight = if nice > 0 { weight * 4 / 5 } else { weight * 5 / 4 };
            steps -= 1;
        }
        Self((weight + (1 << 19)) >> 20)
    }

    /// The weight of a part of a group's, in units of which nice value 0 has [`Weight::UNIT`].
    #[must_use]
    pub const fn of_units(units: u64) -> Self {
        let (least, most) = (Self::IDLE.0, Self::of_nice(-20).0);
        Self(if units < least {
            least
        } else if units > most {
            most
        } else {
            units
        })
    }

    /// It in these units.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.0
    }

    /// The slice of a turn, in proportion to the weight; nice value 0 has 10 ms.
    #[must_use]
    pub const fn slice_ns(self) -> u64 {
        SLICE_NS * self.0 / WEIGHT_UNIT
    }

    /// How long a turn is, and how many rounds are to be left out after it.
    const fn turn(self) -> (u64, u16) {
        let slice = self.slice_ns();
        // Rounded: the lightest weight leaves out 33 rounds.
        if slice >= TURN_MIN_NS {
            (slice, 0)
        } else {
            (TURN_MIN_NS, ((TURN_MIN_NS + slice / 2) / slice - 1) as u16)
        }
    }

    /// The most budget that sleeping gives, and what a new thread has.
    const fn fresh_ns(self) -> u64 {
        let slice = self.slice_ns();
        if slice > FRESH_MAX_NS { FRESH_MAX_NS } else { slice }
    }
}

/// The CPU time that a thread may still use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    budget_ns: u64,
    is_exhausted: bool,
    /// Rounds of the exhausted queue to be left out before the next turn.
    owed: u16,
}

impl Account {
    /// A fresh thread with a whole slice.
    #[must_use]
    pub const fn new(weight: Weight) -> Self {
        Self { budget_ns: weight.fresh_ns(), is_exhausted: false, owed: 0 }
    }

    /// Gives a child half of the remaining budget, so that forking gains no time ahead of others. An exhausted thread
    /// has none: its child takes turns as its parent does, and does not make its parent's turns shorter.
    pub const fn split(&mut self) -> Self {
        if !self.is_exhausted {
            self.budget_ns /= 2;
        }
        *self
    }

    /// Time until the thread has to yield to others.
    #[must_use]
    pub const fn budget_ns(&self) -> u64 {
        self.budget_ns
    }

    /// Whether the thread takes turns with others that have used up their budget.
    #[must_use]
    pub const fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// It is the thread's turn: whether it skips the round, because it has used this round's time before.
    #[inline(always)]
    pub const fn skips_turn(&mut self) -> bool {
        let skips_turn = self.owed != 0;
        if skips_turn {
            self.owed -= 1;
        }
        skips_turn
    }

    /// The rounds that are to be left out, for somebody else to count.
    pub const fn take_owed(&mut self) -> u16 {
        core::mem::replace(&mut self.owed, 0)
    }

    /// No other thread wants the processor, so there are no rounds to skip.
    pub const fn is_alone(&mut self) {
        self.owed = 0;
    }

    /// The thread ran for `ran_ns`. Returns whether its turn is over: then it goes to the end of the exhausted queue,
    /// with a new slice.
    #[inline]
    pub fn ran(&mut self, ran_ns: u64, weight: Weight) -> bool {
        let is_over = ran_ns >= self.budget_ns;
        if is_over {
            *self = Self::after(ran_ns - self.budget_ns, weight);
        } else {
            self.budget_ns -= ran_ns;
        }
        is_over
    }

    /// After a turn that was so much too long. The time that a late interrupt gave is deducted from the next turns.
    #[cold]
    #[inline(never)]
    fn after(excess_ns: u64, weight: Weight) -> Self {
        let (turn_ns, owed) = weight.turn();
        let (turns, rest_ns) = (excess_ns / turn_ns, excess_ns % turn_ns);
        let owed = u64::from(owed) + turns * (u64::from(owed) + 1);
        Self { budget_ns: turn_ns - rest_ns, is_exhausted: true, owed: owed.min(SKIPS_MAX.into()) as u16 }
    }

    /// The thread slept for `slept_ns`.
    pub fn slept(&mut self, slept_ns: u64, weight: Weight) {
        // Light threads also earn less.
        let earned = slept_ns / REFILL_DIVISOR;
        let earned = if weight.0 < WEIGHT_UNIT { earned / WEIGHT_UNIT * weight.0 } else { earned };
        if slept_ns >= SLICE_NS {
            (self.is_exhausted, self.owed) = (false, 0);
        }
        let most = if self.is_exhausted { weight.turn().0 } else { weight.fresh_ns() };
        self.budget_ns = self.budget_ns.saturating_add(earned).min(most);
    }
}
