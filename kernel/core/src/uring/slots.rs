//! The free slots of a table of registered files.
//!
//! A bit of an array of words stands for each slot, so that the search for a free one is short however large the table
//! is. The words are the owner's.

use super::InvalidEntry;

/// The part of a table in which the kernel chooses slots, and where it goes on to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeSlots {
    slots: u32,
    first: u32,
    end: u32,
    hint: u32,
}

impl FreeSlots {
    /// Of a table of this size, all of it.
    #[must_use]
    pub const fn new(slots: u32) -> Self {
        Self { slots, first: 0, end: slots, hint: 0 }
    }

    /// The words that stand for the slots.
    #[must_use]
    pub const fn words_for(&self) -> usize {
        self.slots.div_ceil(u64::BITS) as usize
    }

    /// Restricts the kernel's choice to `length` slots from `first` on.
    ///
    /// # Errors
    /// [`InvalidEntry`]: the table ends before them.
    pub const fn set_range(&mut self, first: u32, length: u32) -> Result<(), InvalidEntry> {
        match first.checked_add(length) {
            Some(end) if end <= self.slots => {
                (self.first, self.end, self.hint) = (first, end, first);
                Ok(())
            }
            _ => Err(InvalidEntry),
        }
    }

    /// A slot that is free.
    #[must_use]
    pub fn find(&self, words: &[u64]) -> Option<u32> {
        find_zero(words, self.hint.max(self.first), self.end)
            .or_else(|| find_zero(words, self.first, self.end))
    }

    /// A slot has been filled.
    pub fn take(&mut self, words: &mut [u64], slot: u32) {
        words[(slot / u64::BITS) as usize] |= 1 << (slot % u64::BITS);
        self.hint = slot + 1;
    }

    /// A slot has become free.
    pub fn free(&mut self, words: &mut [u64], slot: u32) {
        words[(slot / u64::BITS) as usize] &= !(1 << (slot % u64::BITS));
        self.hint = slot;
    }
}

fn find_zero(words: &[u64], first: u32, end: u32) -> Option<u32> {
    let mut at = first;
    while at < end {
        let free = !words[(at / u64::BITS) as usize] >> (at % u64::BITS);
        let found = at + free.trailing_zeros();
        if free != 0 {
            return (found < end).then_some(found);
        }
        at = (at / u64::BITS + 1) * u64::BITS;
    }
    None
}
