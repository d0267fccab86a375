//! What the 64 levels are for.
//!
//! | levels | for | who may use them |
//! |---|---|---|
//! | 0–3 | kernel work that others wait for: interrupts' second halves, timers, the reaper | the kernel |
//! | 4–19 | realtime threads (`SCHED_FIFO`, `SCHED_RR`) | `RLIMIT_RTPRIO`, root |
//! | 20–23 | kernel work without a waiter | the kernel |
//! | 24–33 | ordinary threads with some of their budget left, four nice values a level | everyone; below nice 0 root |
//! | 38 | ordinary threads that have spent their budget, and `SCHED_BATCH`: turns in proportion to nice | everyone |
//! | 44–59 | programs' own coroutines, ordered among themselves | everyone |
//! | 60–62 | `SCHED_IDLE` threads | everyone |
//! | 63 | kernel housekeeping while nothing else runs | the kernel |
//!
//! A level is exact for the kernel and the realtime threads. Among ordinary threads nice decides how much of the
//! processor a thread gets (see `heddle-fairness`) more than when; one pick in 32 goes to a level below the most
//! urgent one.

/// A priority level; the smaller number is the more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(u8);

impl Priority {
    /// The number of levels.
    pub const COUNT: usize = 64;
    /// Kernel work that others wait for.
    pub const KERNEL: Self = Self(1);
    /// An ordinary thread at nice 0 that has some of its budget left.
    pub const NORMAL: Self = Self(29);
    /// Ordinary threads that have used their budget up.
    pub const SPENT: Self = Self(38);

    /// The least urgent of the threads.
    pub const IDLE: Self = Self(61);
    const REALTIME_FIRST: u8 = 4;
    const REALTIME_LEVELS: u8 = 16;
    const ORDINARY_FIRST: u8 = 24;

    /// The level of a realtime priority, 1 (least urgent) to 99: about six of them share a level.
    #[must_use]
    pub const fn realtime(priority: u8) -> Self {
        let priority = if priority > 99 { 99 } else { priority } as u16;
        let above = (99 - priority) * Self::REALTIME_LEVELS as u16 / 99;
        let last = Self::REALTIME_LEVELS as u16 - 1;
        Self(Self::REALTIME_FIRST + if above > last { last } else { above } as u8)
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
        Self(Self::ORDINARY_FIRST + ((nice + 20) / 4) as u8)
    }

    /// Whether it is one of the realtime threads' levels, which programs' urgent coroutines share.
    #[must_use]
    pub const fn is_realtime(self) -> bool {
        self.0 >= Self::REALTIME_FIRST && self.0 < Self::REALTIME_FIRST + Self::REALTIME_LEVELS
    }

    /// The level of this number, the least urgent one for anything above 63.
    #[must_use]
    pub const fn new(level: u8) -> Self {
        Self(if (level as usize) < Self::COUNT { level } else { Self::COUNT as u8 - 1 })
    }

    /// 0 to 63.
    #[must_use]
    pub const fn level(self) -> usize {
        self.0 as usize
    }
}
