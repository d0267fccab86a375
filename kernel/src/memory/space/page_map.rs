//! The frames behind the pages of a program: `/proc/PID/pagemap`.

use crate::arch::paging::{PAGE_SIZE, PageTableEntry};
use crate::error::{TryError, TryResult};
use crate::memory::space::usage::PageOwner;
use crate::memory::space::{MappingView, Space, resident};

/// The pages that are looked at in one go.
pub const PAGES_AT_ONCE: usize = 64;

/// The state of a page of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageState {
    /// It is mapped.
    pub is_mapped: bool,
    /// The number of the frame that is there, the frame of zeros included.
    pub frame: Option<u64>,
    /// The frame belongs to a file or to shared memory.
    pub is_of_object: bool,
    /// No other program has the frame.
    pub is_exclusive: bool,
}

impl Space {
    /// Looks at pages from an address on, at most [`PAGES_AT_ONCE`] of them.
    ///
    /// # Errors
    /// That another operation holds one of them.
    pub fn try_page_states(&self, start: usize, states: &mut [PageState]) -> TryResult<()> {
        states.fill(PageState::default());
        let all = self.range();
        let end = start.saturating_add(states.len().min(PAGES_AT_ONCE) * PAGE_SIZE);
        let range = start.max(all.start)..end.min(all.end);
        if range.is_empty() {
            return Ok(());
        }
        let _guard = self.lock.try_lock(range.clone())?.ok_or(TryError::WouldBlock)?;
        let mut mapping: Option<MappingView> = None;
        for page in range.step_by(PAGE_SIZE) {
            if mapping.as_ref().is_none_or(|mapping| mapping.end <= page) {
                mapping = self.mapping_at_or_above(page);
            }
            let Some(mapping) = mapping.as_ref() else { break };
            if mapping.start <= page {
                let entry = self.root().look(page);
                let sharers = self.root().sharers(page);
                states[(page - start) / PAGE_SIZE] = PageState::of(mapping, page, entry, sharers);
            }
        }
        Ok(())
    }
}

impl PageState {
    fn of(mapping: &MappingView, page: usize, entry: PageTableEntry, sharers: u32) -> Self {
        if !entry.is_present() {
            return Self { is_mapped: true, ..Self::default() };
        }
        let physical = entry.physical();
        let found = Self { is_mapped: true, frame: Some(physical / PAGE_SIZE as u64), ..Self::default() };
        if !resident::counts(entry) {
            return found;
        }
        if !entry.is_counted() {
            // A page of the root image, which is a file's and the machine's.
            return Self { is_of_object: true, ..found };
        }
        let owner = PageOwner::of(mapping, page, physical);
        let is_of_object = !matches!(owner, PageOwner::Nobody);
        Self { is_of_object, is_exclusive: owner.mappers(physical, sharers) == 1, ..found }
    }
}
