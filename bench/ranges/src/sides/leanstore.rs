//! The bitmap of LeanStore's shared aliasing area, as the thesis has it: a bit for each segment, taken a word at a time
//! by compare-and-swap; on a conflict the words taken so far are given back.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::PAGE_BYTES;
use crate::side::{Patience, Side};
use crate::sides::bitmap::SEGMENT_SHIFT;

const BITS: u64 = 64;
/// Pages of a segment of a storage engine's area, as a power of two: those of 1 GB.
const AREA_SHIFT: u32 = 30 - PAGE_BYTES.ilog2();

/// One bit a segment.
pub struct Bits {
    words: Vec<AtomicU64>,
    /// Keys of a segment, as a power of two.
    shift: u32,
}

/// The locked segments.
#[derive(Clone, Copy)]
pub struct Segments {
    first: u64,
    /// The first one behind them.
    end: u64,
}

impl Segments {
    fn of(start: u64, end: u64, shift: u32) -> Self {
        Self { first: start >> shift, end: ((end - 1) >> shift) + 1 }
    }

    /// The words that hold their bits, with those bits.
    fn words(self) -> impl Iterator<Item = (usize, u64)> {
        (self.first / BITS..=(self.end - 1) / BITS).map(move |word| {
            let low = self.first.saturating_sub(word * BITS);
            let high = (self.end - word * BITS).min(BITS);
            (word as usize, (u64::MAX >> (BITS - (high - low))) << low)
        })
    }
}

impl Bits {
    fn of(space: u64, shift: u32) -> Self {
        let segments = space.div_ceil(1 << shift);
        Self { words: (0..segments.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect(), shift }
    }

    fn take(&self, (word, mask): (usize, u64)) -> bool {
        let word = &self.words[word];
        let mut seen = word.load(Ordering::Relaxed);
        while seen & mask == 0 {
            match word.compare_exchange_weak(seen, seen | mask, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    fn give(&self, (word, mask): (usize, u64)) {
        self.words[word].fetch_and(!mask, Ordering::Release);
    }
}

impl Side for Bits {
    type Held = Segments;
    const NAME: &'static str = "LeanStore";
    const SHARES: bool = false;

    fn new(space: u64) -> Self {
        Self::of(space, SEGMENT_SHIFT)
    }

    fn new_area(pages: u64) -> Self {
        Self::of(pages, AREA_SHIFT)
    }

    fn area_step() -> u64 {
        1 << AREA_SHIFT
    }

    fn parameters(&self) -> String {
        let keys = 1_u64 << self.shift;
        format!("{} segments of {keys} keys, a bit each (1 GB in the engine)", self.words.len() as u64 * BITS)
    }

    #[inline]
    fn try_lock(&self, start: u64, end: u64) -> Option<Segments> {
        let segments = Segments::of(start, end, self.shift);
        for (taken, word) in segments.words().enumerate() {
            if !self.take(word) {
                segments.words().take(taken).for_each(|word| self.give(word));
                return None;
            }
        }
        Some(segments)
    }

    #[inline]
    fn lock(&self, start: u64, end: u64) -> Segments {
        let mut patience = Patience::new();
        loop {
            if let Some(segments) = self.try_lock(start, end) {
                return segments;
            }
            patience.wait();
        }
    }

    #[inline]
    fn unlock(&self, held: Segments) {
        held.words().for_each(|word| self.give(word));
    }
}
