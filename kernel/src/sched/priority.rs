//! The 64 priority levels and their uses.
//!
//! | levels | for | who may use them |
//! |---|---|---|
//! | 0–3 | kernel work that others wait for: interrupts' second halves, timers | the kernel |
//! | 4–19 | realtime threads (`SCHED_FIFO`, `SCHED_RR`) | `RLIMIT_RTPRIO`, root |
//! | 20–23 | kernel work without a waiter: what frees pages and other remains | the kernel |
//! | 23 | executors that were woken or called, for as long as they take to find their place | everyone |
//! | 24–33 | ordinary threads with some of their budget left, four nice values a level | everyone; below nice 0 root |
//! | 38 | ordinary threads whose budget is exhausted, `SCHED_BATCH` and `SCHED_IDLE`: turns by weight | everyone |
//! | 44–62 | programs' own coroutines, ordered among themselves | everyone |
//! | 63 | kernel housekeeping while nothing else runs | the kernel |
//!
//! The kernel's levels and those of the realtime threads are exact: nothing less urgent is picked before them. Linux
//! has 99 realtime priorities; seven share a level, and within it they are ordered by the [`Rank`]. Among ordinary
//! threads nice decides how much of the processor a thread gets (see `heddle-fairness`) more than when; one pick in 32
//! goes to a level below the most urgent one.
//!
//! Programs' coroutines of levels 20 to 43 have no levels here: their threads are ordinary ones, at 24 to 38. Among the
//! executors of one user the most urgent of these coroutines gets the turn of whichever comes to its turn
//! (`process::user_group`).

use heddle_coroutine::Rank;

/// A priority level with the place in it; the smaller is the more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(Rank);

impl Priority {
    /// The number of levels.
    pub const COUNT: usize = 64;
    /// Kernel work that others wait for.
    pub const KERNEL: Self = Self::new(1);
    /// Kernel work without a waiter, which realtime threads do not wait for.
    pub const BACKGROUND: Self = Self::new(20);
    /// An executor thread that has just been woken, or was given its group's turn: it finds its place.
    pub const ARRIVAL: Self = Self::new(23);
    /// An ordinary thread at nice 0 that has some of its budget left.
    pub const NORMAL: Self = Self::new(29);
    /// Ordinary threads that have used their budget up.
    pub const SPENT: Self = Self::new(38);

    const REALTIME_FIRST: u8 = 4;
    const REALTIME_LEVELS: u8 = 16;
    /// So many realtime priorities share a level, each with an order of its own.
    const REALTIME_ORDERS: u8 = 7;
    const ORDINARY_FIRST: u8 = 24;
    /// The levels of the realtime threads, a bit each.
    pub const REALTIME_BITS: u64 = ((1 << Self::REALTIME_LEVELS) - 1) << Self::REALTIME_FIRST;
    /// Levels that are not left waiting at one CPU while another runs something less urgent: theirs, and
    /// [`Priority::ARRIVAL`].
    pub(super) const PLACED_BITS: u64 = Self::REALTIME_BITS | 1 << Self::ARRIVAL.level();
    /// The most urgent level that is not exact.
    pub const SHARED_FIRST: u8 = Self::ORDINARY_FIRST;

    /// The place of a realtime priority, 1 (least urgent) to 99.
    #[must_use]
    pub const fn realtime(priority: u8) -> Self {
        let above = 99 - if priority > 99 { 99 } else { priority };
        let level = Self::REALTIME_FIRST + above / Self::REALTIME_ORDERS;
        Self(Rank::new(level, above % Self::REALTIME_ORDERS))
    }

    /// The level of a nice value, -20 (most urgent) to 19, while there is budget left: four of them share a level.
    #[must_use]
    pub const fn fresh(nice: i8) -> Self {
        let nice = if nice < -20 {
            -20
        } else if nice > 19 {
            19
        } else {
            nice
        };
        Self::new(Self::ORDINARY_FIRST + ((nice + 20) / 4) as u8)
    }

    /// Whether it is one of the realtime threads' levels, which programs' urgent coroutines share.
    #[must_use]
    pub const fn is_realtime(self) -> bool {
        1 << self.level() & Self::REALTIME_BITS != 0
    }

    /// How many realtime priorities go before it; `None` if it is none.
    #[must_use]
    pub const fn realtime_place(self) -> Option<u8> {
        if !self.is_realtime() {
            return None;
        }
        Some((self.0.level() - Self::REALTIME_FIRST) * Self::REALTIME_ORDERS + self.0.order())
    }

    /// The level of this number, the least urgent one for anything above 63.
    #[must_use]
    pub const fn new(level: u8) -> Self {
        Self(Rank::new(level, 0))
    }

    /// The inverse of [`Priority::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(Rank::from_bits(bits))
    }

    /// A number, ordered as priorities are.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        self.0.to_bits()
    }

    /// As the scheduler knows it.
    #[must_use]
    pub const fn rank(self) -> Rank {
        self.0
    }

    /// 0 to 63.
    #[must_use]
    pub const fn level(self) -> usize {
        self.0.level() as usize
    }
}
