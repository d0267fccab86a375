//! The segment bitmap of pNOVA (Kim et al.): the key space cut into equal segments, each with a 32-bit word that
//! is a reader-writer lock. A range locks every segment it touches, in order, so neighbours inside a segment
//! exclude each other although their ranges do not overlap.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::BLOB_PAGES;
use crate::side::{Patience, Side};

const WRITER: u32 = 1 << 31;
/// Keys to a segment: the workloads' unit, which suits it best.
pub const SEGMENT: u64 = 1 << SEGMENT_SHIFT;
pub(crate) const SEGMENT_SHIFT: u32 = 10;

/// One word a segment.
pub struct Bitmap {
    words: Vec<AtomicU32>,
    /// Keys of a segment, as a power of two.
    shift: u32,
}

/// The locked segments.
pub struct Segments {
    first: usize,
    last: usize,
    shared: bool,
}

impl Bitmap {
    fn take(&self, at: usize, shared: bool) -> bool {
        let word = &self.words[at];
        if shared {
            let mut seen = word.load(Ordering::Relaxed);
            while seen & WRITER == 0 {
                match word.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return true,
                    Err(now) => seen = now,
                }
            }
            return false;
        }
        word.load(Ordering::Relaxed) == 0
            && word.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn give(&self, at: usize, shared: bool) {
        if shared {
            self.words[at].fetch_sub(1, Ordering::Release);
        } else {
            self.words[at].store(0, Ordering::Release);
        }
    }

    fn of(space: u64, shift: u32) -> Self {
        Self { words: (0..space.div_ceil(1 << shift)).map(|_| AtomicU32::new(0)).collect(), shift }
    }

    fn segments(&self, start: u64, end: u64, shared: bool) -> Segments {
        Segments { first: (start >> self.shift) as usize, last: ((end - 1) >> self.shift) as usize, shared }
    }

    /// Segments in ascending order: no two requests wait for each other.
    fn wait_for(&self, segments: Segments) -> Segments {
        for at in segments.first..=segments.last {
            let mut patience = Patience::new();
            while !self.take(at, segments.shared) {
                patience.wait();
            }
        }
        segments
    }
}

impl Side for Bitmap {
    type Held = Segments;
    const NAME: &'static str = "bitmap";
    const SHARES: bool = true;

    fn new(space: u64) -> Self {
        Self::of(space, SEGMENT_SHIFT)
    }

    fn new_area(pages: u64) -> Self {
        Self::of(pages, BLOB_PAGES.ilog2())
    }

    fn parameters(&self) -> String {
        let keys = 1_u64 << self.shift;
        format!("{} segments of {keys} keys, 32-bit words (1 MB in the engine)", self.words.len())
    }

    #[inline]
    fn try_lock(&self, start: u64, end: u64) -> Option<Segments> {
        let segments = self.segments(start, end, false);
        for at in segments.first..=segments.last {
            if !self.take(at, false) {
                (segments.first..at).for_each(|at| self.give(at, false));
                return None;
            }
        }
        Some(segments)
    }

    #[inline]
    fn lock(&self, start: u64, end: u64) -> Segments {
        self.wait_for(self.segments(start, end, false))
    }

    #[inline]
    fn lock_shared(&self, start: u64, end: u64) -> Segments {
        self.wait_for(self.segments(start, end, true))
    }

    #[inline]
    fn unlock(&self, held: Segments) {
        (held.first..=held.last).for_each(|at| self.give(at, held.shared));
    }
}
