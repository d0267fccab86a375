//! Which parts of an address space are mapped, to what, and with which rights: the records behind mmap(2).
//!
//! [`Mappings`] is an ordered map of disjoint [`Mapping`]s. Neighbours that could be one mapping are one, so the set is
//! canonical: what a sequence of operations leaves depends only on what each address ended up as.
//!
//! Nothing here knows pages, page tables or locks. Addresses and lengths are in bytes, and the caller keeps them at
//! page boundaries. Operations allocate; a kernel makes sure beforehand that [`Mappings::GROWTH_BYTES`] can be had.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

use alloc::collections::BTreeMap;
use core::ops::Range;

use bitflags::bitflags;

bitflags! {
    /// What programs may do with a mapping's memory; the bits are those of mmap(2).
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
    pub struct Flags: u8 {
        /// Stores reach the object and everybody who maps it (`MAP_SHARED`).
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
    }
}

/// What is behind a mapping.
pub trait Backing: Clone {
    /// Whether both are the same object.
    fn is_same(&self, other: &Self) -> bool;
    /// Whether the object has positions, so that neighbours are one mapping only if their offsets are contiguous.
    fn has_offsets(&self) -> bool;
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
    /// What is behind it.
    pub backing: B,
    /// Position in the backing, in bytes, of `start`.
    pub offset: u64,
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

    fn continues_in(&self, next: &Self) -> bool {
        self.end == next.start
            && self.protection == next.protection
            && self.flags == next.flags
            && self.backing.is_same(&next.backing)
            && (!self.backing.has_offsets() || self.offset_of(self.end) == next.offset)
    }
}

/// The mappings of one address space.
#[derive(Clone, Debug)]
pub struct Mappings<B> {
    /// By first address.
    map: BTreeMap<usize, Mapping<B>>,
    /// The sum of the lengths.
    total: usize,
}

impl<B> Default for Mappings<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> Mappings<B> {
    /// How much memory an operation may need at most beside the records it is given: two more records, each of which
    /// may split a node on every level of the tree.
    pub const GROWTH_BYTES: usize = 2 * 4 * (12 * size_of::<Mapping<B>>() + 256);

    /// No mappings.
    #[must_use]
    pub const fn new() -> Self {
        Self { map: BTreeMap::new(), total: 0 }
    }

    /// How many mappings there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

impl<B: Backing> Mappings<B> {
    /// The mappings in the order of their addresses.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mapping<B>> {
        self.map.values()
    }

    /// The sum of the lengths in bytes.
    #[must_use]
    pub const fn total_bytes(&self) -> usize {
        self.total
    }

    /// The mapping that an address lies in.
    #[must_use]
    pub fn get(&self, address: usize) -> Option<&Mapping<B>> {
        self.map.range(..=address).next_back().map(|(_, mapping)| mapping).filter(|found| address < found.end)
    }

    /// The mapping that an address lies in, or else the first one above.
    #[must_use]
    pub fn at_or_above(&self, address: usize) -> Option<&Mapping<B>> {
        self.first_in(&(address..usize::MAX))
    }

    /// The last mapping that ends at or below an address.
    #[must_use]
    pub fn below(&self, address: usize) -> Option<&Mapping<B>> {
        self.map.range(..address).map(|(_, mapping)| mapping).rfind(|mapping| mapping.end <= address)
    }

    /// The mappings that have an address in `range`, in order.
    pub fn overlapping(&self, range: Range<usize>) -> impl Iterator<Item = &Mapping<B>> {
        let first = self.get(range.start).filter(|_| !range.is_empty());
        let rest =
            (!range.is_empty()).then(|| self.map.range(range.start + 1..range.end.max(range.start + 1)));
        first.into_iter().chain(rest.into_iter().flatten().map(|(_, mapping)| mapping))
    }

    fn first_in(&self, range: &Range<usize>) -> Option<&Mapping<B>> {
        self.overlapping(range.clone()).next()
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

    /// Adds a mapping where nothing is mapped.
    pub fn insert(&mut self, mut mapping: Mapping<B>) {
        debug_assert!(mapping.start < mapping.end && self.is_free(mapping.range()));
        self.total += mapping.end - mapping.start;
        if let Some(before) = self.below(mapping.start).filter(|before| before.continues_in(&mapping)) {
            mapping.start = before.start;
            mapping.offset = before.offset;
            self.map.remove(&mapping.start);
        }
        if let Some(after) = self.map.get(&mapping.end).filter(|after| mapping.continues_in(after)) {
            let start = after.start;
            mapping.end = after.end;
            self.map.remove(&start);
        }
        self.map.insert(mapping.start, mapping);
    }

    /// Removes everything in `range` and shows `removed` what it was, piece by piece.
    pub fn remove(&mut self, range: Range<usize>, mut removed: impl FnMut(Mapping<B>)) {
        while let Some(start) = self.first_in(&range).map(|mapping| mapping.start) {
            let Some(whole) = self.map.remove(&start) else { return };
            let removed_part = whole.part(&range);
            self.total -= removed_part.end - removed_part.start;
            if whole.start < range.start {
                let left = whole.part(&(whole.start..range.start));
                self.map.insert(left.start, left);
            }
            if range.end < whole.end {
                let right = whole.part(&(range.end..whole.end));
                self.map.insert(right.start, right);
            }
            removed(removed_part);
        }
    }

    /// Changes the properties of everything in `range`: `change` gets each piece, and must leave its addresses alone.
    pub fn change(&mut self, range: Range<usize>, mut change: impl FnMut(&mut Mapping<B>)) {
        let mut at = range.start;
        while let Some(piece) = self.first_in(&(at..range.end)).map(|mapping| mapping.part(&(at..range.end)))
        {
            at = piece.end;
            let mut changed = piece.clone();
            change(&mut changed);
            if changed.protection == piece.protection
                && changed.flags == piece.flags
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
        let Some(mut mapping) = self.map.remove(&start) else { return };
        self.total -= mapping.end - mapping.start;
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
        within: Range<usize>,
        guard: usize,
        skipped: &mut usize,
    ) -> Option<usize> {
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
        for (_, mapping) in self.map.range(..within.end).rev() {
            if let Some(start) = fits(mapping.end, ceiling) {
                return Some(start);
            }
            let gap = if mapping.flags.contains(Flags::GROWS_DOWN) { guard } else { 0 };
            ceiling = ceiling.min(mapping.start.saturating_sub(gap));
            if ceiling < within.start {
                return None;
            }
        }
        fits(within.start, ceiling)
    }
}

#[cfg(test)]
mod tests;
