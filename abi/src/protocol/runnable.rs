//! The number of runnable executors of a process, and the wakeup of a spare one when none is.

use crate::protocol::{AtomicU32, Ordering};

/// Counts the executors of a process that run or wait for a processor.
///
/// A level of the process counts only while one of them can run it. The one that blocks last sees that it is the last,
/// because the count is one word, and wakes one that sleeps, if something is ready. If work becomes ready while no
/// executor runs, the thread that made it ready notifies a sleeping executor; the pending word of
/// [`crate::protocol::record`] keeps that from being lost on an executor that is on its way to sleep.
pub struct Runnable(AtomicU32);

impl Runnable {
    /// None.
    #[cfg(not(heddle_loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// None.
    #[cfg(heddle_loom)]
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// One more can run.
    pub fn starts(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less can. `true`: it was the last.
    #[must_use]
    pub fn blocks(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// How many can run.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(not(heddle_loom))]
impl Default for Runnable {
    fn default() -> Self {
        Self::new()
    }
}
