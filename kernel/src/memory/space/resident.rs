//! How many pages of a space are in memory, counted as they come and go, and the most that there were: `VmRSS` and
//! `VmHWM`. The page of zeros stands for pages that are not there.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::paging::PageTableEntry;
use crate::memory::PageRef;
use crate::memory::charge::SpaceCharge;
use crate::memory::space::Space;

/// See the module.
#[derive(Default)]
pub(super) struct Resident {
    pages: AtomicUsize,
    /// The most that there were when pages last went.
    peak: AtomicUsize,
    /// How they count for the group of the process.
    charge: SpaceCharge,
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
            let pages = self.resident.pages.fetch_add(count, Ordering::Relaxed) + count;
            self.resident.charge.have_come(&self.resident.pages, pages);
        }
    }

    /// So many pages have gone.
    pub(super) fn pages_went(&self, count: usize) {
        if count > 0 {
            let before = self.resident.pages.fetch_sub(count, Ordering::Relaxed);
            self.resident.peak.fetch_max(before, Ordering::Relaxed);
            self.resident.charge.have_gone(&self.resident.pages, before.saturating_sub(count));
        }
    }

    /// A child has the same pages.
    pub(super) fn pages_are_shared_with(&self, child: &Self) {
        child.resident.pages.store(self.resident_pages(), Ordering::Relaxed);
    }

    /// How the pages count for the group of the process, and how many there are.
    pub(in crate::memory) fn charge(&self) -> (&SpaceCharge, &AtomicUsize) {
        (&self.resident.charge, &self.resident.pages)
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
