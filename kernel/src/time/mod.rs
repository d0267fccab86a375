//! Clocks and timers.

mod timers;

pub use timers::{Sleep, on_timer, sleep_until};

pub use crate::arch::time::now_ns;

/// Ticks a second in which times(2), `/proc` and `SIGCHLD` count processor time: `sysconf(_SC_CLK_TCK)`.
pub const CLOCK_TICKS_PER_SECOND: u64 = 100;

/// Nanoseconds as clock ticks.
#[must_use]
pub const fn clock_ticks(nanoseconds: u64) -> i64 {
    (nanoseconds / (1_000_000_000 / CLOCK_TICKS_PER_SECOND)) as i64
}
