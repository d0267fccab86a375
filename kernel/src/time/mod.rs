//! Clocks and timers.

mod clock;
pub mod system_page;
mod timers;

pub use crate::arch::time::now_ns;
pub use crate::time::clock::{Clock, ClockBase, Deadline, NS_PER_SECOND, timespec_ns, timespec_words};
pub use crate::time::timers::{Sleep, keeper, on_timer, sleep_until};

/// Ticks a second in which times(2), `/proc` and `SIGCHLD` count processor time: `sysconf(_SC_CLK_TCK)`.
pub const CLOCK_TICKS_PER_SECOND: u64 = 100;

/// Nanoseconds as clock ticks.
#[must_use]
pub const fn clock_ticks(nanoseconds: u64) -> i64 {
    (nanoseconds / (NS_PER_SECOND / CLOCK_TICKS_PER_SECOND)) as i64
}

/// Nanoseconds since the Unix epoch.
#[must_use]
pub fn realtime_ns() -> u64 {
    Clock::Realtime.now_ns()
}

/// The same by the host's clock at the machine's start, whatever clock_settime(2) has set since.
#[must_use]
pub fn host_realtime_ns() -> u64 {
    now_ns().wrapping_add(crate::arch::time::wall_clock_offset())
}
