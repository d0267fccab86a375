//! Slots: the parts of the lower half that programs claim, one entry of a page-table root each.
//!
//! A slot is as large as an entry of the root covers (512 GiB), so that putting a program into a CPU's root is one
//! store. Smaller slots would share tables, and roots that differ in one of them would have to be kept in step entry
//! by entry. There are 255 beside the low window. When all are claimed, programs share slots, and only those that do
//! change the page table when one follows the other.

use core::ops::Range;

use crate::arch::paging;
use crate::sync::SpinLock;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = paging::span(paging::LEVELS - 1);
/// The slot of programs that are linked to fixed addresses, which are low.
pub const WINDOW: usize = 0;
const WORD_BITS: usize = 64;

struct Claims {
    /// One bit a slot that is claimed or not to be given out.
    used: [u64; paging::ROOT_USER_ENTRIES / WORD_BITS],
    counts: [u32; paging::ROOT_USER_ENTRIES],
    /// The lowest slot that is given out.
    lowest: usize,
}

static CLAIMS: SpinLock<Claims> = SpinLock::new(Claims {
    used: {
        let mut words = [0; paging::ROOT_USER_ENTRIES / WORD_BITS];
        words[WINDOW] = 1;
        words
    },
    counts: [0; paging::ROOT_USER_ENTRIES],
    lowest: 1,
});

/// Limits the number of slots that are given out; one always is.
pub fn limit(count: usize) {
    let mut claims = CLAIMS.lock();
    claims.lowest = paging::ROOT_USER_ENTRIES.saturating_sub(count.max(1)).max(1);
    for number in 1..claims.lowest {
        claims.used[number / WORD_BITS] |= 1 << (number % WORD_BITS);
    }
}

/// The claim of a slot, until it is dropped. Its owner's table is out of every CPU's root by then.
#[derive(Debug)]
pub struct Slot {
    number: usize,
}

impl Slot {
    /// Claims the highest slot that nobody claims, or the one that fewest claim. Programs that begin at the top have
    /// the addresses that they have on Linux, which some check.
    pub fn take() -> Self {
        let mut claims = CLAIMS.lock();
        let free = claims.used.iter().enumerate().rev().find(|(_, word)| **word != u64::MAX);
        let free = free.map(|(index, word)| index * WORD_BITS + WORD_BITS - 1 - word.leading_ones() as usize);
        let least = || (claims.lowest..paging::ROOT_USER_ENTRIES).min_by_key(|&slot| claims.counts[slot]);
        let number = free.or_else(least).unwrap_or(paging::ROOT_USER_ENTRIES - 1);
        claims.claim(number)
    }

    /// Claims a certain one.
    pub fn claim(number: usize) -> Self {
        CLAIMS.lock().claim(number)
    }

    /// The addresses. The last slot ends where programs' addresses end.
    pub fn range(&self) -> Range<usize> {
        let start = self.number * SLOT_BYTES;
        start..(start + SLOT_BYTES).min(paging::USER_END)
    }

    /// The number of a claim that the quarantine gives up later, with [`Self::from_number`].
    pub fn into_number(self) -> usize {
        let number = self.number;
        core::mem::forget(self);
        number
    }

    /// The claim of [`Self::into_number`].
    pub const fn from_number(number: usize) -> Self {
        Self { number }
    }

    /// The slot's number: the index of its entry in a root.
    pub const fn number(&self) -> usize {
        self.number
    }
}

impl Claims {
    fn claim(&mut self, number: usize) -> Slot {
        self.counts[number] += 1;
        self.used[number / WORD_BITS] |= 1 << (number % WORD_BITS);
        Slot { number }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut claims = CLAIMS.lock();
        claims.counts[self.number] -= 1;
        if claims.counts[self.number] == 0 && self.number != WINDOW {
            claims.used[self.number / WORD_BITS] &= !(1 << (self.number % WORD_BITS));
        }
    }
}
