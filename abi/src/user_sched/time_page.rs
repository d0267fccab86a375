//! The page that says how far the clocks of a time namespace are ahead.

use super::AtomicU64;

/// One for each time namespace, in the page before the [system page](super::SystemPage). A program cannot write it,
/// and its words do not change while a program sees it.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct TimePage {
    /// Nanoseconds that `CLOCK_MONOTONIC` and its relatives are ahead of the clock of the system page, in two's
    /// complement.
    pub monotonic_offset: AtomicU64,
    /// The same of `CLOCK_BOOTTIME`.
    pub boottime_offset: AtomicU64,
}

#[cfg(not(heddle_loom))]
impl TimePage {
    /// The page of the first namespace, whose clocks are those of the machine.
    #[must_use]
    pub const fn new() -> Self {
        Self { monotonic_offset: AtomicU64::new(0), boottime_offset: AtomicU64::new(0) }
    }
}

#[cfg(not(heddle_loom))]
impl Default for TimePage {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(heddle_loom))]
const _: () = assert!(size_of::<TimePage>() == super::PAGE_BYTES);
