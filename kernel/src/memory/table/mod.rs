//! Page tables of programs: finding, filling, emptying and sharing them.
//!
//! # Access rules
//! - The owner of a locked range of addresses (see [`crate::memory::space`]) may change the leaf entries of that range,
//!   and no other thread does. Entries are atomic because the hardware and other ranges' owners read tables at the
//!   same time.
//! - A missing table is installed by compare-and-swap, so two ranges may grow the same part of a tree; a table is
//!   taken out only by an owner of everything it covers.
//! - A *leaf table* (level 0) may be shared by several roots after fork, by the rules of
//!   [`heddle_kernel_core::tlb::leaf_table`]. Before changing an entry, an owner makes the table its own
//!   ([`Root::leaf`]).
//! - In the place of a leaf table there may be a *large page*, by the rules of
//!   [`heddle_kernel_core::tlb::large_page`]. An owner of a part of it splits it before changing an entry.
//!
//! A table of level n has entries that each cover [`paging::span`]\(n) bytes; the root is level 3.
//!
//! `unsafe` here: tables are frames in the direct map.
#![allow(unsafe_code)]

mod large;
mod owned;

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use heddle_kernel_core::mapping::{Mapping, Protection};
use heddle_kernel_core::tlb::leaf_table;
use heddle_kernel_core::tlb::leaf_table::{GROUP, Owned, each_occupied, is_group_empty, load, store};

use crate::arch::paging;
use crate::arch::paging::{ENTRIES, LEVELS, PAGE_SIZE, PageTableEntry, Rights};
use crate::error::Errno;
use crate::memory::frame::FrameRef;
use crate::memory::gather::Gather;
use crate::memory::space::resident;
use crate::memory::{counters, deferred_free, frame};

pub use large::{LargePlace, release as release_large};

type PageTable = [AtomicU64; ENTRIES];

#[inline]
fn table(physical: u64) -> &'static PageTable {
    // SAFETY: `physical` comes from a root or an entry that leads to a table; tables are whole frames in the direct
    // map, valid while the root leads there, and only ever accessed as atomics. The rules above keep a table from
    // being released while an owner of a range it covers works in it.
    unsafe { &*paging::direct_map::<PageTable>(physical).cast_const() }
}

/// The machine's tables and frames.
struct TableMachine;

impl leaf_table::Tables for TableMachine {
    type Entry = PageTableEntry;

    #[inline]
    fn entries(&self, physical: u64) -> &[AtomicU64] {
        table(physical)
    }

    fn allocate(&self) -> Option<u64> {
        FrameRef::allocate_zeroed().ok().map(FrameRef::into_physical)
    }

    fn references(&self, physical: u64) -> u32 {
        frame::references(physical)
    }

    fn add_reference(&self, physical: u64) {
        frame::add_reference(physical);
    }

    fn drop_reference(&self, physical: u64) -> bool {
        frame::drop_reference(physical)
    }

    fn free(&self, physical: u64) {
        frame::free(physical);
    }
}

impl leaf_table::Entry for PageTableEntry {
    #[inline]
    fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    #[inline]
    fn bits(self) -> u64 {
        self.0
    }
    #[inline]
    fn for_table(physical: u64) -> Self {
        Self::table(physical, true)
    }
    #[inline]
    fn address(self) -> u64 {
        self.physical()
    }
    #[inline]
    fn is_occupied(self) -> bool {
        self.is_present()
    }
    #[inline]
    fn allows_stores(self) -> bool {
        self.is_writable()
    }
    #[inline]
    fn without_stores(self) -> Self {
        self.read_only()
    }
    #[inline]
    fn holds_reference(self) -> bool {
        self.is_counted()
    }
    #[inline]
    fn keeps_stores(self) -> bool {
        self.is_shared()
    }
    #[inline]
    fn is_replaced(self) -> bool {
        self.is_locked()
    }
    #[inline]
    fn replaced(self) -> Self {
        self.locked()
    }
}

/// A page-table tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root(pub u64);

