//! Linux's clocks, and moments on them.

use core::sync::atomic::{AtomicI64, Ordering};

use crate::arch;
use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::time::{Sleep, sleep_until};

pub const NS_PER_SECOND: u64 = 1_000_000_000;

/// A clock that runs on its own, whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Time of day, since the Unix epoch.
    Realtime,
    /// Since the start; never set.
    Monotonic,
    /// The same, since the machine is never suspended. In a time namespace it has an offset of its own.
    Boottime,
}

/// The offset of the time of day that clock_settime(2) has set.
static ADJUSTMENT_NS: AtomicI64 = AtomicI64::new(0);

impl Clock {
    /// The clock's time in nanoseconds.
    #[must_use]
    pub fn now_ns(self) -> u64 {
        match self {
            Self::Monotonic | Self::Boottime => now_ns(),
            Self::Realtime => now_ns().wrapping_add(Self::realtime_offset_ns()),
        }
    }

    /// The time of day minus the monotonic clock.
    #[must_use]
    pub fn realtime_offset_ns() -> u64 {
        arch::time::wall_clock_offset().wrapping_add_signed(ADJUSTMENT_NS.load(Ordering::Relaxed))
    }

    /// Sets the time of day.
    pub fn set_realtime(time_ns: u64) {
        let unset = now_ns().wrapping_add(arch::time::wall_clock_offset());
        ADJUSTMENT_NS.store(time_ns.wrapping_sub(unset) as i64, Ordering::Relaxed);
        crate::time::system_page::set_clock();
    }
}

/// A moment to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(u64);

impl Deadline {
    /// A moment that doesn't come.
    pub const NEVER: Self = Self(u64::MAX);

    /// So many nanoseconds from now; never if there is no number.
    #[must_use]
    pub fn after(nanoseconds: Option<u64>) -> Self {
        nanoseconds.map_or(Self::NEVER, |nanoseconds| Self(now_ns().saturating_add(nanoseconds)))
    }

    /// When a clock shows `time_ns`.
    #[must_use]
    pub fn at(clock: Clock, time_ns: u64) -> Self {
        match clock {
            Clock::Monotonic | Clock::Boottime => Self(time_ns),
            Clock::Realtime => Self(time_ns.saturating_sub(Clock::realtime_offset_ns())),
        }
    }

    /// Completes when the moment has come.
    #[must_use]
    pub fn sleep(self) -> Sleep {
        sleep_until(self.0)
    }

    /// The moment on the monotonic clock.
    #[must_use]
    pub const fn moment_ns(self) -> u64 {
        self.0
    }

    /// Nanoseconds left, 0 when the moment has passed.
    #[must_use]
    pub fn remaining_ns(self) -> u64 {
        self.0.saturating_sub(now_ns())
    }

    /// Whether the moment has come.
    #[must_use]
    pub fn is_over(self) -> bool {
        self.remaining_ns() == 0
    }
}

/// The clock that a moment is kept on. A time of day stays one, so that it comes earlier or later when that is set;
/// all others are moments of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockBase {
    /// The monotonic clock.
    #[default]
    Monotonic,
    /// The time of day.
    Day,
}

impl ClockBase {
    /// The base of a moment that was given as a time of this clock, or as so long from now.
    #[must_use]
    pub fn of(clock: Clock, is_absolute: bool) -> Self {
        if is_absolute && clock == Clock::Realtime { Self::Day } else { Self::Monotonic }
    }

    /// The time on it.
    #[must_use]
    pub fn now_ns(self) -> u64 {
        match self {
            Self::Monotonic => now_ns(),
            Self::Day => Clock::Realtime.now_ns(),
        }
    }

    /// The moment of the monotonic clock, as the time of day is set now.
    #[must_use]
    pub fn moment_ns(self, time_ns: u64) -> u64 {
        match self {
            Self::Monotonic => time_ns,
            Self::Day => Deadline::at(Clock::Realtime, time_ns).moment_ns(),
        }
    }
}

/// Nanoseconds of a `struct timespec`.
///
/// # Errors
/// `EINVAL`.
pub fn timespec_ns(seconds: u64, nanoseconds: u64) -> Result<u64, Errno> {
    if (seconds as i64) < 0 || nanoseconds >= NS_PER_SECOND {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(NS_PER_SECOND).saturating_add(nanoseconds))
}

/// The words of a `struct timespec`.
#[must_use]
pub const fn timespec_words(time_ns: u64) -> [u64; 2] {
    [time_ns / NS_PER_SECOND, time_ns % NS_PER_SECOND]
}
