//! The mappings of an address space, with their objects and rights: the records behind mmap(2).
//!
//! [`Mappings`] is an ordered map of disjoint [`Mapping`]s. Neighbours that could be one mapping are one, so the set is
//! canonical: what a sequence of operations leaves depends only on what each address ended up as.
//!
//! They are [`Records`] of the range lock's: immutable, replaced by one store, and found by [`MappingIndex`] without a
//! lock. A page fault does that, which holds the lock of its addresses. Each operation here replaces a run of records by
//! one that says the same of all addresses outside of its range, with the same backing, so that nobody who holds the lock
//! of other addresses notices.
//!
//! Nothing here knows pages, page tables or locks. Addresses and lengths are in bytes, and the caller keeps them at
//! page boundaries. Records that replace others are made in spare memory, which their caller reserves first: with
//! [`Mappings::reserve`] under the same lock, or as [`SpareMappings`].

use alloc::sync::Arc;
use core::ops::Range;

use crate::fallible::AllocError;
use crate::mempolicy::MemoryPolicy;
use bitflags::bitflags;
use heddle_range_lock::{DefaultEpoch, Epoch, RecordIndex, Records, SpareRecords};

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
pub trait Backing: Clone + Send + Sync {
    /// Whether both are the same object.
    fn is_same(&self, other: &Self) -> bool;
    /// Whether the object has positions, so that neighbours are one mapping only if their offsets are contiguous. A matter
    /// of its kind: the object may be gone when this is asked.
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
        part.cut(range);
        part
    }

    fn cut(&mut self, range: &Range<usize>) {
        let start = self.start.max(range.start);
        self.offset = self.offset_of(start);
        self.start = start;
        self.end = self.end.min(range.end);
    }

    /// The parts of it that own nothing.
    #[inline]
    #[must_use]
    pub fn outline(&self) -> MappingOutline {
        MappingOutline {
            start: self.start,
            end: self.end,
            protection: self.protection,
            flags: self.flags,
            has_offsets: self.backing.has_offsets(),
        }
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
            && self.backing.is_same(&next.backing)
            && (!self.backing.has_offsets() || self.offset_of(self.end) == next.offset)
    }
}

/// The parts of a mapping that own nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingOutline {
    /// First address.
    pub start: usize,
    /// Address behind the last.
    pub end: usize,
    /// Rights.
    pub protection: Protection,
    /// Properties.
    pub flags: Flags,
    /// Whether it has a backing with positions.
    pub has_offsets: bool,
}

/// Spare records that mappings keep at most.
const SPARE_KEPT: usize = 4;

/// Memory for records of mappings.
pub type SpareMappings<B, E = DefaultEpoch> = SpareRecords<Mapping<B>, E>;
/// The records as those see them who hold the lock of addresses, and no other.
pub type MappingIndex<B, E = DefaultEpoch> = RecordIndex<Mapping<B>, E>;

/// The mappings of one address space.
#[derive(Debug)]
pub struct Mappings<B: Backing, E: Epoch = DefaultEpoch> {
    /// By first address.
    records: Records<Mapping<B>, E>,
    /// The sums of the lengths.
    totals: Totals,
    /// The largest sum of all lengths that there was.
    peak: usize,
}

impl<B: Backing, E: Epoch> Mappings<B, E> {
    /// No mappings, with a new index. `None` if the index is another's. The seed is one that programs cannot know.
    #[must_use]
    pub fn of(index: Arc<MappingIndex<B, E>>, seed: u32) -> Option<Self> {
        Some(Self { records: Records::of(index, seed)?, totals: Totals::default(), peak: 0 })
    }

    /// The records, for those who take no lock of all.
    #[must_use]
    pub const fn index(&self) -> &Arc<MappingIndex<B, E>> {
        self.records.index()
    }

    /// How many mappings there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
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

impl<B: Backing, E: Epoch> Mappings<B, E> {
    /// The mappings in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping<B>> {
        let mut cursor = self.records.front();
        core::iter::from_fn(move || if cursor.move_next() { cursor.get() } else { None })
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
    #[inline]
    #[must_use]
    pub fn get(&self, address: usize) -> Option<&Mapping<B>> {
        self.records.floor(address).get().filter(|found| address < found.end)
    }

    /// The mapping that an address lies in, or else the first one above.
    #[must_use]
    pub fn at_or_above(&self, address: usize) -> Option<&Mapping<B>> {
        self.first_in(&(address..usize::MAX))
    }

    /// The last mapping that ends at or below an address.
    #[must_use]
    pub fn below(&self, address: usize) -> Option<&Mapping<B>> {
        let mut cursor = self.records.floor(address);
        if cursor.get().is_some_and(|mapping| mapping.end > address) {
            cursor.move_previous();
        }
        cursor.get()
    }