/// A leaf table of which the caller has a part locked.
#[derive(Clone, Copy)]
pub struct Leaves(&'static PageTable);

impl Leaves {
    /// The entry for a page that the table covers.
    pub fn leaf(self, address: usize) -> Leaf {
        Leaf(&self.0[paging::index(address, 0)])
    }
}

/// A leaf entry whose page the caller has locked.
#[derive(Clone, Copy)]
pub struct Leaf(&'static AtomicU64);

impl Leaf {
    /// The entry.
    pub fn get(self) -> PageTableEntry {
        load(self.0)
    }

    /// Replaces the entry; what was there is the caller's.
    pub fn replace(self, value: PageTableEntry) -> PageTableEntry {
        PageTableEntry(self.0.swap(value.0, Ordering::AcqRel))
    }
}

impl Root {
    /// A new root with an empty lower half, and nothing of the kernel's: no CPU can load it yet.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(FrameRef::allocate_zeroed()?.into_physical()))
    }

    /// The entries of the lower half.
    #[inline]
    pub fn user_entries(self) -> &'static [AtomicU64] {
        &table(self.0)[..paging::ROOT_USER_ENTRIES]
    }

    /// The entry for a slot, behind which a table is put if there is none. It is there until the root goes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn slot_entry(self, slot: usize) -> Result<u64, Errno> {
        let entry = &self.user_entries()[slot];
        let found: PageTableEntry = load(entry);
        let found = if found.is_present() { found } else { install(entry)? };
        Ok(found.0)
    }

    /// Releases the root alone. No CPU has loaded it, and what was in it belongs to others.
    pub fn release_empty(self) {
        drop(FrameRef::from_physical(self.0));
    }

    /// The entry for a page, in a leaf table of this root's own; `gather` gets the translations that became stale.
    /// Missing tables are made.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn leaf(self, address: usize, gather: &mut Gather) -> Result<Leaf, Errno> {
        Ok(self.leaves(address, gather)?.leaf(address))
    }

    /// The leaf table of a page, as in [`Self::leaf`]: gives the entries of all pages that it covers.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn leaves(self, address: usize, gather: &mut Gather) -> Result<Leaves, Errno> {
        let slot = self.make_middle(address)?;
        own_leaves(slot, load(slot), address, gather)
    }

    /// The same, unless a large page is in the place of the table that is `enough`: nothing then.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub fn leaves_or_large(
        self,
        address: usize,
        gather: &mut Gather,
        enough: impl FnOnce(PageTableEntry) -> bool,
    ) -> Result<Option<Leaves>, Errno> {
        let slot = self.make_middle(address)?;
        let entry: PageTableEntry = load(slot);
        if entry.is_large() && enough(entry) {
            return Ok(None);
        }
        own_leaves(slot, entry, address, gather).map(Some)
    }

    /// The entry of the table above the leaf tables; missing tables above it are made.
    #[inline]
    fn make_middle(self, address: usize) -> Result<&'static AtomicU64, Errno> {
        let mut current = table(self.0);
        for level in (2..LEVELS).rev() {
            let slot = &current[paging::index(address, level)];
            let mut entry: PageTableEntry = load(slot);
            if !entry.is_present() {
                entry = install(slot)?;
            }
            current = table(entry.physical());
        }
        Ok(&current[paging::index(address, 1)])
    }

    /// The entry for a page as it is, for looking only; empty if there is no table.
    ///
    /// The owner of another page may copy a shared leaf table meanwhile, and the one that is looked at here may even be
    /// released: what was read counts only if the table is still the one in use afterwards.
    pub fn look(self, address: usize) -> PageTableEntry {
        let mut current = table(self.0);
        for level in (2..LEVELS).rev() {
            let entry: PageTableEntry = load(&current[paging::index(address, level)]);
            if !entry.is_present() {
                return PageTableEntry::EMPTY;
            }
            current = table(entry.physical());
        }
        let slot = &current[paging::index(address, 1)];
        let large: PageTableEntry = load(slot);
        if large.is_large() {
            return large.part(address);
        }
        leaf_table::look(&TableMachine, slot, paging::index(address, 0)).unwrap_or(PageTableEntry::EMPTY)
    }

    /// The entry for a page of a locked range to which the program can store as its tables are; `None` where a store
    /// would fault.
    pub fn look_to_store(self, address: usize) -> Option<PageTableEntry> {
        let mut current = table(self.0);
        for level in (1..LEVELS).rev() {
            let entry: PageTableEntry = load(&current[paging::index(address, level)]);
            // Above a leaf table that several share there is no right to store.
            if !entry.is_present() || !entry.is_writable() {
                return None;
            }
            if level == 1 && entry.is_large() {
                return (!entry.is_hidden()).then(|| entry.part(address));
            }
            current = table(entry.physical());
        }
        let entry: PageTableEntry = load(&current[paging::index(address, 0)]);
        (entry.is_present() && !entry.is_hidden() && entry.is_writable()).then_some(entry)
    }

    /// Takes everything out that is mapped in a locked range, until `gather` is full; returns the address up to which
    /// it came. Tables that lie wholly inside the range go with it.
    ///
    /// # Errors
    /// `ENOMEM`, when a shared table must be copied; the rest of the range is unchanged.
    pub fn remove(self, range: Range<usize>, gather: &mut Gather) -> Result<usize, Errno> {
        remove(table(self.0), LEVELS - 1, range, gather)
    }

    /// Calls `change` for every page that is mapped in a locked range, and stores what it returns, until `gather` is
    /// full; returns the address up to which it came. Only rights may change.
    ///
    /// # Errors
    /// `ENOMEM`, when a shared table must be copied; a part of the range may have been changed then.
    pub fn change(
        self,
        range: Range<usize>,
        gather: &mut Gather,
        mut change: impl FnMut(PageTableEntry) -> PageTableEntry,
    ) -> Result<usize, Errno> {
        let mut at = range.start;
        while at < range.end {
            let next = self.next_table(at).min(range.end);
            if self.change_large(at..next, gather, &mut change) {
                at = next;
                continue;
            }
            if self.has_table(at) {
                for page in (at..next).step_by(PAGE_SIZE) {
                    if !self.look(page).is_present() {
                        continue;
                    }
                    if !gather.has_room() {
                        return Ok(page);
                    }
                    let leaf = self.leaf(page, gather)?;
                    let old = leaf.get();
                    let new = change(old);
                    if new != old {
                        leaf.replace(new);
                        gather.mark(page..page + PAGE_SIZE);
                    }
                }
            }
            at = next;
        }
        Ok(range.end)
    }

    /// The start of the next table's part above `address`: the next leaf table, or where tables are missing, the part
    /// of the first that is there.
    pub fn next_table(self, address: usize) -> usize {
        let mut current = table(self.0);
        for level in (1..LEVELS).rev() {
            let index = paging::index(address, level);
            let entry: PageTableEntry = load(&current[index]);
            if !entry.is_present() || level == 1 {
                let next = if entry.is_present() { index + 1 } else { next_present(current, index + 1) };
                return (address & !(paging::span(level + 1) - 1)) + next * paging::span(level);
            }
            current = table(entry.physical());
        }
        address + PAGE_SIZE
    }

    /// The entry of the table above the leaf tables, where there is such a table.
    fn middle(self, address: usize) -> Option<&'static AtomicU64> {
        let mut current = table(self.0);
        for level in (2..LEVELS).rev() {
            let entry: PageTableEntry = load(&current[paging::index(address, level)]);
            if !entry.is_present() {
                return None;
            }
            current = table(entry.physical());
        }
        Some(&current[paging::index(address, 1)])
    }

    /// Whether there is a leaf table for an address, or a large page.
    pub fn has_table(self, address: usize) -> bool {
        self.middle(address).is_some_and(|slot| load::<PageTableEntry>(slot).is_present())
    }

    /// How many roots share the leaf table or the large page for an address; 0 if there is none.
    pub fn sharers(self, address: usize) -> u32 {
        let Some(slot) = self.middle(address) else { return 0 };
        let entry: PageTableEntry = load(slot);
        if !entry.is_present() {
            0
        } else if entry.is_large() {
            frame::mappers(entry.physical())
        } else {
            frame::references(entry.physical()).max(1)
        }
    }

    /// Gives `child`, an empty root, everything that is mapped in a locked range, by sharing the leaf tables. All
    /// translations of this root are stale afterwards.
    ///
    /// # Errors
    /// `ENOMEM`; the child has a part then, and this root maps the same as before.
    pub fn share_with(self, child: Self, range: Range<usize>) -> Result<(), Errno> {
        share(table(self.0), table(child.0), LEVELS - 1, range)
    }

    /// Releases the root, which no CPU uses, and gives what was in its lower half to `visit`, as words of the
    /// quarantine.
    pub fn take_apart(self, visit: impl FnMut(u64)) {
        take_apart(self.0, LEVELS, visit);
    }
}

