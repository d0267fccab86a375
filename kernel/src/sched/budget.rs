//! The budget of work that runs in the kernel at a program's request.
//!
//! The kernel is cooperative, so a loop whose length a program chooses would keep interrupts and others out for as long
//! as the program likes. Such a loop spends from a budget; when that is exhausted it looks whether it has to stop.

use crate::arch;
use crate::arch::time::now_ns;
#[cfg(feature = "checking")]
use crate::sched::stretch;
use crate::sched::{Priority, is_alone, should_yield, yield_now};

/// See the module.
///
/// The unit is what takes about as long as copying a page: some hundred nanoseconds.
#[derive(Debug)]
pub struct Budget {
    left: u32,
    /// When others ran last; 0 before the first look.
    since_ns: u64,
}

impl Budget {
    /// The units between two looks: less than 100 microseconds of work.
    const UNITS: u32 = 64;
    /// The cost of an attempt that moves as much as one may.
    pub const ATTEMPT: u32 = 32;
    /// How long work goes on before its equals run.
    const SLICE_NS: u64 = 500_000;

    /// A full one.
    #[must_use]
    pub const fn new() -> Self {
        Self { left: Self::UNITS, since_ns: 0 }
    }

    /// An exhausted one, for what has already used another.
    #[must_use]
    pub const fn exhausted() -> Self {
        Self { left: 0, since_ns: 0 }
    }

    /// Spends some units. Returns whether the budget is exhausted: the caller then awaits [`Budget::look`].
    #[inline]
    pub const fn spend(&mut self, units: u32) -> bool {
        self.left = self.left.saturating_sub(units);
        self.left == 0
    }

    /// Fills the budget again: lets interrupts in, and others run if something more urgent is ready or the time is
    /// over.
    pub async fn look(&mut self) {
        self.left = Self::UNITS;
        #[cfg(feature = "checking")]
        stretch::end("a look around");
        arch::cpu::poll_interrupts();
        #[cfg(feature = "checking")]
        stretch::begin();
        let now = now_ns();
        if self.since_ns == 0 {
            self.since_ns = now;
        }
        if should_yield(Priority::NORMAL)
            || now.saturating_sub(self.since_ns) >= Self::SLICE_NS && !is_alone()
        {
            yield_now().await;
            self.since_ns = now_ns();
        }
    }

    /// Spends some units, and looks if that exhausts the budget.
    #[inline]
    pub async fn step(&mut self, units: u32) {
        if self.spend(units) {
            self.look().await;
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new()
    }
}
