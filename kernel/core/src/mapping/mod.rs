//! The mappings of an address space, with their objects and rights: the records behind mmap(2).
//!
//! [`Mappings`] is an ordered map of disjoint [`Mapping`]s. Neighbours that could be one mapping are one, so the set is
//! canonical: what a sequence of operations leaves depends only on what each address ended up as. They are in a
//! red-black tree, because what counts is the lookup at each page fault: among a few dozen it takes a sixth of what a
//! range of a `BTreeMap` takes.
//!
//! Nothing here knows pages, page tables or locks. Addresses and lengths are in bytes, and the caller keeps them at
//! page boundaries. Operations that may need more records than there were take them from spare ones, which their
//! caller reserves first: with [`Mappings::reserve`] under the same lock, or as [`SpareMappings`].

use alloc::boxed::Box;
use core::mem::MaybeUninit;
use core::ops::Range;

use crate::fallible::{AllocError, try_box_uninit, vacate};
use crate::mempolicy::MemoryPolicy;
use bitflags::bitflags;
use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, intrusive_adapter};

bitflags! {
    /// The accesses to a mapping's memory that programs may make; the bits are those of mmap(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Protection: u8 {
        /// Load.
        const READ = 1;
        /// Store.
        const WRITE = 2;
        /// Fetch instructions.
        const EXECUTE = 4;
    }

    /// Properties of a mapping.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Flags: u16 {
        /// Stores reach the object and every process that maps it (`MAP_SHARED`).
        const SHARED = 1;
        /// A fault below extends the mapping down to it (`MAP_GROWSDOWN`).
        const GROWS_DOWN = 2;
        /// A child does not get it (`MADV_DONTFORK`).
        const NOT_INHERITED = 4;
        /// A child gets it empty (`MADV_WIPEONFORK`).
        const WIPED_IN_CHILD = 8;
        /// It is the heap of brk(2).
        const HEAP = 16;
        /// It must never become writable: shared, of a file that was opened for reading.
        const NEVER_WRITABLE = 32;
        /// It counts as locked (mlock(2)).
        const LOCKED = 64;
        /// Its pages are not promised (`MAP_NORESERVE`).
        const NO_RESERVE = 128;
        /// It is in no core dump (`MADV_DONTDUMP`).
        const NOT_DUMPED = 256;
        /// It wants large pages (`MADV_HUGEPAGE`).
        const LARGE_PAGES = 512;
        /// It wants none (`MADV_NOHUGEPAGE`).
        const SMALL_PAGES = 1024;
    }
}

/// The source of a mapping's memory.
pub trait Backing: Clone {
    /// Whether both are the same object.
    fn is_same(&self, other: &Self) -> bool;
    /// Whether the object has positions, so that neighbours are one mapping only if their offsets are contiguous.
    fn has_offsets(&self) -> bool;
}

/// Sums of lengths, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    /// Of all mappings: what `RLIMIT_AS` limits.
    pub all: usize,
    /// Of those that are private and writable, and no stack: what `RLIMIT_DATA` limits.
    pub data: usize,
    /// Of those whose pages are promised: private and writable, and not [`Flags::NO_RESERVE`].
    pub promised: usize,
    /// Of those that count as locked: what `RLIMIT_MEMLOCK` limits.
    pub locked: usize,
}

impl Totals {
    /// Those of so many bytes with these properties.
    #[must_use]
    pub const fn of(protection: Protection, flags: Flags, bytes: usize) -> Self {
        let is_own = protection.contains(Protection::WRITE) && !flags.contains(Flags::SHARED);
        let is_data = is_own && !flags.contains(Flags::GROWS_DOWN);
        let is_promised = is_own && !flags.contains(Flags::NO_RESERVE);
        Self {
            all: bytes,
            data: if is_data { bytes } else { 0 },
            promised: if is_promised { bytes } else { 0 },
            locked: if flags.contains(Flags::LOCKED) { bytes } else { 0 },
        }
    }

    /// The sums with others added.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            all: self.all.saturating_add(other.all),
            data: self.data.saturating_add(other.data),
            promised: self.promised.saturating_add(other.promised),
            locked: self.locked.saturating_add(other.locked),
        }
    }

    /// The sums without others that are a part of them.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            all: self.all.saturating_sub(other.all),
            data: self.data.saturating_sub(other.data),
            promised: self.promised.saturating_sub(other.promised),
            locked: self.locked.saturating_sub(other.locked),
        }
    }
}

