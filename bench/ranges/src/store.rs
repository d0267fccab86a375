//! A storage engine's aliasing area, in memory: workers read blobs of 1 MB whose pages are scattered over a buffer
//! pool. To see a blob in one piece, a worker reserves a range of the area, makes it show the blob's pages, reads, and
//! gives the range up. Two ways: copying every page there, or only entering its frame in a table of the area's pages,
//! as a page table would; the second leaves the lock more of the time.
//!
//! Every read looks whether the range still shows what was put there, so a lock that lets two workers in is found out.
#![allow(unsafe_code)] // Workers write to disjoint parts of one area, which is what the locks are for.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::random::{Random, Zipf};

/// Pages of the area.
pub const AREA_PAGES: u64 = 16 * 1024;
/// Pages of a blob.
pub const BLOB_PAGES: u64 = 256;
/// Blobs in the pool.
const BLOBS: u64 = 64;
const PAGE_BYTES: usize = 4096;
/// Reads for each blob that is added, where the newest ones are asked for.
const READS_PER_INSERT: u64 = 20;

/// Which blobs are read: YCSB's distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// All alike.
    Uniform,
    /// A few very often (0.99).
    Zipf,
    /// The newest most often; one read of twenty adds one.
    Latest,
}

impl Keys {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::Latest => "latest",
        }
    }
}

/// The pool, the area and its table; made once and used by all runs.
pub struct Store {
    pool: Vec<u8>,
    area: *mut u8,
    table: Vec<AtomicUsize>,
    newest: AtomicU64,
    zipf: Zipf,
}

// SAFETY: the area is written and read under a lock on the pages only; everything else is safe to share.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    /// The only one.
    pub fn get() -> &'static Self {
        static STORE: OnceLock<Store> = OnceLock::new();
        STORE.get_or_init(|| {
            let frames = (BLOBS * BLOB_PAGES) as usize;
            let pool = (0..frames).flat_map(|frame| [mark(frame); PAGE_BYTES]).collect();
            // Kept until the program ends.
            let area = vec![0u8; AREA_PAGES as usize * PAGE_BYTES].leak().as_mut_ptr();
            let table = (0..AREA_PAGES).map(|_| AtomicUsize::new(usize::MAX)).collect();
            Self { pool, area, table, newest: AtomicU64::new(0), zipf: Zipf::new(BLOBS, 0.99) }
        })
    }

    /// The next blob to read.
    pub fn choose(&self, keys: Keys, random: &mut Random) -> u64 {
        match keys {
            Keys::Uniform => random.below(BLOBS),
            Keys::Zipf => self.zipf.item(random),
            Keys::Latest => {
                let newest = if random.below(READS_PER_INSERT) == 0 {
                    self.newest.fetch_add(1, Ordering::Relaxed) + 1
                } else {
                    self.newest.load(Ordering::Relaxed)
                };
                newest.wrapping_sub(self.zipf.rank(random)) % BLOBS
            }
        }
    }

    /// Shows `blob` at `page` by copying it there, and reads it.
    ///
    /// # Safety
    /// The caller has the blob's pages from `page` on for itself.
    ///
    /// # Panics
    /// If it has not.
    pub unsafe fn copy(&self, blob: u64, page: u64) {
        for at in 0..BLOB_PAGES {
            let frame = frame(blob, at);
            // SAFETY: inside of pool and area; the area's page is the caller's.
            unsafe {
                let source = self.pool.as_ptr().add(frame * PAGE_BYTES);
                let place = self.area.add((page + at) as usize * PAGE_BYTES);
                source.copy_to_nonoverlapping(place, PAGE_BYTES);
            }
        }
        for at in 0..BLOB_PAGES {
            // SAFETY: as above.
            let seen = unsafe { self.area.add((page + at) as usize * PAGE_BYTES).read_volatile() };
            assert_eq!(seen, mark(frame(blob, at)), "two workers in one range");
        }
    }

    /// Shows `blob` at `page` by its frames' numbers, and reads one byte of each page.
    ///
    /// # Panics
    /// If the caller does not have the pages for itself.
    pub fn map(&self, blob: u64, page: u64) {
        let entries = &self.table[page as usize..][..BLOB_PAGES as usize];
        for (at, entry) in entries.iter().enumerate() {
            entry.store(frame(blob, at as u64), Ordering::Relaxed);
        }
        for (at, entry) in entries.iter().enumerate() {
            assert_eq!(entry.load(Ordering::Relaxed), frame(blob, at as u64), "two workers in one range");
        }
    }
}

/// Where a blob's page is in the pool: anywhere, as pages that were allocated one by one are.
fn frame(blob: u64, page: u64) -> usize {
    ((blob * BLOB_PAGES + page) * 6151 % (BLOBS * BLOB_PAGES)) as usize
}

/// The byte that fills a frame.
fn mark(frame: usize) -> u8 {
    (frame % 251) as u8
}
