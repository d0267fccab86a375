//! How often the places of a program's calls were used, for the choice of those that become jumps
//! ([`crate::call_place`]): a table of fixed size, counted without a lock.
//!
//! An address has its place in one set of the table, whose ways are looked through. A new address takes the way with
//! the fewest uses. So up to as many places of one set as it has ways come to their counts, in whatever order they are
//! used.
//! Two CPUs that count in one way at once may lose a use.

use core::sync::atomic::{AtomicU64, Ordering};

/// The use at which a place is due.
pub const DUE_USES: u64 = 4;
const SETS_SHIFT: u32 = 5;
const SETS: usize = 1 << SETS_SHIFT;
const WAYS: usize = 4;
/// In a word: the uses, above an address of 48 bits. A word of 0 is free.
const USES_SHIFT: u32 = 48;
/// In place of the uses: the place cannot become a jump.
const NEVER: u64 = 0xffff;
/// The golden ratio's fraction, by which neighbours come to different sets.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The uses of a program's places.
#[derive(Debug)]
pub struct CallUses([[AtomicU64; WAYS]; SETS]);

impl CallUses {
    /// A table without a use.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a table is made by what may fail, never by default")]
    pub const fn new() -> Self {
        Self([const { [const { AtomicU64::new(0) }; WAYS] }; SETS])
    }

    /// Counts a use of the place that ends at this address. Whether it is due.
    pub fn add(&self, end: usize) -> bool {
        let set = self.set(end);
        let known = set.iter().find(|way| address(way.load(Ordering::Relaxed)) == end as u64);
        let Some(way) = known.or_else(|| set.iter().min_by_key(|way| rank(way.load(Ordering::Relaxed))))
        else {
            return false;
        };
        let word = way.load(Ordering::Relaxed);
        let before = if known.is_some() { uses(word) } else { 0 };
        if before == NEVER {
            return false;
        }
        let count = (before + 1).min(DUE_USES);
        way.store(count << USES_SHIFT | end as u64, Ordering::Relaxed);
        count == DUE_USES
    }

    /// The place can never become a jump.
    pub fn give_up(&self, end: usize) {
        self.replace(end, NEVER << USES_SHIFT | end as u64);
    }

    /// The place has become a jump, and is used no more.
    pub fn forget(&self, end: usize) {
        self.replace(end, 0);
    }

    fn replace(&self, end: usize, word: u64) {
        let set = self.set(end);
        if let Some(way) = set.iter().find(|way| address(way.load(Ordering::Relaxed)) == end as u64) {
            way.store(word, Ordering::Relaxed);
        }
    }

    fn set(&self, end: usize) -> &[AtomicU64; WAYS] {
        &self.0[((end as u64).wrapping_mul(SPREAD) >> (u64::BITS - SETS_SHIFT)) as usize]
    }
}

const fn address(word: u64) -> u64 {
    word & ((1 << USES_SHIFT) - 1)
}

const fn uses(word: u64) -> u64 {
    word >> USES_SHIFT
}

/// The order in which ways are given up: free ones, then places that cannot become jumps, which are found out anew at
/// little cost, then those with few uses.
const fn rank(word: u64) -> u64 {
    match uses(word) {
        NEVER => 1,
        0 => 0,
        count => 1 + count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses of one set.
    fn rivals(uses: &CallUses, count: usize) -> Vec<usize> {
        let first = uses.set(0x40_1000).as_ptr();
        (0x40_1000..).filter(|end| uses.set(*end).as_ptr() == first).take(count).collect()
    }

    #[test]
    fn places_of_one_set_are_due_in_turn() {
        let uses = CallUses::new();
        let ends = rivals(&uses, WAYS);
        for use_number in 1..=DUE_USES {
            for end in &ends {
                assert_eq!(uses.add(*end), use_number == DUE_USES);
            }
        }
    }

    #[test]
    fn every_neighbour_is_due_whatever_its_address() {
        for base in (0..0x10_000).step_by(16) {
            let uses = CallUses::new();
            let ends = [base + 7, base + 23, base + 0x5_00b1];
            let due = (0..DUE_USES).map(|_| ends.map(|end| uses.add(end))).last();
            assert_eq!(due, Some([true; 3]), "{base:#x}");
        }
    }

    #[test]
    fn what_was_given_up_is_never_due() {
        let uses = CallUses::new();
        uses.add(0x1000);
        uses.give_up(0x1000);
        assert!((0..10).all(|_| !uses.add(0x1000)));
    }

    #[test]
    fn what_was_forgotten_begins_anew() {
        let uses = CallUses::new();
        (0..DUE_USES).for_each(|_| _ = uses.add(0x1000));
        uses.forget(0x1000);
        assert!(!uses.add(0x1000));
    }
}