/// A contiguous range of addresses with the same properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<B> {
    /// First address.
    pub start: usize,
    /// Address behind the last.
    pub end: usize,
    /// Rights.
    pub protection: Protection,
    /// Properties.
    pub flags: Flags,
    /// The source of its memory.
    pub backing: B,
    /// Position in the backing, in bytes, of `start`.
    pub offset: u64,
    /// Where its pages are to come from.
    pub policy: MemoryPolicy,
    /// The protection key of its pages.
    pub key: u8,
}

impl<B: Backing> Mapping<B> {
    /// The addresses.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Position in the backing of an address of the mapping.
    #[must_use]
    pub const fn offset_of(&self, address: usize) -> u64 {
        self.offset.wrapping_add((address - self.start) as u64)
    }

    /// The part of it that lies in `range`, which must overlap it.
    #[must_use]
    pub fn part(&self, range: &Range<usize>) -> Self {
        let mut part = self.clone();
        part.start = self.start.max(range.start);
        part.end = self.end.min(range.end);
        part.offset = self.offset_of(part.start);
        part
    }

    /// The part that it adds to the sums of all mappings.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        Totals::of(self.protection, self.flags, self.end - self.start)
    }

    fn continues_in(&self, next: &Self) -> bool {
        self.end == next.start
            && self.protection == next.protection
            && self.flags == next.flags
            && self.policy == next.policy
            && self.key == next.key
            && self.backing.is_same(&next.backing)
            && (!self.backing.has_offsets() || self.offset_of(self.end) == next.offset)
    }
}

/// A mapping in its place of the tree.
#[derive(Debug)]
struct MappingNode<B> {
    link: RBTreeLink,
    mapping: Mapping<B>,
}

/// The most records that one operation can need, and one more.
const SPARE_MAX: usize = 4;

/// Memory for records: what operations need that make one mapping two.
#[derive(Debug)]
pub struct SpareMappings<B>([Option<Box<MaybeUninit<MappingNode<B>>>>; SPARE_MAX]);

impl<B> Default for SpareMappings<B> {
    fn default() -> Self {
        Self([const { None }; SPARE_MAX])
    }
}

impl<B> SpareMappings<B> {
    /// Memory for so many records.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn new(count: usize) -> Result<Self, AllocError> {
        let mut spare = Self::default();
        spare.fill(count)?;
        Ok(spare)
    }

    fn fill(&mut self, count: usize) -> Result<(), AllocError> {
        let missing = count.saturating_sub(self.0.iter().flatten().count());
        for slot in self.0.iter_mut().filter(|slot| slot.is_none()).take(missing) {
            *slot = Some(try_box_uninit()?);
        }
        Ok(())
    }

    fn take(&mut self) -> Option<Box<MaybeUninit<MappingNode<B>>>> {
        self.0.iter_mut().find_map(Option::take)
    }

    fn give(&mut self, spare: Box<MaybeUninit<MappingNode<B>>>) {
        if let Some(slot) = self.0.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(spare);
        }
    }
}

intrusive_adapter!(ByStart<B> = Box<MappingNode<B>>: MappingNode<B> { link => RBTreeLink });

impl<B> KeyAdapter<'_> for ByStart<B> {
    type Key = usize;

    fn get_key(&self, node: &MappingNode<B>) -> usize {
        node.mapping.start
    }
}

/// The mappings of one address space.
#[derive(Debug)]
pub struct Mappings<B> {
    /// By first address.
    tree: RBTree<ByStart<B>>,
    /// How many there are.
    count: usize,
    /// The sums of the lengths.
    totals: Totals,
    /// The largest sum of all lengths that there was.
    peak: usize,
    spare: SpareMappings<B>,
}

impl<B> Default for Mappings<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> Mappings<B> {
    /// No mappings.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tree: RBTree::new(ByStart::new()),
            count: 0,
            totals: Totals::default(),
            peak: 0,
            spare: SpareMappings::default(),
        }
    }

    /// How many mappings there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The result of a part of a search for a free range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeSearch {
    /// Where it begins.
    Found(usize),
    /// There is none.
    Nothing,
    /// There is none above this address; below it the search goes on.
    GoOn(usize),
}