/// The first entry from `index` on that leads somewhere, or the end of the table.
fn next_present(current: &PageTable, mut index: usize) -> usize {
    while index < ENTRIES {
        if is_group_empty(current, index) {
            index += GROUP;
        } else if load::<PageTableEntry>(&current[index]).is_present() {
            break;
        } else {
            index += 1;
        }
    }
    index
}

/// The leaf table behind an entry, which becomes this root's own.
#[inline]
fn own_leaves(
    slot: &AtomicU64,
    found: PageTableEntry,
    address: usize,
    gather: &mut Gather,
) -> Result<Leaves, Errno> {
    let mut entry = found;
    if !entry.is_present() {
        entry = install(slot)?;
    }
    if !entry.is_own_table() {
        entry = own(slot, address, gather)?;
    }
    Ok(Leaves(table(entry.physical())))
}

/// Puts a new table behind an empty entry, unless another CPU was first.
fn install(slot: &AtomicU64) -> Result<PageTableEntry, Errno> {
    let frame = FrameRef::allocate_zeroed()?;
    let new = PageTableEntry::table(frame.physical(), true);
    match slot.compare_exchange(PageTableEntry::EMPTY.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let _ = frame.into_physical();
            Ok(new)
        }
        Err(other) => Ok(PageTableEntry(other)),
    }
}

