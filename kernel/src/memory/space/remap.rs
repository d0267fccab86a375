//! mremap.

use core::ops::Range;

use heddle_kernel_core::mapping::{SpareMappings, Totals};

use crate::arch::paging::{PAGE_SIZE, PageTableEntry, USER_END};
use crate::error::Errno;
use crate::memory::gather::Gather;
use crate::memory::source::Object;
use crate::memory::space::map::{GATHER_COST, Removed};
use crate::memory::space::{Flags, MapRequest, Mapping, Placement, Space};
use crate::sched::Budget;

impl Space {
    /// Makes a part of a mapping `new_length` long, moving it if `placement` allows: `None` keeps it in place. With
    /// `keep_old`, the old addresses stay mapped, to fresh contents. Returns the address.
    ///
    /// # Errors
    /// `EINVAL`, `EFAULT` (the old range is not within one mapping), `ENOMEM`.
    pub async fn remap(
        &self,
        start: usize,
        old_length: usize,
        new_length: usize,
        placement: Option<Placement>,
        keep_old: bool,
    ) -> Result<usize, Errno> {
        let round = |length: usize| length.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::EINVAL);
        let (old_length, new_length) = (round(old_length)?, round(new_length)?);
        if new_length == 0 {
            return Err(Errno::EINVAL);
        }
        if self.state.lock().mappings.get(start).is_none() {
            return Err(Errno::EFAULT);
        }
        let mut old = self.check_range(start, old_length).ok_or(Errno::EFAULT)?;
        if let Some(Placement::Fixed(target)) = placement {
            let end = target.checked_add(new_length).filter(|&end| end <= USER_END);
            let new = target..end.ok_or(Errno::EINVAL)?;
            if new.start < old.end && old.start < new.end {
                return Err(Errno::EINVAL);
            }
            self.reach(target, new_length).await?;
            if old_length == 0 {
                return self.map_again(start, new_length, Some(Placement::Fixed(target))).await;
            }
            if new_length < old_length {
                // As on Linux, what is in the way and what is too much goes first, whatever the rest is.
                self.unmap(target, new_length).await?;
                self.unmap(start + new_length, old_length - new_length).await?;
                old.end = start + new_length;
            }
            return self.relocate(old, new, true, keep_old).await;
        }
        if old_length == 0 {
            return self.map_again(start, new_length, placement).await;
        }
        if !keep_old && new_length <= old_length {
            if new_length < old_length {
                self.unmap(start + new_length, old_length - new_length).await?;
            }
            return Ok(start);
        }
        if !keep_old && self.grow(old.clone(), new_length).await? {
            return Ok(start);
        }
        if placement.is_none() {
            return Err(Errno::ENOMEM);
        }
        loop {
            let target = self.find_free(new_length).await.ok_or(Errno::ENOMEM)?;
            match self.relocate(old.clone(), target..target + new_length, false, keep_old).await {
                Err(Errno::EEXIST) => {}
                result => return result,
            }
        }
    }

    /// Maps what a shared mapping has at an address once more: mremap(2) with an old length of 0.
    async fn map_again(
        &self,
        start: usize,
        length: usize,
        placement: Option<Placement>,
    ) -> Result<usize, Errno> {
        let mapping = {
            let state = self.state.lock();
            state.mappings.get(start).cloned().ok_or(Errno::EFAULT)?
        };
        if !mapping.flags.contains(Flags::SHARED) {
            return Err(Errno::EINVAL);
        }
        let request = MapRequest {
            placement: placement.ok_or(Errno::ENOMEM)?,
            length,
            protection: mapping.protection,
            // A limit on locked memory was not asked.
            flags: mapping.flags - Flags::LOCKED,
            offset: mapping.offset_of(start),
            key: Some(mapping.key),
            object: mapping.backing,
        };
        self.map(request).await
    }

    /// The one mapping that covers `range`.
    fn single(&self, range: &Range<usize>) -> Result<Mapping<Object>, Errno> {
        let state = self.state.lock();
        let mapping = state.mappings.get(range.start).ok_or(Errno::EFAULT)?;
        if mapping.end < range.end { Err(Errno::EFAULT) } else { Ok(mapping.clone()) }
    }

    /// Makes a mapping longer in place if there is room.
    async fn grow(&self, old: Range<usize>, new_length: usize) -> Result<bool, Errno> {
        let Some(new) = self.check_range(old.start, new_length) else { return Ok(false) };
        let _guard = self.lock.lock(new.clone()).await?;
        let mapping = self.single(&old)?;
        let more = old.end..new.end;
        let mut state = self.state.lock();
        state.mappings.reserve(1)?;
        if mapping.end != old.end || !state.mappings.is_free(more.clone()) {
            return Ok(false);
        }
        let added = Totals::of(mapping.protection, mapping.flags, more.len());
        self.check_growth(&state, Totals::default(), added)?;
        let offset = mapping.offset_of(more.start);
        state.mappings.insert(Mapping { start: more.start, end: more.end, offset, ..mapping });
        state.note_promises();
        Ok(true)
    }

    /// Moves the pages of `old`, as many as fit, and their mapping to `new`.
    async fn relocate(
        &self,
        old: Range<usize>,
        new: Range<usize>,
        replace: bool,
        keep_old: bool,
    ) -> Result<usize, Errno> {
        // One lock around both ranges: two could be waited for in opposite orders.
        let _guard = self.lock.lock(old.start.min(new.start)..old.end.max(new.end)).await?;
        let mapping = self.single(&old)?;
        let is_free = {
            let state = self.state.lock();
            let mut gone = state.mappings.totals_in(new.clone());
            if !keep_old {
                gone = gone.plus(state.mappings.totals_in(old.clone()));
            }
            let added = Totals::of(mapping.protection, mapping.flags, new.len());
            self.check_growth(&state, gone, added)?;
            state.mappings.is_free(new.clone())
        };
        if !is_free {
            if !replace {
                return Err(Errno::EEXIST);
            }
            self.clear(new.clone()).await?;
            if self.has_many(&new) {
                self.remove_records(new.clone()).await?;
            }
        }
        let spare = SpareMappings::new(3)?;
        let moved = old.start..old.start + old.len().min(new.len());
        self.move_pages(moved, new.start).await?;
        let mut removed = Removed::default();
        {
            let mut state = self.state.lock();
            state.mappings.refill(spare);
            state.mappings.remove(new.clone(), |mapping| removed.keep(mapping));
            if !keep_old {
                state.mappings.remove(old.clone(), |mapping| removed.keep(mapping));
                state.search.note_free(&old);
            }
            let offset = mapping.offset_of(old.start);
            state.mappings.insert(Mapping { start: new.start, end: new.end, offset, ..mapping });
            state.note_promises();
        }
        if !keep_old {
            // The part that did not fit.
            self.clear(old).await?;
        }
        Ok(new.start)
    }

    /// Moves the page-table entries of a locked range to another one, which is empty.
    async fn move_pages(&self, from: Range<usize>, to: usize) -> Result<(), Errno> {
        // First everything that can fail, then everything that cannot.
        let mut budget = Budget::new();
        for moving in [false, true] {
            let mut gather = Gather::new();
            let mut at = from.start;
            while at < from.end {
                budget.step(GATHER_COST).await;
                let end = self.root().next_table(at).min(from.end);
                let reached = self.move_some(at..end, to.wrapping_sub(from.start), moving, &mut gather);
                self.finish(&mut gather).await;
                at = reached?;
            }
        }
        Ok(())
    }

    /// Makes the tables for moving a range by `distance`, or moves it, until `gather` is full.
    fn move_some(
        &self,
        range: Range<usize>,
        distance: usize,
        moving: bool,
        gather: &mut Gather,
    ) -> Result<usize, Errno> {
        let root = self.root();
        let mut at = range.start;
        while at < range.end {
            let next = root.next_table(at).min(range.end);
            if root.move_large(at..next, at.wrapping_add(distance), moving, gather)? {
                at = next;
                continue;
            }
            if !root.has_table(at) {
                at = next;
                continue;
            }
            for page in (at..next).step_by(PAGE_SIZE).filter(|&page| root.look(page).is_present()) {
                if !gather.has_room_for(2) {
                    return Ok(page);
                }
                let (from, to) = (root.leaf(page, gather)?, root.leaf(page.wrapping_add(distance), gather)?);
                if moving {
                    to.replace(from.replace(PageTableEntry::EMPTY));
                    gather.mark(page..page + PAGE_SIZE);
                }
            }
            at = next;
        }
        Ok(range.end)
    }
}
