//! The page that every program can read: the clock, and the levels at which something waits for a processor. Its layout
//! is in `heddle-abi`; `user_sched` maps it.

use core::sync::atomic::Ordering;

use heddle_abi::user_sched::SystemPage;

use crate::arch;
use crate::time::Clock;

/// The page. Programs read it; only the kernel writes.
pub static PAGE: SystemPage = SystemPage::new();

/// Tells programs how to read the clock. At the start, and when the time of day has been set.
pub fn set_clock() {
    let (base, scale) = arch::time::parameters();
    PAGE.clock.base.store(base, Ordering::Relaxed);
    PAGE.clock.realtime_offset.store(Clock::realtime_offset_ns(), Ordering::Relaxed);
    PAGE.clock.scale.store(scale, Ordering::Relaxed);
}
