//! The clock that programs read by the parameters in the system page.

use core::sync::atomic::Ordering::Relaxed;

use crate::user_sched::Clock;

/// Nanoseconds for a reading of the counter; `None` if the kernel does not say how to scale it.
#[inline(always)]
pub fn monotonic_ns(clock: &Clock, counter: impl FnOnce() -> u64) -> Option<u64> {
    let scale = clock.scale.load(Relaxed);
    if scale == 0 {
        return None;
    }
    let counts = counter().wrapping_sub(clock.base.load(Relaxed));
    Some(((u128::from(counts) * u128::from(scale)) >> 32) as u64)
}
