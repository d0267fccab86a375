//! Large pages in the place of leaf tables: the protocol of `kernel/core`'s `tlb::large_page` on this machine's tables.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use heddle_kernel_core::tlb::large_page;
use heddle_kernel_core::tlb::large_page::{LargeEntry, LargePages};
use heddle_kernel_core::tlb::leaf_table::{load, store};

use super::{Root, TableMachine, table};
use crate::arch::paging;
use crate::arch::paging::{PAGE_SHIFT, PageTableEntry};
use crate::error::Errno;
use crate::memory::counters::count;
use crate::memory::frame::{FrameRef, LargeFrame};
use crate::memory::gather::Gather;
use crate::memory::{counters, frame};

impl LargeEntry for PageTableEntry {
    #[inline]
    fn is_large(self) -> bool {
        Self::is_large(self)
    }
    #[inline]
    fn part(self, index: usize) -> Self {
        Self::part(self, index << PAGE_SHIFT)
    }
    #[inline]
    fn with_stores(self) -> Self {
        Self::large_page(self.physical(), true, self.key())
    }
}

impl LargePages for TableMachine {
    fn mappers(&self, large: u64) -> u32 {
        frame::mappers(large)
    }
    fn add_mapper(&self, large: u64, table: u64) {
        frame::add_mapper(large, table);
    }
    fn take_table(&self, large: u64) -> u64 {
        frame::take_table(large)
    }
    fn drop_mapper(&self, large: u64) -> bool {
        frame::drop_mapper(large)
    }
    fn pages(&self, large: u64) -> impl Iterator<Item = u64> {
        frame::pages(large)
    }
    fn is_whole(&self, large: u64) -> bool {
        frame::is_whole(large)
    }
    fn free_whole(&self, large: u64) {
        frame::free_whole(large);
    }
}

/// The contents of the place of a large page, of which the caller has a part locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargePlace {
    /// Nothing: no page, and no table.
    Empty,
    /// A leaf table.
    Table,
    /// A large page.
    Large(PageTableEntry),
}

/// A leaf table that was taken out of a root.
#[derive(Clone, Copy)]
pub struct TakenTable(PageTableEntry);

impl TakenTable {
    /// The entry that led to it.
    pub const fn entry(self) -> PageTableEntry {
        self.0
    }

    /// Its entry of a number.
    pub fn page(self, number: usize) -> PageTableEntry {
        load(&table(self.0.physical())[number])
    }
}

/// Puts a leaf table in the place of a large page, if there is one.
pub(super) fn split(slot: &AtomicU64) -> PageTableEntry {
    if load::<PageTableEntry>(slot).is_large() {
        count(&counters::LARGE_SPLITS);
    }
    large_page::split(&TableMachine, slot)
}

/// Lets another root lead to a large page too.
pub(super) fn share(entry: PageTableEntry, from: &AtomicU64, to: &AtomicU64) -> Result<(), Errno> {
    let table = FrameRef::allocate()?.into_physical();
    large_page::share(&TableMachine, entry, from, to, table);
    count(&counters::LARGE_SHARED);
    Ok(())
}

/// Releases what an entry for a large page led to.
pub fn release(physical: u64) {
    large_page::release(&TableMachine, physical);
}

impl Root {
    /// The contents of the place of the large page around an address.
    pub fn large_place(self, address: usize) -> LargePlace {
        let Some(slot) = self.middle(address) else { return LargePlace::Empty };
        let entry: PageTableEntry = load(slot);
        match entry {
            _ if !entry.is_present() => LargePlace::Empty,
            _ if entry.is_large() => LargePlace::Large(entry),
            _ => LargePlace::Table,
        }
    }

    /// Maps a large page with a protection key, to which the program may store. All of its addresses are locked, and their place is empty.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn map_large(self, address: usize, page: LargeFrame, key: u8) -> Result<(), Errno> {
        let slot = self.make_middle(address)?;
        debug_assert!(!load::<PageTableEntry>(slot).is_present());
        store(slot, PageTableEntry::large_page(page.into_physical(), true, key));
        Ok(())
    }

    /// Takes out the leaf table in the place of a large page, all of which is locked. It is the caller's; translations
    /// are stale.
    pub fn take_table(self, address: usize) -> Option<TakenTable> {
        let slot = self.middle(address)?;
        let entry: PageTableEntry = load(slot);
        if !entry.is_present() || entry.is_large() {
            return None;
        }
        store(slot, PageTableEntry::EMPTY);
        Some(TakenTable(entry))
    }

    /// Lets the program store to a large page again of which nobody else has anything. The caller has locked a page of
    /// it, and the mapping allows stores to all of it.
    pub fn take_over_large(self, address: usize) -> bool {
        self.middle(address).is_some_and(|slot| large_page::take_over(&TableMachine, slot))
    }

    /// Changes a large page by what `change` makes of its first page, if the locked range is all of it. Otherwise it is
    /// split, whatever the change is, and `false`.
    pub(super) fn change_large(
        self,
        range: Range<usize>,
        gather: &mut Gather,
        change: &mut impl FnMut(PageTableEntry) -> PageTableEntry,
    ) -> bool {
        let Some(slot) = self.middle(range.start) else { return false };
        let old: PageTableEntry = load(slot);
        if !old.is_large() {
            return false;
        }
        let first = old.part(range.start);
        if range.len() < paging::span(1) {
            split(slot);
            return false;
        }
        let new = change(first);
        if new.is_executable() {
            split(slot);
            return false;
        }
        if new != first {
            slot.store(new.large().0, Ordering::Release);
            gather.mark(range);
        }
        true
    }

    /// Moves a large page to another place, both locked, if that has no table. The first time tables are made for it,
    /// the second time it is `moving`. `false`: nothing was done, the pages are to be moved one by one.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn move_large(
        self,
        range: Range<usize>,
        target: usize,
        moving: bool,
        gather: &mut Gather,
    ) -> Result<bool, Errno> {
        let is_aligned = |address: usize| address.is_multiple_of(paging::span(1));
        if range.len() != paging::span(1) || !is_aligned(range.start) || !is_aligned(target) {
            return Ok(false);
        }
        let LargePlace::Large(entry) = self.large_place(range.start) else { return Ok(false) };
        let (Some(from), to) = (self.middle(range.start), self.make_middle(target)?) else {
            return Ok(false);
        };
        if load::<PageTableEntry>(to).is_present() {
            return Ok(false);
        }
        if moving {
            store(to, entry);
            store(from, PageTableEntry::EMPTY);
            gather.mark(range);
        }
        Ok(true)
    }
}
