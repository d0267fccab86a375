//! How much memory mappings take, page by page: `/proc/PID/smaps`.

use crate::arch::paging::{PAGE_SIZE, PageTableEntry};
use crate::memory::frame::LARGE_BYTES;
use crate::memory::source::Object;
use crate::memory::space::{Flags, MappingView, Space};
use crate::memory::table::LargePlace;
use crate::memory::{PageRef, frame};

/// Shares of pages are counted in parts of a byte this small.
const SHARE_BITS: u32 = 12;

/// Bytes in memory. The contents of a counted frame are dirty, since they are nowhere else; a page of the root image
/// belongs to the machine, so it is clean and shared, and part of no share.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// All that is there.
    pub resident: u64,
    /// Pages of the root image.
    pub shared_clean: u64,
    /// Pages that others map too, and those that no other space maps.
    pub shared_dirty: u64,
    pub private_dirty: u64,
    /// Pages that belong to no object.
    pub anonymous: u64,
    /// Those of them that are large.
    pub large: u64,
    /// The most spaces that map one of the pages.
    pub mappers_max: u32,
    /// The shares of pages that several map, in parts of a byte: of no object, of files, of shared memory.
    shares: [u64; 3],
}

/// The owner of a page.
#[derive(Clone, Copy)]
pub(super) enum PageOwner {
    Nobody,
    File,
    Memory,
}

impl PageOwner {
    /// The owner of the counted frame behind a page of a mapping.
    pub(super) fn of(mapping: &MappingView, page: usize, physical: u64) -> Self {
        let Object::Source(source) = &mapping.object else { return Self::Nobody };
        let index = (mapping.offset + (page - mapping.start) as u64) / PAGE_SIZE as u64;
        let counts_for_object = mapping.flags.contains(Flags::SHARED)
            || source.resident(index).is_some_and(|found| found.physical() == physical);
        match source.is_memory() {
            _ if !counts_for_object => Self::Nobody,
            true => Self::Memory,
            false => Self::File,
        }
    }

    /// How many spaces map a frame whose leaf table so many share.
    pub(super) fn mappers(self, physical: u64, sharers: u32) -> u32 {
        // One reference is the object's, the others are those of leaf tables. How many spaces share this one's is
        // known; the others are taken to be one space's each.
        let held = u32::from(!matches!(self, Self::Nobody));
        let tables = frame::references(physical).saturating_sub(held).max(1);
        tables - 1 + sharers
    }
}

impl Usage {
    /// The share of what several map that falls to this one, in bytes.
    #[must_use]
    pub fn share(&self) -> u64 {
        self.shares.iter().sum::<u64>() >> SHARE_BITS
    }

    /// The share by the pages' owners: no object, files, shared memory.
    #[must_use]
    pub fn shares(&self) -> [u64; 3] {
        self.shares.map(|share| share >> SHARE_BITS)
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.resident += other.resident;
        self.shared_clean += other.shared_clean;
        self.shared_dirty += other.shared_dirty;
        self.private_dirty += other.private_dirty;
        self.anonymous += other.anonymous;
        self.large += other.large;
        self.mappers_max = self.mappers_max.max(other.mappers_max);
        for (sum, share) in self.shares.iter_mut().zip(other.shares) {
            *sum += share;
        }
    }

    fn note(&mut self, owner: PageOwner, mappers: u32) {
        let bytes = PAGE_SIZE as u64;
        self.resident += bytes;
        self.mappers_max = self.mappers_max.max(mappers);
        *(if mappers > 1 { &mut self.shared_dirty } else { &mut self.private_dirty }) += bytes;
        self.shares[owner as usize] += (bytes << SHARE_BITS) / u64::from(mappers.max(1));
        if matches!(owner, PageOwner::Nobody) {
            self.anonymous += bytes;
        }
    }
}

impl Space {
    /// Adds the memory that a mapping takes from `at` on, as far as one leaf table reaches. Returns where that is. What
    /// is locked at the moment counts as nothing.
    #[must_use]
    pub fn add_usage(&self, mapping: &MappingView, at: usize, usage: &mut Usage) -> usize {
        let root = self.root();
        let next = root.next_table(at).min(mapping.end);
        let Ok(Some(_guard)) = self.lock.try_lock(at..next) else { return next };
        let sharers = root.sharers(at);
        if next - at == LARGE_BYTES && matches!(root.large_place(at), LargePlace::Large(_)) {
            usage.large += LARGE_BYTES as u64;
        }
        if sharers > 0 {
            for page in (at..next).step_by(PAGE_SIZE) {
                let entry = root.look(page);
                if entry.is_present() {
                    note_page(usage, mapping, page, entry, sharers);
                }
            }
        }
        next
    }
}

fn note_page(usage: &mut Usage, mapping: &MappingView, page: usize, entry: PageTableEntry, sharers: u32) {
    let physical = entry.physical();
    if !entry.is_counted() {
        // The page of zeros stands for a page that is not there.
        if physical != PageRef::zero().physical() {
            usage.resident += PAGE_SIZE as u64;
            usage.shared_clean += PAGE_SIZE as u64;
        }
        return;
    }
    let owner = PageOwner::of(mapping, page, physical);
    usage.note(owner, owner.mappers(physical, sharers));
}