/// Makes the leaf table behind `slot` this root's own, in place of a large page if that is there.
fn own(slot: &AtomicU64, address: usize, gather: &mut Gather) -> Result<PageTableEntry, Errno> {
    let found = large::split(slot);
    if found.is_own_table() {
        return Ok(found);
    }
    match leaf_table::own(&TableMachine, slot).map_err(|_| Errno::ENOMEM)? {
        Owned::Kept(entry) => Ok(entry),
        Owned::Copied { new, old } => {
            counters::count(&counters::TABLES_COPIED);
            // The processor may have cached the old entry, and would continue to walk the old table.
            let start = address & !(paging::span(1) - 1);
            gather.take(old, 1, start..start + PAGE_SIZE);
            Ok(new)
        }
    }
}

fn remove(
    current: &'static PageTable,
    level: usize,
    range: Range<usize>,
    gather: &mut Gather,
) -> Result<usize, Errno> {
    let span = paging::span(level);
    let mut at = range.start;
    while at < range.end {
        let index = paging::index(at, level);
        if is_group_empty(current, index) {
            at = (at & !(span - 1)) + GROUP * span;
            continue;
        }
        let start = at & !(span - 1);
        let next = (start + span).min(range.end);
        let slot = &current[index];
        let entry: PageTableEntry = load(slot);
        if !entry.is_present() {
            at = next;
            continue;
        }
        if !gather.has_room() || gather.is_count_full() {
            return Ok(at);
        }
        let is_whole = at == start && next == start + span;
        if level == 0 || level == 1 && is_whole {
            store(slot, PageTableEntry::EMPTY);
            gather.count_pages(count_pages(entry, level));
            gather.take(entry, level, start..start + span);
            at = next;
            continue;
        }
        let entry = if level == 1 && !entry.is_own_table() { own(slot, at, gather)? } else { entry };
        let reached = remove(table(entry.physical()), level - 1, at..next, gather)?;
        if reached < next {
            return Ok(reached);
        }
        // The tables that the root leads to stay, since they may be in the roots of CPUs too.
        if level > 1 && level < LEVELS - 1 && is_whole {
            if !gather.has_room() {
                return Ok(at);
            }
            store(slot, PageTableEntry::EMPTY);
            gather.take(entry, level, start..next);
        }
        at = next;
    }
    Ok(range.end)
}

/// The pages that an entry of a leaf table, or of the table above those, leads to.
fn count_pages(entry: PageTableEntry, level: usize) -> usize {
    if level == 0 {
        return usize::from(resident::counts(entry));
    }
    if entry.is_large() {
        return ENTRIES;
    }
    let mut pages = 0;
    let _ = each_occupied(table(entry.physical()), |_, leaf: PageTableEntry| {
        pages += usize::from(resident::counts(leaf));
        Ok::<_, Errno>(())
    });
    pages
}

fn share(
    from: &'static PageTable,
    to: &'static PageTable,
    level: usize,
    range: Range<usize>,
) -> Result<(), Errno> {
    let span = paging::span(level);
    let base = range.start & !(paging::span(level + 1) - 1);
    each_occupied(from, |index, entry: PageTableEntry| {
        let part = (base + index * span).max(range.start)..(base + (index + 1) * span).min(range.end);
        if part.start >= part.end {
            return Ok(());
        }
        if level > 1 {
            let below: PageTableEntry = load(&to[index]);
            let below = if below.is_present() { below } else { install(&to[index])? };
            return share(table(entry.physical()), table(below.physical()), level - 1, part);
        }
        if entry.is_large() {
            return large::share(entry, &from[index], &to[index]);
        }
        leaf_table::share(&TableMachine, entry, &from[index], &to[index]);
        counters::count(&counters::TABLES_SHARED);
        Ok(())
    })
}

/// Releases a table above the leaf tables that an entry of a table of `level` led to, and gives what was in it to
/// `visit`, as words of the quarantine.
pub fn take_apart(physical: u64, level: usize, mut visit: impl FnMut(u64)) {
    let entries = if level == LEVELS { paging::ROOT_USER_ENTRIES } else { ENTRIES };
    let _ = each_occupied(&table(physical)[..entries], |_, entry: PageTableEntry| {
        visit(deferred_free::entry_word(entry, level - 1));
        Ok::<_, Errno>(())
    });
    drop(FrameRef::from_physical(physical));
}

/// Releases what an entry of a table of `level` led to: a page, or a table and what is below it.
pub fn release(physical: u64, level: usize) {
    leaf_table::release(&TableMachine, physical, level);
}

/// Rights of a page of a mapping.
pub const fn rights<B>(mapping: &Mapping<B>, write: bool) -> Rights {
    let protection = mapping.protection;
    Rights {
        write: write && protection.contains(Protection::WRITE),
        execute: protection.contains(Protection::EXECUTE),
        key: mapping.key,
    }
}
