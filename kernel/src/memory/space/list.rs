//! Properties of a space for /proc and futexes.

use heddle_kernel_core::mempolicy::MemoryPolicy;

use crate::memory::slots::SLOT_BYTES;
use crate::memory::source::Object;
use crate::memory::space::{Flags, Mapping, Protection, Space};

/// One mapping, as `/proc/PID/maps` shows it.
#[derive(Clone)]
pub struct MappingView {
    /// First address.
    pub start: usize,
    /// Address behind the last.
    pub end: usize,
    /// Rights.
    pub protection: Protection,
    /// Properties.
    pub flags: Flags,
    /// Position in the object.
    pub offset: u64,
    /// The object behind it.
    pub object: Object,
    /// Where its pages are to come from.
    pub policy: MemoryPolicy,
    /// The protection key of its pages.
    pub key: u8,
}

impl From<&Mapping<Object>> for MappingView {
    fn from(mapping: &Mapping<Object>) -> Self {
        Self {
            start: mapping.start,
            end: mapping.end,
            protection: mapping.protection,
            flags: mapping.flags,
            offset: mapping.offset,
            object: mapping.backing.clone(),
            policy: mapping.policy,
            key: mapping.key,
        }
    }
}

impl Space {
    /// The mapping at an address, or the first one above. Going on from its end visits all of them, each as it is at
    /// that moment.
    #[must_use]
    pub fn mapping_at_or_above(&self, address: usize) -> Option<MappingView> {
        self.state.lock().mappings.at_or_above(address).map(MappingView::from)
    }

    /// The object and position behind an address of a *shared* mapping: they identify a futex there.
    #[must_use]
    pub fn shared_object_at(&self, address: usize) -> Option<((u64, u64), u64)> {
        let state = self.state.lock();
        let mapping = state.mappings.get(address).filter(|found| found.flags.contains(Flags::SHARED))?;
        match &mapping.backing {
            Object::Source(source) => Some((source.serial(), mapping.offset_of(address))),
            Object::Anonymous(_) => None,
        }
    }

    /// How many mappings there are.
    #[must_use]
    pub fn mapping_count(&self) -> usize {
        self.state.lock().mappings.len()
    }

    /// Bytes that are mapped.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.state.lock().mappings.total_bytes()
    }

    /// The most that were mapped at a time, in bytes.
    #[must_use]
    pub fn peak_bytes(&self) -> usize {
        self.state.lock().mappings.peak_bytes()
    }

    /// Bytes of private writable mappings but stacks.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        self.state.lock().mappings.totals().data
    }

    /// How much of it is locked, in bytes.
    #[must_use]
    pub fn locked_bytes(&self) -> usize {
        self.state.lock().mappings.locked_bytes()
    }

    /// Pages and page tables that nothing else leads to, the root included; `None` while any
    /// range of the space is locked.
    #[must_use]
    pub fn own_frames(&self) -> Option<(usize, usize)> {
        let range = self.range();
        if range.is_empty() {
            return Some((0, 0));
        }
        let _guard = self.lock.try_lock(range.clone()).ok()??;
        // The last page is no program's, but the table that it is in is.
        let owns = self.root().own(range.start & !(SLOT_BYTES - 1)..range.end.next_multiple_of(SLOT_BYTES));
        Some((owns.pages, owns.tables + 1))
    }
}
