//! Anonymous memory that is stored to in order comes several pages at a time: a fault costs more than the page that it
//! brings, and whoever has touched some pages one after the other goes on.
//!
//! A space remembers a few places where such a walk would go on, one for each of several parts of its addresses, so
//! that threads that fill memory of their own do not disturb each other. The first faults of a walk bring one page
//! each; from then on the number doubles. So what comes in vain is less than what was touched. Files that are mapped and
//! read in order come in windows, which double as well: their pages are there, and cost an entry each.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::arch::paging;
use crate::arch::paging::PAGE_SIZE;

/// Pages that a fault brings in at most: to clear them takes some 20 µs.
pub(super) const PAGES_MAX: usize = 16;
/// Faults of a walk that bring one page each: programs that touch little pay for nothing else, and find in their own
/// accounts what they touched.
const STEPS: usize = 16;
/// Places that are remembered.
const PLACES: usize = 4;
/// The bits of a place that count the faults of its walk; the others are the address of the page that comes next.
const COUNT: usize = PAGE_SIZE - 1;
/// The count from which on nothing changes.
const COUNT_MAX: usize = STEPS + PAGES_MAX.ilog2() as usize;

/// Pages that a load which misses a file's page brings in around it, as far as they are in memory: the first ones of a
/// walk, and how often the number doubles while it goes on.
const FILE_PAGES: usize = 16;
const FILE_DOUBLINGS: usize = 3;

/// The most large pages that a space can have earned.
const EARNED_MAX: u8 = 8;

/// Where walks over anonymous memory would go on. Only a hint: threads may overwrite each other's.
pub(super) struct FaultAhead {
    places: [AtomicUsize; PLACES],
    /// Where a walk over a mapped file would go on, likewise.
    file: AtomicUsize,
    /// Large pages that may come at the first touch of their start.
    earned: AtomicU8,
}

impl FaultAhead {
    /// No walk.
    pub const fn new() -> Self {
        Self {
            places: [const { AtomicUsize::new(0) }; PLACES],
            file: AtomicUsize::new(0),
            earned: AtomicU8::new(0),
        }
    }

    fn place(&self, page: usize) -> &AtomicUsize {
        &self.places[page / paging::span(1) % PLACES]
    }

    /// How many faults of a walk have come before one on `page`.
    fn faults_before(&self, page: usize) -> usize {
        let place = self.place(page).load(Ordering::Relaxed);
        if place & !COUNT == page { place & COUNT } else { 0 }
    }

    /// How many pages, from the missing one on, a store is to bring in: at most up to the end of their leaf table.
    pub fn pages(&self, page: usize) -> usize {
        let doublings = (self.faults_before(page) + 1).saturating_sub(STEPS);
        let wanted = (1 << doublings).min(PAGES_MAX);
        wanted.min((paging::span(1) - page % paging::span(1)) / PAGE_SIZE)
    }

    /// A store to `page` has brought in `pages`.
    pub fn brought(&self, page: usize, pages: usize) {
        let count = (self.faults_before(page) + 1).min(COUNT_MAX);
        let next = page + pages * PAGE_SIZE;
        self.place(next).store(next | count, Ordering::Relaxed);
    }

    fn file_windows_before(&self, page: usize) -> usize {
        let place = self.file.load(Ordering::Relaxed);
        if place & !COUNT == page { place & COUNT } else { 0 }
    }

    /// The pages that a load from a missing page of a file is to bring in: those around it, or, where a walk goes on,
    /// those behind it, up to the end of their leaf table at most.
    pub fn file_window(&self, page: usize) -> Range<usize> {
        let bytes = FILE_PAGES * PAGE_SIZE;
        match self.file_windows_before(page) {
            0 => {
                let start = page & !(bytes - 1);
                start..start + bytes
            }
            windows => {
                let table = page & !(paging::span(1) - 1);
                page..(page + (bytes << windows)).min(table + paging::span(1))
            }
        }
    }

    /// A load from `page` has brought in pages up to `end`.
    pub fn brought_file(&self, page: usize, end: usize) {
        let windows = (self.file_windows_before(page) + 1).min(FILE_DOUBLINGS);
        self.file.store(end | windows, Ordering::Relaxed);
    }

    /// The walk that would go on at `page` is over.
    pub fn forget(&self, page: usize) {
        self.place(page).store(0, Ordering::Relaxed);
    }

    /// Whether a large page may come at the first touch of its start.
    pub fn has_earned(&self) -> bool {
        self.earned.load(Ordering::Relaxed) != 0
    }

    /// A store to the first page of a large one has brought that in, up to `end`.
    pub fn brought_large(&self, page: usize, end: usize) {
        let earned = self.earned.load(Ordering::Relaxed);
        let earned = if self.faults_before(page) == COUNT_MAX {
            // The walk has gone through the place before this one.
            (earned + 1).min(EARNED_MAX)
        } else {
            earned.saturating_sub(1)
        };
        self.earned.store(earned, Ordering::Relaxed);
        self.place(end).store(end | COUNT_MAX, Ordering::Relaxed);
    }
}
