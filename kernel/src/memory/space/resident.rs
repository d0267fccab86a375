//! How many pages of a space are in memory, counted as they come and go, and the most that there were: `VmRSS` and
//! `VmHWM`. The page of zeros stands for pages that are not there.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::paging::PageTableEntry;
use crate::memory::PageRef;
use crate::memory::space::Space;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Resident {
    pages: AtomicUsize,
    /// The most that there were when pages last went.
    peak: AtomicUsize,
}

/// Whether an entry of a leaf table is a page that counts.
pub(in crate::memory) fn counts(entry: PageTableEntry) -> bool {
    entry.is_present() && entry.physical() != PageRef::zero().physical()
}

impl Space {
    /// So many pages have come.
    #[inline]
    pub(super) fn pages_came(&self, count: usize) {
        if count > 0 {
            self.resident.pages.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// So many pages have gone.
    pub(super) fn pages_went(&self, count: usize) {
        if count > 0 {
            let before = self.resident.pages.fetch_sub(count, Ordering::Relaxed);
            self.resident.peak.fetch_max(before, Ordering::Relaxed);
        }
    }

    /// A child has the same pages.
    pub(super) fn pages_are_shared_with(&self, child: &Self) {
        child.resident.pages.store(self.resident_pages(), Ordering::Relaxed);
    }

    /// Pages that are in memory.
    #[must_use]
    pub fn resident_pages(&self) -> usize {
        self.resident.pages.load(Ordering::Relaxed)
    }

    /// The most that there were at a time.
    #[must_use]
    pub fn peak_resident_pages(&self) -> usize {
        self.resident.peak.load(Ordering::Relaxed).max(self.resident_pages())
    }
}
