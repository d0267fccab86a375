//! The ready levels, of the machine and of a process.

use crate::user_sched::levels::in_machine;

use crate::protocol::{AtomicU32, AtomicU64, Ordering};

/// How many CPUs have each level in their queue.
pub struct Levels {
    counts: [AtomicU32; 64],
}

impl Levels {
    /// No level anywhere.
    #[cfg(not(heddle_loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: [const { AtomicU32::new(0) }; 64] }
    }

    /// No level anywhere.
    #[cfg(heddle_loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { counts: core::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// A CPU whose queue had the levels `old` has the levels `new`: brings `bitmap` up to date.
    ///
    /// Only levels whose count reaches or leaves 0 are written. The bit follows the count in a second step, so a thread
    /// that wrote a bit looks at the count again: whichever of two is last finds both as they are, and leaves them in
    /// agreement.
    pub fn publish(&self, bitmap: &AtomicU64, old: u64, new: u64) {
        let mut changed = old ^ new;
        while changed != 0 {
            let level = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let bit = 1u64 << level;
            let count = &self.counts[level];
            let reached_or_left_zero = if new & bit != 0 {
                count.fetch_add(1, Ordering::AcqRel) == 0
            } else {
                count.fetch_sub(1, Ordering::AcqRel) == 1
            };
            if reached_or_left_zero {
                follow(count, bitmap, bit);
            }
        }
    }
}

#[cfg(not(heddle_loom))]
impl Default for Levels {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes the bit what the count says.
fn follow(count: &AtomicU32, bitmap: &AtomicU64, bit: u64) {
    loop {
        let is_ready = count.load(Ordering::Acquire) != 0;
        if is_ready {
            bitmap.fetch_or(bit, Ordering::AcqRel);
        } else {
            bitmap.fetch_and(!bit, Ordering::AcqRel);
        }
        if (count.load(Ordering::Acquire) != 0) == is_ready {
            return;
        }
    }
}

/// The level of an executor thread, from words that its program has written: the process's ready levels, and the level
/// of the coroutine that the thread runs (anything from 64 on: none). `None`: the thread is an ordinary one.
#[must_use]
pub fn process_level(ready: u64, running: u32, may_be_urgent: bool) -> Option<u8> {
    let best = ready.trailing_zeros().min(running);
    if best >= 64 { None } else { in_machine(best, may_be_urgent) }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::{Levels, process_level};
    use crate::protocol::{AtomicU64, Ordering};

    #[test]
    fn a_bit_is_set_while_a_cpu_has_the_level() {
        let (levels, bitmap) = (Levels::new(), AtomicU64::new(0));
        let seen = || bitmap.load(Ordering::Relaxed);
        levels.publish(&bitmap, 0, 1 << 5 | 1 << 40);
        assert_eq!(seen(), 1 << 5 | 1 << 40);
        levels.publish(&bitmap, 0, 1 << 5);
        levels.publish(&bitmap, 1 << 5 | 1 << 40, 1 << 40);
        assert_eq!(seen(), 1 << 5 | 1 << 40);
        levels.publish(&bitmap, 1 << 5, 0);
        assert_eq!(seen(), 1 << 40);
        levels.publish(&bitmap, 1 << 40, 1 << 63);
        assert_eq!(seen(), 1 << 63);
        levels.publish(&bitmap, 1 << 63, 0);
        assert_eq!(seen(), 0);
    }

    #[test]
    fn a_process_gets_no_level_that_it_may_not_use() {
        assert_eq!(process_level(0, 64, true), None);
        assert_eq!(process_level(0, u32::MAX, true), None);
        assert_eq!(process_level(1 << 5, 64, true), Some(5));
        assert_eq!(process_level(1 << 5, 64, false), None);
        assert_eq!(process_level(1 << 50, 64, false), Some(50));
        assert_eq!(process_level(1 << 50, 45, false), Some(45));
        assert_eq!(process_level(1 << 50 | 1 << 32, 45, true), None);
        assert_eq!(process_level(u64::MAX, 0, true), Some(4));
        assert_eq!(process_level(1 << 63, 64, true), Some(62));
    }
}