    /// The mappings that have an address in `range`, in order.
    pub fn overlapping(&self, range: Range<usize>) -> impl Iterator<Item = &Mapping<B>> {
        let mut cursor = self.records.floor(range.start);
        let mut is_there =
            cursor.get().is_some_and(|mapping| mapping.end > range.start) || cursor.move_next();
        core::iter::from_fn(move || {
            let mapping = cursor.get().filter(|_| is_there)?;
            if mapping.start >= range.end || range.is_empty() {
                return None;
            }
            is_there = cursor.move_next();
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

    /// Makes sure that operations which need so many records find them, under the lock that is held now.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn reserve(&mut self, count: usize) -> Result<(), AllocError> {
        self.records.reserve(count).map_err(|_| AllocError)
    }

    /// Exchanges the memory for records for other, for operations under the lock that is held now.
    pub fn exchange_spare(&mut self, spare: &mut SpareMappings<B, E>) {
        self.records.exchange_spare(spare);
    }

    /// Adds a mapping where nothing is mapped. One record is needed.
    pub fn insert(&mut self, mapping: Mapping<B>) {
        debug_assert!(mapping.start < mapping.end && self.is_free(mapping.range()));
        self.totals = self.totals.plus(mapping.totals());
        self.peak = self.peak.max(self.totals.all);
        let at = mapping.start;
        self.exchange(at..at, [None, Some(mapping), None]);
    }

    /// Exchanges the records that start in `old` for others that lie side by side, of which there is one at least. What is
    /// like them at either side becomes one record with them.
    fn exchange(&mut self, mut old: Range<usize>, mut new: [Option<Mapping<B>>; 3]) {
        let mut cursor = self.records.before(old.start);
        let before = cursor.get();
        let after = loop {
            match cursor.move_next().then(|| cursor.get()).flatten() {
                Some(replaced) if replaced.start < old.end => {}
                after => break after,
            }
        };
        if let (Some(before), Some(first)) = (before, new.iter_mut().flatten().next())
            && before.continues_in(first)
        {
            (first.start, first.offset) = (before.start, before.offset);
            old.start = before.start;
        }
        if let (Some(after), Some(last)) = (after, new.iter_mut().flatten().next_back())
            && last.continues_in(after)
        {
            last.end = after.end;
            old.end = after.start + 1;
        }
        let new = new.into_iter().flatten().map(|mapping| (mapping.start, mapping));
        self.records.replace(old, new, drop);
    }

    /// Removes everything in `range` and shows `removed` what it was, piece by piece. At most two records are needed.
    pub fn remove(&mut self, range: Range<usize>, mut removed: impl FnMut(Mapping<B>)) {
        let Some(first) = self.first_in(&range) else { return };
        let old = first.start..range.end;
        let left = (first.start < range.start).then(|| first.part(&(first.start..range.start)));
        let last = self.records.floor(range.end - 1).get();
        let right = last.filter(|last| range.end < last.end).map(|last| last.part(&(range.end..last.end)));
        let mut totals = self.totals;
        let new = [left, right].into_iter().flatten().map(|mapping| (mapping.start, mapping));
        self.records.replace(old, new, |mut mapping| {
            mapping.cut(&range);
            totals = totals.minus(mapping.totals());
            removed(mapping);
        });
        self.totals = totals;
    }

    /// Changes the properties of everything in `range`: `change` gets each piece, and must leave its addresses alone.
    ///
    /// # Errors
    /// [`AllocError`]: nothing has changed then.
    pub fn change(
        &mut self,
        range: Range<usize>,
        mut change: impl FnMut(&mut Mapping<B>),
    ) -> Result<(), AllocError> {
        // One for each piece, and two where the first and the last one are cut.
        let most = self.overlapping(range.clone()).count() + 2;
        self.reserve(most)?;
        let mut at = range.start;
        while let Some(whole) = self.first_in(&(at..range.end)) {
            let piece = whole.part(&(at..range.end));
            at = piece.end;
            let mut changed = piece.clone();
            change(&mut changed);
            if changed.protection == piece.protection
                && changed.flags == piece.flags
                && changed.policy == piece.policy
                && changed.backing.is_same(&piece.backing)
            {
                continue;
            }
            let left = (whole.start < piece.start).then(|| whole.part(&(whole.start..piece.start)));
            let right = (piece.end < whole.end).then(|| whole.part(&(piece.end..whole.end)));
            let old = whole.start..whole.start + 1;
            self.totals = self.totals.minus(piece.totals()).plus(changed.totals());
            self.exchange(old, [left, Some(changed), right]);
        }
        self.records.trim(SPARE_KEPT);
        Ok(())
    }

    /// Moves the first address of the mapping that starts at `start` down to `new_start`; nothing may be mapped there.
    /// One record is needed.
    pub fn extend_down(&mut self, start: usize, new_start: usize) {
        let Some(mapping) = self.get(start).filter(|mapping| mapping.start == start) else { return };
        let mut mapping = mapping.clone();
        self.totals = self.totals.minus(mapping.totals());
        mapping.offset = mapping.offset.wrapping_sub((mapping.start - new_start) as u64);
        mapping.start = new_start;
        self.totals = self.totals.plus(mapping.totals());
        self.peak = self.peak.max(self.totals.all);
        self.exchange(new_start..start + 1, [None, Some(mapping), None]);
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
        let mut cursor = self.records.floor(within.end);
        if cursor.get().is_some_and(|mapping| mapping.start == within.end) {
            cursor.move_previous();
        }
        while let Some(mapping) = cursor.get() {
            cursor.move_previous();
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
