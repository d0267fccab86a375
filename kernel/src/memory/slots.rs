//! The slots of the shared space: 64 GiB of addresses each, for one process each.

use core::ops::Range;

use crate::arch::paging;
use crate::memory::deferred_free;
use crate::memory::deferred_free::TlbScope;
use crate::memory::table::Root;
use crate::sync::SpinLock;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 64 << 30;
/// Slots in the lower half, the first one included, which is never given out: address 0 is in it.
const SLOTS: usize = (paging::USER_END + paging::PAGE_SIZE) / SLOT_BYTES;
const WORD_BITS: usize = 64;
/// Level of the tables whose entries make up a slot.
const SLOT_LEVEL: usize = 2;

static USED: SpinLock<[u64; SLOTS / WORD_BITS]> = SpinLock::new({
    let mut words = [0; SLOTS / WORD_BITS];
    words[0] = 1;
    words
});

/// Limits the number of slots that may be given out.
pub fn limit(count: usize) {
    let mut words = USED.lock();
    for number in count.saturating_add(1)..SLOTS {
        words[number / WORD_BITS] |= 1 << (number % WORD_BITS);
    }
}

/// A slot, until it is dropped. Its owner has emptied it by then, translations included.
#[derive(Debug)]
pub struct Slot {
    number: usize,
}

impl Slot {
    /// Takes the lowest free slot.
    pub fn take() -> Option<Self> {
        let mut words = USED.lock();
        let (position, word) = words.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones() as usize;
        *word |= 1 << bit;
        Some(Self { number: position * WORD_BITS + bit })
    }

    /// The addresses. The last slot ends where programs' addresses end.
    pub fn range(&self) -> Range<usize> {
        let start = self.number * SLOT_BYTES;
        start..(start + SLOT_BYTES).min(paging::USER_END)
    }

    /// The slot as a word with the low bits free, for the quarantine.
    pub fn into_word(self) -> u64 {
        let number = self.number;
        core::mem::forget(self);
        (number as u64) << 3
    }

    /// The slot of [`Self::into_word`].
    pub const fn from_word(word: u64) -> Self {
        Self { number: (word >> 3) as usize }
    }

    /// The slot's number, from 1.
    pub const fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut words = USED.lock();
        words[self.number / WORD_BITS] &= !(1 << (self.number % WORD_BITS));
        // Eight slots share a table; it goes with the last of them. The lock keeps others from taking one meanwhile.
        let table_slots = paging::span(SLOT_LEVEL + 1) / SLOT_BYTES;
        let first = self.number / table_slots * table_slots;
        let mask = ((1u64 << table_slots) - 1) << (first % WORD_BITS);
        let used = words[first / WORD_BITS] & mask;
        let only_reserved = first == 0 && used == 1;
        let is_last = used == 0 || only_reserved;
        let root = Root(paging::shared_root());
        let table = if is_last { root.prune(first * SLOT_BYTES, SLOT_LEVEL) } else { None };
        drop(words);
        if let Some(table) = table {
            // No page of it is cached, but the entry that led to it may be.
            if paging::current_root() == root.0 {
                paging::flush_page(first * SLOT_BYTES);
            }
            let word = table.physical() | (SLOT_LEVEL + 1) as u64;
            deferred_free::release(TlbScope::Any, core::iter::once(word));
        }
    }
}
