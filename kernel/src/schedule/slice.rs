//! Time slices of programs.

use super::Priority;
use crate::arch;
use crate::time::now_ns;

/// How long a program runs before it gives way to another of its level.
pub const SLICE_NS: u64 = 5_000_000;

/// The time that a program may run for.
pub struct Slice {
    priority: Priority,
    end_ns: u64,
}

impl Slice {
    /// A new slice, from now on.
    #[must_use]
    pub fn begin(priority: Priority) -> Self {
        Self { priority, end_ns: now_ns() + SLICE_NS }
    }

    /// Makes sure that the program is interrupted when its slice ends.
    pub fn before_user(&self) {
        arch::time::set_timer(self.end_ns);
    }

    /// Whether something more urgent is ready.
    #[must_use]
    pub fn is_outranked(&self) -> bool {
        super::is_more_urgent_ready(self.priority)
    }

    /// After an interrupt: whether the program gives way, to something more urgent, or at the end of its slice to
    /// something as urgent. With nothing else to run it gets another slice.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        if self.is_outranked() {
            return true;
        }
        if now_ns() < self.end_ns {
            return false;
        }
        self.end_ns = now_ns() + SLICE_NS;
        super::should_yield(self.priority)
    }
}
