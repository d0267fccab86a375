//! Sets of chunks of the table.

use super::{CHUNK_SHIFT, CHUNKS};
use crate::sync::{AtomicU64, Ordering};

const WORDS: usize = CHUNKS.div_ceil(64);
const GROUPS: usize = WORDS.div_ceil(64);

/// A set of chunks, to which any thread may add.
pub(crate) struct ChunkSet {
    /// Bit `n` of word `m`: chunk `64 * m + n`.
    words: [AtomicU64; WORDS],
    /// Bit `n` of word `m`: a bit of word `64 * m + n` has been set since the last [`ChunkSet::clear`].
    used: [AtomicU64; GROUPS],
}

const fn bit(number: u32) -> u64 {
    1 << (number % 64)
}

impl ChunkSet {
    pub const fn new() -> ChunkSet {
        ChunkSet { words: [const { AtomicU64::new(0) }; WORDS], used: [const { AtomicU64::new(0) }; GROUPS] }
    }

    fn word(&self, chunk: u32) -> Option<&AtomicU64> {
        self.words.get(chunk as usize / 64)
    }

    pub fn contains(&self, chunk: u32) -> bool {
        self.word(chunk).is_some_and(|word| word.load(Ordering::Relaxed) & bit(chunk) != 0)
    }

    /// Adds `chunk`, after everything that the caller did with it.
    pub fn insert(&self, chunk: u32) {
        let Some(word) = self.word(chunk).filter(|_| !self.contains(chunk)) else { return };
        if let Some(group) = self.used.get(chunk as usize / 64 / 64) {
            group.fetch_or(bit(chunk / 64), Ordering::Relaxed);
        }
        word.fetch_or(bit(chunk), Ordering::Release);
    }

    /// Adds the chunk of the slot of index `index`.
    pub fn insert_of(&self, index: u32) {
        self.insert(index >> CHUNK_SHIFT);
    }

    /// Takes a chunk out, for the caller alone.
    pub fn take(&self) -> Option<u32> {
        for number in self.used_words() {
            let word = self.words.get(number as usize)?;
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let first = bits.trailing_zeros();
                // Acquire: what was done with the chunk before it was added.
                bits = word.fetch_and(!bit(first), Ordering::Acquire);
                if bits & bit(first) != 0 {
                    return Some(number * 64 + first);
                }
            }
        }
        None
    }

    /// Removes all. Nobody adds meanwhile.
    pub fn clear(&self) {
        for number in self.used_words() {
            if let Some(word) = self.words.get(number as usize) {
                word.store(0, Ordering::Relaxed);
            }
        }
        self.used.iter().for_each(|group| group.store(0, Ordering::Relaxed));
    }

    fn used_words(&self) -> impl Iterator<Item = u32> {
        self.used.iter().zip(0..).flat_map(|(group, number): (&AtomicU64, u32)| {
            bits_of(group.load(Ordering::Relaxed)).map(move |bit| number * 64 + bit)
        })
    }

    /// The chunks that are in one of `sets` or in several, from the lowest on.
    pub fn union<'s>(sets: impl Iterator<Item = &'s ChunkSet> + Clone) -> impl Iterator<Item = u32> {
        (0..WORDS as u32).flat_map(move |number| {
            let words = sets.clone().filter_map(|set| set.words.get(number as usize));
            let all = words.fold(0, |all, word| all | word.load(Ordering::Relaxed));
            bits_of(all).map(move |bit| number * 64 + bit)
        })
    }
}

fn bits_of(mut word: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let first = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (first < 64).then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::{CHUNKS, ChunkSet};
    use std::vec::Vec;

    #[test]
    fn sets_give_what_was_put_in() {
        let (one, two) = (ChunkSet::new(), ChunkSet::new());
        let last = CHUNKS as u32 - 1;
        for chunk in [3, last, 0, 3] {
            one.insert(chunk);
        }
        two.insert(5);
        two.insert(3);
        let beyond = 64 * super::WORDS as u32;
        two.insert(beyond);
        assert!(one.contains(3) && one.contains(last) && !one.contains(5) && !two.contains(beyond));
        assert_eq!(ChunkSet::union([&one, &two].into_iter()).collect::<Vec<_>>(), [0, 3, 5, last]);
        assert_eq!([one.take(), one.take(), one.take(), one.take()], [Some(0), Some(3), Some(last), None]);
        one.insert(3);
        assert_eq!(one.take(), Some(3));
        two.clear();
        assert_eq!(ChunkSet::union([&two].into_iter()).count(), 0);
        two.insert(5);
        assert_eq!(two.take(), Some(5));
    }
}
