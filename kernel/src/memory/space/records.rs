//! Work on the records of many mappings, some of them at a time: a space may have as many as Linux allows, and a
//! spinlock is held over each part.
//!
//! The caller holds the range. So nobody else changes a record in it between two parts, though others may see that some
//! are changed and some are not, as in Linux.

use core::ops::Range;

use heddle_kernel_core::mapping::Totals;

use crate::error::Errno;
use crate::memory::source::Object;
use crate::memory::space::map::Removed;
use crate::memory::space::{Flags, Mapping, Protection, Space, SpaceState};
use crate::sched::Budget;

/// Records that are worked on under one spinlock.
const RECORDS: usize = 64;
/// The cost of that, in units of a [`Budget`].
const COST: u32 = 32;
/// A space with more records lets go of them in steps at its end.
const AT_THE_END: usize = 1024;

impl Space {
    /// Does `work` on one part of a range after the other.
    ///
    /// # Errors
    /// The first of `work`.
    pub(super) async fn each_part(
        &self,
        range: Range<usize>,
        mut work: impl FnMut(&mut SpaceState, Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut budget = Budget::new();
        let mut at = range.start;
        while at < range.end {
            {
                let mut state = self.state.lock();
                let part = state.mappings.first_part(at..range.end, RECORDS);
                at = part.end;
                work(&mut state, part)?;
            }
            if at < range.end {
                budget.step(COST).await;
            }
        }
        Ok(())
    }

    /// The first mapping at or above an address that has a property.
    pub(super) async fn find_record(
        &self,
        from: usize,
        budget: &mut Budget,
        mut is_it: impl FnMut(&Mapping<Object>) -> bool,
    ) -> Option<Mapping<Object>> {
        let mut at = from;
        while at < usize::MAX {
            {
                let state = self.state.lock();
                let part = state.mappings.first_part(at..usize::MAX, RECORDS);
                let found = state.mappings.overlapping(part.clone()).find(|mapping| is_it(mapping));
                if let Some(found) = found {
                    return Some(found.clone());
                }
                at = part.end;
            }
            budget.step(COST).await;
        }
        None
    }

    /// Whether a range has so many records that they are better not worked on at once.
    pub(super) fn has_many(&self, range: &Range<usize>) -> bool {
        self.state.lock().mappings.first_part(range.clone(), RECORDS).end < range.end
    }

    /// The sums of a range.
    pub(super) async fn totals_of(&self, range: Range<usize>) -> Totals {
        let mut sum = Totals::default();
        let summed = self.each_part(range, |state, part| {
            sum = sum.plus(state.mappings.totals_in(part));
            Ok(())
        });
        // Nothing of this fails.
        let _ = summed.await;
        sum
    }

    /// Removes the records of a range.
    ///
    /// # Errors
    /// `ENOMEM`: a part may be removed then.
    pub(super) async fn remove_records(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut budget = Budget::new();
        let mut at = range.start;
        while at < range.end {
            let mut removed = Removed::default();
            {
                let mut state = self.state.lock();
                let part = state.mappings.first_part(at..range.end, RECORDS);
                state.mappings.reserve(1)?;
                state.mappings.remove(part.clone(), |mapping| removed.keep(mapping));
                state.note_promises();
                state.search.note_free(&part);
                at = part.end;
            }
            drop(removed);
            if at < range.end {
                budget.step(COST).await;
            }
        }
        Ok(())
    }

    /// The records' part of mprotect(2).
    ///
    /// # Errors
    /// `ENOMEM`, `EACCES`.
    pub(super) async fn protect_records(
        &self,
        range: Range<usize>,
        protection: Protection,
        new_key: impl Fn(u8) -> u8,
    ) -> Result<(), Errno> {
        let writes = protection.contains(Protection::WRITE);
        let forbidden = |mapping: &Mapping<Object>| writes && mapping.flags.contains(Flags::NEVER_WRITABLE);
        let (mut before, mut after) = (Totals::default(), Totals::default());
        self.each_part(range.clone(), |state, part| {
            if !state.mappings.covers(part.clone()) {
                return Err(Errno::ENOMEM);
            }
            if state.mappings.overlapping(part.clone()).any(forbidden) {
                return Err(Errno::EACCES);
            }
            before = before.plus(state.mappings.totals_in(part.clone()));
            after = state.mappings.overlapping(part.clone()).fold(after, |sum, mapping| {
                let bytes = mapping.end.min(part.end) - mapping.start.max(part.start);
                sum.plus(Totals::of(protection, mapping.flags, bytes))
            });
            Ok(())
        })
        .await?;
        self.check_growth(&self.state.lock(), before, after)?;
        self.each_part(range, |state, part| {
            state.mappings.reserve(2)?;
            state.mappings.change(part, |mapping| {
                mapping.protection = protection;
                mapping.key = new_key(mapping.key);
            });
            state.note_promises();
            Ok(())
        })
        .await
    }

    /// Lets go of the records of a space that nobody runs in any more, when there are many. Its pages go with it.
    pub async fn forget_records(&self) {
        let range = self.range();
        if !range.is_empty() && self.thread_count() <= 1 && self.mapping_count() > AT_THE_END {
            // Without memory for the lock, all of them go with the space.
            let Ok(_guard) = self.lock.lock(range.clone()).await else { return };
            let _ = self.remove_records(range).await;
        }
    }
}
