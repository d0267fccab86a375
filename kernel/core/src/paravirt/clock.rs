//! KVM's clock, of which the kernel takes the frequency of the time-stamp counter.

use core::sync::atomic::{AtomicI8, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Looks at a page that the host is changing, before it counts as empty.
const LOOKS_MAX: u32 = 1 << 20;

/// KVM's clock of a processor (`struct pvclock_vcpu_time_info`).
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ClockPage {
    /// Odd while the host changes the page.
    version: AtomicU32,
    padding: u32,
    counter: AtomicU64,
    time_ns: AtomicU64,
    scale: AtomicU32,
    shift: AtomicI8,
    flags: AtomicU8,
    rest: [u8; 2],
}

impl ClockPage {
    /// A page on which the host has written nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            padding: 0,
            counter: AtomicU64::new(0),
            time_ns: AtomicU64::new(0),
            scale: AtomicU32::new(0),
            shift: AtomicI8::new(0),
            flags: AtomicU8::new(0),
            rest: [0; 2],
        }
    }

    /// The frequency of the time-stamp counter; `None` while the host has written nothing, or does not come to an end
    /// with it.
    #[must_use]
    pub fn frequency_hz(&self) -> Option<u64> {
        let (scale, shift) = (0..LOOKS_MAX).find_map(|_| {
            let seen = self.look();
            if seen.is_none() {
                core::hint::spin_loop();
            }
            seen
        })?;
        // Nanoseconds are (counts << shift) * scale / 2^32, and a negative shift is one to the right.
        let second = 1_000_000_000u128 << 32;
        let unshifted = second.checked_div(u128::from(scale))?;
        let hertz = match shift {
            0.. => unshifted >> shift,
            _ => unshifted << shift.unsigned_abs().min(31),
        };
        u64::try_from(hertz).ok().filter(|&hertz| hertz > 0)
    }

    /// Scale and shift, if the host changed nothing meanwhile.
    fn look(&self) -> Option<(u32, i8)> {
        let before = self.version.load(Ordering::Acquire);
        let values = (self.scale.load(Ordering::Relaxed), self.shift.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before).then_some(values)
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests;