impl<B: Backing> Mappings<B> {
    /// The mappings in the order of their addresses.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mapping<B>> {
        self.tree.iter().map(|node| &node.mapping)
    }

    /// The sum of the lengths in bytes.
    #[must_use]
    pub const fn total_bytes(&self) -> usize {
        self.totals.all
    }

    /// The sums of the lengths.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// The sums of what lies in `range`.
    #[must_use]
    pub fn totals_in(&self, range: Range<usize>) -> Totals {
        let parts = self.overlapping(range.clone()).map(|mapping| {
            let bytes = mapping.end.min(range.end) - mapping.start.max(range.start);
            Totals::of(mapping.protection, mapping.flags, bytes)
        });
        parts.fold(Totals::default(), Totals::plus)
    }

    /// The largest sum of lengths that there was, in bytes.
    #[must_use]
    pub const fn peak_bytes(&self) -> usize {
        self.peak
    }

    /// How much is locked, in bytes.
    #[must_use]
    pub const fn locked_bytes(&self) -> usize {
        self.totals.locked
    }

    /// How much of a range is locked, in bytes.
    #[must_use]
    pub fn locked_bytes_in(&self, range: &Range<usize>) -> usize {
        self.totals_in(range.clone()).locked
    }

    /// The mapping that an address lies in.
    #[must_use]
    pub fn get(&self, address: usize) -> Option<&Mapping<B>> {
        let node = self.tree.upper_bound(Bound::Included(&address)).get()?;
        Some(&node.mapping).filter(|found| address < found.end)
    }

    /// The mapping that an address lies in, or else the first one above.
    #[must_use]
    pub fn at_or_above(&self, address: usize) -> Option<&Mapping<B>> {
        self.first_in(&(address..usize::MAX))
    }

    /// The last mapping that ends at or below an address.
    #[must_use]
    pub fn below(&self, address: usize) -> Option<&Mapping<B>> {
        let mut cursor = self.tree.upper_bound(Bound::Excluded(&address));
        if cursor.get().is_some_and(|node| node.mapping.end > address) {
            cursor.move_prev();
        }
        cursor.get().map(|node| &node.mapping)
    }

    /// The mappings that have an address in `range`, in order.
    pub fn overlapping(&self, range: Range<usize>) -> impl Iterator<Item = &Mapping<B>> {
        let mut cursor = self.tree.upper_bound(Bound::Included(&range.start));
        if cursor.get().is_none_or(|node| node.mapping.end <= range.start) {
            cursor.move_next();
        }
        core::iter::from_fn(move || {
            let mapping = &cursor.get()?.mapping;
            if mapping.start >= range.end || range.is_empty() {
                return None;
            }
            cursor.move_next();
            Some(mapping)
        })
    }

    fn first_in(&self, range: &Range<usize>) -> Option<&Mapping<B>> {
        self.overlapping(range.clone()).next()
    }

    /// The beginning of a range in which there are no more than `count` mappings.
    #[must_use]
    pub fn first_part(&self, range: Range<usize>, count: usize) -> Range<usize> {
        let last = self.overlapping(range.clone()).nth(count.saturating_sub(1));
        range.start..last.map_or(range.end, |mapping| mapping.end.min(range.end))
    }

    /// Whether nothing in `range` is mapped.
    #[must_use]
    pub fn is_free(&self, range: Range<usize>) -> bool {
        self.first_in(&range).is_none()
    }

    /// Whether every address in `range` is mapped.
    #[must_use]
    pub fn covers(&self, range: Range<usize>) -> bool {
        let mut reached = range.start;
        for mapping in self.overlapping(range.clone()) {
            if mapping.start > reached {
                return false;
            }
            reached = mapping.end;
        }
        reached >= range.end
    }

    /// Makes sure that operations which need so many records more find them, under the lock that is held now.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn reserve(&mut self, count: usize) -> Result<(), AllocError> {
        self.spare.fill(count)
    }

    /// Adds memory for records, for operations under the lock that is held now.
    pub fn refill(&mut self, mut spare: SpareMappings<B>) {
        while let Some(memory) = spare.take() {
            self.spare.give(memory);
        }
    }

    /// Adds a mapping where nothing is mapped. At most one record more is needed.
    pub fn insert(&mut self, mut mapping: Mapping<B>) {
        debug_assert!(mapping.start < mapping.end && self.is_free(mapping.range()));
        self.totals = self.totals.plus(mapping.totals());
        self.peak = self.peak.max(self.totals.all);
        if let Some(before) = self.below(mapping.start).filter(|before| before.continues_in(&mapping)) {
            mapping.start = before.start;
            mapping.offset = before.offset;
            let _ = self.take(mapping.start);
        }
        let after = self.tree.find(&mapping.end).get().map(|node| &node.mapping);
        if let Some(after) = after.filter(|after| mapping.continues_in(after)) {
            let start = after.start;
            mapping.end = after.end;
            let _ = self.take(start);
        }
        self.put(mapping);
    }

    /// Puts a record into the tree, in spare memory.
    fn put(&mut self, mapping: Mapping<B>) {
        let memory = self.spare.take().expect("records were reserved for the operation");
        self.tree.insert(Box::write(memory, MappingNode { link: RBTreeLink::new(), mapping }));
        self.count += 1;
    }

    /// Takes the record that starts at an address out of the tree. Its memory is spare then.
    fn take(&mut self, start: usize) -> Option<Mapping<B>> {
        let node = self.tree.find_mut(&start).remove()?;
        self.count -= 1;
        let (node, memory) = vacate(node);
        self.spare.give(memory);
        Some(node.mapping)
    }

    /// Removes everything in `range` and shows `removed` what it was, piece by piece. At most one record more is
    /// needed.
    pub fn remove(&mut self, range: Range<usize>, mut removed: impl FnMut(Mapping<B>)) {
        while let Some(start) = self.first_in(&range).map(|mapping| mapping.start) {
            let Some(whole) = self.take(start) else { return };
            let part = whole.part(&range);
            self.totals = self.totals.minus(part.totals());
            let left = (whole.start < range.start).then(|| whole.part(&(whole.start..range.start)));
            let right = (range.end < whole.end).then(|| whole.part(&(range.end..whole.end)));
            for rest in [left, right].into_iter().flatten() {
                self.put(rest);
            }
            removed(part);
        }
    }

    /// Changes the properties of everything in `range`: `change` gets each piece, and must leave its addresses alone.
    /// At most two records more are needed.
    pub fn change(&mut self, range: Range<usize>, mut change: impl FnMut(&mut Mapping<B>)) {
        let mut at = range.start;
        while let Some(piece) = self.first_in(&(at..range.end)).map(|mapping| mapping.part(&(at..range.end)))
        {
            at = piece.end;
            let mut changed = piece.clone();
            change(&mut changed);
            if changed.protection == piece.protection
                && changed.flags == piece.flags
                && changed.policy == piece.policy
                && changed.key == piece.key
                && changed.backing.is_same(&piece.backing)
            {
                continue;
            }
            self.remove(piece.range(), |_| {});
            self.insert(changed);
        }
    }

    /// Moves the first address of the mapping that starts at `start` down to `new_start`; nothing may be mapped there.
    pub fn extend_down(&mut self, start: usize, new_start: usize) {
        let Some(mut mapping) = self.take(start) else { return };
        self.totals = self.totals.minus(mapping.totals());
        mapping.offset = mapping.offset.wrapping_sub((mapping.start - new_start) as u64);
        mapping.start = new_start;
        self.insert(mapping);
    }

    /// The highest free range of `length` bytes inside `within`, at a multiple of `align`, that keeps `guard` bytes
    /// away from a mapping above that grows down. `skipped` is raised to the length of the longest free range passed
    /// over.
    #[must_use]
    pub fn find_free(
        &self,
        length: usize,
        align: usize,
        mut within: Range<usize>,
        guard: usize,
        skipped: &mut usize,
    ) -> Option<usize> {
        loop {
            match self.search_free(length, align, within.clone(), guard, skipped, usize::MAX) {
                FreeSearch::Found(start) => return Some(start),
                FreeSearch::Nothing => return None,
                FreeSearch::GoOn(end) => within.end = end,
            }
        }
    }

    /// The same, passing over so many mappings at most.
    #[must_use]
    pub fn search_free(
        &self,
        length: usize,
        align: usize,
        within: Range<usize>,
        guard: usize,
        skipped: &mut usize,
        mut looks: usize,
    ) -> FreeSearch {
        let mut ceiling = within.end;
        let mut fits = |floor: usize, ceiling: usize| {
            let floor = floor.max(within.start);
            let found = ceiling.checked_sub(length).map(|start| start / align * align);
            let found = found.filter(|&start| start >= floor);
            if found.is_none() {
                *skipped = (*skipped).max(ceiling.saturating_sub(floor));
            }
            found
        };
        // A mapping above the range that grows down keeps its distance too.
        if let Some(above) = self.at_or_above(within.end).filter(|above| above.start >= within.end)
            && above.flags.contains(Flags::GROWS_DOWN)
        {
            ceiling = ceiling.min(above.start.saturating_sub(guard));
        }
        let mut cursor = self.tree.upper_bound(Bound::Excluded(&within.end));
        while let Some(MappingNode { mapping, .. }) = cursor.get() {
            cursor.move_prev();
            if let Some(start) = fits(mapping.end, ceiling) {
                return FreeSearch::Found(start);
            }
            let gap = if mapping.flags.contains(Flags::GROWS_DOWN) { guard } else { 0 };
            ceiling = ceiling.min(mapping.start.saturating_sub(gap));
            if ceiling < within.start {
                return FreeSearch::Nothing;
            }
            looks -= 1;
            if looks == 0 {
                return FreeSearch::GoOn(ceiling);
            }
        }
        fits(within.start, ceiling).map_or(FreeSearch::Nothing, FreeSearch::Found)
    }
}

#[cfg(test)]
mod tests;
