//! Clocks and timers.

mod timers;

pub use timers::{Sleep, on_timer, sleep_until};

pub use crate::arch::time::now_ns;
