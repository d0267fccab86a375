//! Large pages: aligned runs of [`LARGE_FRAMES`] frames that page tables map by one entry each.
//!
//! Each frame of a large page is counted for itself, so that it can go its own way once the page is split. All entries
//! that lead to the page as a whole, its *mappers*, hold one reference to each of its frames together. Each mapper has
//! brought a frame for the leaf table that a split of it will need, so a split never lacks memory.
//!
//! How many mappers there are, and the frames that they have brought, is kept in descriptors, in the links that frames
//! use only while they are free. The owner of a large page locks these, as that of free blocks does.

use core::sync::atomic::Ordering::Relaxed;

use crate::frame::descriptor::{Descriptor, NONE};

/// The order of a block that can be a large page.
pub const LARGE_ORDER: usize = 9;
/// Frames of a large page.
pub const LARGE_FRAMES: u32 = 1 << LARGE_ORDER;

/// The bookkeeping of a large page.
#[derive(Clone, Copy, Debug)]
pub struct LargeRun<'a> {
    descriptors: &'a [Descriptor],
    first: u32,
}

impl<'a> LargeRun<'a> {
    /// The large page with this first frame.
    #[must_use]
    pub const fn new(descriptors: &'a [Descriptor], first: u32) -> Self {
        Self { descriptors, first }
    }

    fn head(&self) -> &'a Descriptor {
        &self.descriptors[self.first as usize]
    }

    /// The descriptors of its frames.
    #[must_use]
    pub fn frames(&self) -> &'a [Descriptor] {
        &self.descriptors[self.first as usize..(self.first + LARGE_FRAMES) as usize]
    }

    /// Makes a large page of frames that are in nobody's use, with one mapper, which has brought `table`.
    pub fn begin(&self, table: u32) {
        self.frames().iter().for_each(|frame| frame.set_references(1));
        self.head().next.store(0, Relaxed);
        self.head().previous.store(NONE, Relaxed);
        self.add_mapper(table);
    }

    /// How many mappers there are.
    #[must_use]
    pub fn mappers(&self) -> u32 {
        self.head().next.load(Relaxed)
    }

    /// Adds a mapper, which has brought `table`.
    pub fn add_mapper(&self, table: u32) {
        let head = self.head();
        head.next.store(head.next.load(Relaxed) + 1, Relaxed);
        self.descriptors[table as usize].next.store(head.previous.load(Relaxed), Relaxed);
        head.previous.store(table, Relaxed);
    }

    /// Takes back one of the frames that mappers have brought: once for each mapper, before it goes.
    ///
    /// # Panics
    /// If each mapper has taken its own.
    #[must_use]
    pub fn take_table(&self) -> u32 {
        let head = self.head();
        let table = head.previous.load(Relaxed);
        assert!(table != NONE, "each mapper has brought a table");
        head.previous.store(self.descriptors[table as usize].next.load(Relaxed), Relaxed);
        table
    }

    /// Takes a mapper away; `true` if it was the last, and what they held together is the caller's.
    #[must_use]
    pub fn drop_mapper(&self) -> bool {
        let head = self.head();
        let left = head.next.load(Relaxed) - 1;
        head.next.store(left, Relaxed);
        left == 0
    }

    /// Whether nobody but its mappers has a reference to any of its frames. Exact if there is one mapper, and it asks.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.frames().iter().all(|frame| frame.references() == 1)
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_mapper_brings_a_table_and_takes_one() {
        let descriptors: Vec<Descriptor> = (0..2 * LARGE_FRAMES).map(|_| Descriptor::new()).collect();
        let page = LargeRun::new(&descriptors, LARGE_FRAMES);
        page.begin(3);
        assert_eq!(page.mappers(), 1);
        assert!(page.is_whole());
        page.add_mapper(4);
        page.add_mapper(5);
        assert_eq!(page.mappers(), 3);
        let mut tables: Vec<u32> = (0..3).map(|_| page.take_table()).collect();
        tables.sort_unstable();
        assert_eq!(tables, [3, 4, 5]);
        assert!(!page.drop_mapper() && !page.drop_mapper());
        page.frames()[7].add_reference();
        assert!(!page.is_whole());
        assert!(!page.frames()[7].drop_reference());
        assert!(page.is_whole());
        assert!(page.drop_mapper());
    }

    #[test]
    #[should_panic(expected = "each mapper has brought a table")]
    fn no_mapper_takes_the_table_of_another() {
        let descriptors: Vec<Descriptor> = (0..2 * LARGE_FRAMES).map(|_| Descriptor::new()).collect();
        let page = LargeRun::new(&descriptors, 0);
        page.begin(LARGE_FRAMES);
        let _ = page.take_table();
        let _ = page.take_table();
    }
}
