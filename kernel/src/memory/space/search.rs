//! The search for free addresses, in steps: programs decide how many mappings there are to pass over.

use core::ops::Range;

use heddle_kernel_core::mapping::FreeSearch;

use crate::arch::paging;
use crate::memory::frame::LARGE_BYTES;
use crate::memory::space::records::SpaceMappings;
use crate::memory::space::{STACK_GUARD_BYTES, Search, Space, SpaceState};
use crate::sched::Budget;

/// Mappings that a search for free addresses passes over in one go, and the cost of that in units of a [`Budget`].
const SEARCH_LOOKS: usize = 512;
const SEARCH_COST: u32 = 16;

/// A part of a search for free addresses.
fn search_free(
    mappings: &SpaceMappings,
    length: usize,
    within: Range<usize>,
    skipped: &mut usize,
) -> FreeSearch {
    mappings.search_free(length, paging::PAGE_SIZE, within, STACK_GUARD_BYTES, skipped, SEARCH_LOOKS)
}

impl Space {
    /// Free addresses for a mapping of whole large pages, the first of which begins where one can; any free addresses
    /// where there are no such.
    pub(super) async fn find_aligned(&self, length: usize) -> Option<usize> {
        let more = LARGE_BYTES - paging::PAGE_SIZE;
        match self.find_free(length + more).await {
            Some(start) => Some((start + more) & !(LARGE_BYTES - 1)),
            None => self.find_free(length).await,
        }
    }

    /// Free addresses for a mapping. Another thread may have taken them by the time they are used.
    pub(super) async fn find_free(&self, length: usize) -> Option<usize> {
        let (mut budget, mut at) = (Budget::new(), None);
        loop {
            {
                let mut state = self.state.lock();
                let SpaceState { mappings, search, window, .. } = &mut *state;
                if at.is_none() && (length <= search.skipped || search.top == 0) {
                    *search = Search { top: window.end, skipped: 0 };
                }
                let (end, mut skipped) = at.unwrap_or((search.top.min(window.end), search.skipped));
                match search_free(mappings, length, window.start..end, &mut skipped) {
                    FreeSearch::Found(start) => {
                        // Not if a range has become free meanwhile.
                        if search.top != 0 {
                            *search = Search { top: start + length, skipped: skipped.max(search.skipped) };
                        }
                        return Some(start);
                    }
                    FreeSearch::Nothing => {
                        *search = Search::default();
                        break;
                    }
                    FreeSearch::GoOn(end) => at = Some((end, skipped)),
                }
            }
            budget.step(SEARCH_COST).await;
        }
        self.find_within(length, self.range()).await
    }

    /// The same within a range.
    pub(super) async fn find_within(&self, length: usize, mut range: Range<usize>) -> Option<usize> {
        let mut budget = Budget::new();
        loop {
            match search_free(&self.state.lock().mappings, length, range.clone(), &mut 0) {
                FreeSearch::Found(start) => return Some(start),
                FreeSearch::Nothing => return None,
                FreeSearch::GoOn(end) => range.end = end,
            }
            budget.step(SEARCH_COST).await;
        }
    }
}
