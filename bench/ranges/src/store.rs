//! A storage engine's aliasing area ([`engine`](crate::engine)) as the lock sees it, without the system's part: a
//! worker reserves a range of pages, enters a blob's frames in a table of them, as a page table would, reads them, and
//! gives the range up. It leaves the lock more of the time.
//!
//! Every read looks whether the range still shows what was put there, so a lock that lets two workers in is found out.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::random::{Random, Zipf};

/// Pages of the area.
pub const AREA_PAGES: u64 = 16 * 1024;
/// Pages of a blob.
pub const BLOB_PAGES: u64 = 256;
/// Blobs.
const BLOBS: u64 = 64;
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

/// The area's table; made once and used by all runs.
pub struct Store {
    table: Vec<AtomicUsize>,
    newest: AtomicU64,
    zipf: Zipf,
}

impl Store {
    /// The only one.
    pub fn get() -> &'static Self {
        static STORE: OnceLock<Store> = OnceLock::new();
        STORE.get_or_init(|| {
            let table = (0..AREA_PAGES).map(|_| AtomicUsize::new(usize::MAX)).collect();
            Self { table, newest: AtomicU64::new(0), zipf: Zipf::new(BLOBS, 0.99) }
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

/// The frame of a blob's page: anywhere, as pages that were allocated one by one are.
fn frame(blob: u64, page: u64) -> usize {
    ((blob * BLOB_PAGES + page) * 6151 % (BLOBS * BLOB_PAGES)) as usize
}
