//! mmap, munmap and mprotect.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::mapping::Totals;
use heddle_kernel_core::mempolicy::MemoryPolicy;

use crate::arch::paging::{PAGE_SIZE, PageTableEntry, Rights};
use crate::error::Errno;
use crate::memory::fallible::try_arc;
use crate::memory::gather::Gather;
use crate::memory::overcommit;
use crate::memory::source::{Object, SharedMemory};
use crate::memory::space::{Flags, KeyChange, LOWEST_ADDRESS, Mapping, Protection, Space};
use crate::sched::Budget;

/// How many mappings a space may have, as Linux's `vm.max_map_count`.
const MAPPINGS_MAX: usize = 65530;

/// The cost of changing as many entries as a table or a gather holds, in units of a [`Budget`].
pub(super) const GATHER_COST: u32 = 32;

/// Where `MAP_32BIT` puts mappings, in Linux and here.
const LOW: Range<usize> = 1 << 30..1 << 31;

/// Where a mapping goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Anywhere.
    Any,
    /// At this address if that is free and in reach, else anywhere.
    Hint(usize),
    /// Below 2 GiB, at this address if that is free and not 0.
    Low(usize),
    /// At this address, in place of what is there.
    Fixed(usize),
    /// At this address, or not at all.
    FixedIfFree(usize),
}

/// A new mapping.
#[derive(Clone)]
pub struct MapRequest {
    /// Where.
    pub placement: Placement,
    /// Length in bytes; rounded up to pages.
    pub length: usize,
    /// Rights.
    pub protection: Protection,
    /// Properties. Shared anonymous memory is made here.
    pub flags: Flags,
    /// The object behind it.
    pub object: Object,
    /// Position in the object in bytes, at a page boundary.
    pub offset: u64,
    /// The protection key; `None` for that of the program's group.
    pub key: Option<u8>,
}

impl MapRequest {
    /// Private anonymous memory, readable and writable.
    #[must_use]
    pub const fn anonymous(placement: Placement, length: usize) -> Self {
        Self {
            placement,
            length,
            protection: Protection::READ.union(Protection::WRITE),
            flags: Flags::empty(),
            object: Object::Anonymous(None),
            offset: 0,
            key: None,
        }
    }
}

impl Space {
    /// Maps memory and returns its address.
    ///
    /// # Errors
    /// `EINVAL` (length or alignment), `ENOMEM` (no room, or outside of what programs can have), `EEXIST` (with
    /// [`Placement::FixedIfFree`]), `EPERM` (an address below the lowest).
    pub async fn map(&self, mut request: MapRequest) -> Result<usize, Errno> {
        let length = request.length.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::ENOMEM)?;
        if length == 0 || !request.offset.is_multiple_of(PAGE_SIZE as u64) {
            return Err(Errno::EINVAL);
        }
        request.offset.checked_add(length as u64).ok_or(Errno::EOVERFLOW)?;
        if request.flags.contains(Flags::SHARED) && matches!(request.object, Object::Anonymous(_)) {
            if !request.flags.contains(Flags::NO_RESERVE) {
                overcommit::check(length)?;
            }
            request.object = Object::Source(try_arc(SharedMemory::default())? as Arc<_>);
            request.offset = 0;
        }
        match request.placement {
            Placement::Fixed(start) => {
                self.reach(start, length).await?;
                self.map_at(start..start + length, &request, true).await
            }
            Placement::FixedIfFree(start) => {
                self.reach(start, length).await?;
                self.map_at(start..start + length, &request, false).await
            }
            Placement::Hint(start) => {
                if let Some(range) = self.check_range(start & !(PAGE_SIZE - 1), length) {
                    match self.map_at(range, &request, false).await {
                        Err(Errno::EEXIST) => {}
                        result => return result,
                    }
                }
                self.map_anywhere(length, &request).await
            }
            Placement::Low(start) => self.map_low(start & !(PAGE_SIZE - 1), length, &request).await,
            Placement::Any => self.map_anywhere(length, &request).await,
        }
    }

    /// Makes sure that a fixed range can be mapped; leaves the slot if the range is outside of it.
    pub(super) async fn reach(&self, start: usize, length: usize) -> Result<(), Errno> {
        if !start.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        if start < LOWEST_ADDRESS {
            return Err(Errno::EPERM);
        }
        if self.check_range(start, length).is_none() && self.is_in_slot() {
            self.leave_slot().await?;
        }
        self.check_range(start, length).map(|_| ()).ok_or(Errno::ENOMEM)
    }

    async fn map_anywhere(&self, length: usize, request: &MapRequest) -> Result<usize, Errno> {
        let is_own = matches!(request.object, Object::Anonymous(_));
        let is_aligned = is_own && !request.flags.contains(Flags::GROWS_DOWN) && self.wants_alignment(length);
        loop {
            let found =
                if is_aligned { self.find_aligned(length).await } else { self.find_free(length).await };
            let Some(start) = found else {
                if !self.is_in_slot() {
                    return Err(Errno::ENOMEM);
                }
                self.leave_slot().await?;
                continue;
            };
            match self.map_at(start..start + length, request, false).await {
                // Another thread took the range between the search and the lock.
                Err(Errno::EEXIST) => {}
                result => return result,
            }
        }
    }

    /// Maps memory to which 31 bits lead. These addresses are in the low window, so a program that lies in another slot
    /// leaves that.
    async fn map_low(&self, wanted: usize, length: usize, request: &MapRequest) -> Result<usize, Errno> {
        self.reach(LOW.start, LOW.len()).await?;
        let wanted = Some(wanted).filter(|&start| start != 0 && start.saturating_add(length) <= LOW.end);
        if let Some(range) = wanted.and_then(|start| self.check_range(start, length)) {
            match self.map_at(range, request, false).await {
                Err(Errno::EEXIST) => {}
                result => return result,
            }
        }
        loop {
            let start = self.find_within(length, LOW).await.ok_or(Errno::ENOMEM)?;
            match self.map_at(start..start + length, request, false).await {
                Err(Errno::EEXIST) => {}
                result => return result,
            }
        }
    }

    async fn map_at(&self, range: Range<usize>, request: &MapRequest, replace: bool) -> Result<usize, Errno> {
        if let Object::Source(source) = &request.object {
            source.mapped(request.flags.contains(Flags::SHARED));
        }
        let added = Totals::of(request.protection, request.flags, range.len());
        let _guard = self.lock.lock(range.clone()).await?;
        let is_free = {
            let state = self.state.lock();
            if state.mappings.len() + 2 > MAPPINGS_MAX {
                return Err(Errno::ENOMEM);
            }
            let is_free = state.mappings.is_free(range.clone());
            if is_free {
                self.check_growth(&state, Totals::default(), added)?;
            }
            is_free
        };
        if !is_free {
            if !replace {
                return Err(Errno::EEXIST);
            }
            let replaced = self.totals_of(range.clone()).await;
            self.check_growth(&self.state.lock(), replaced, added)?;
            self.clear(range.clone()).await?;
            if self.has_many(&range) {
                self.remove_records(range.clone()).await?;
            }
        }
        let mut removed = Removed::default();
        let mut state = self.state.lock();
        state.mappings.reserve(2)?;
        if is_free {
            // Another thread may have mapped something elsewhere meanwhile; what was taken out cannot come back.
            self.check_growth(&state, Totals::default(), added)?;
        }
        state.mappings.remove(range.clone(), |mapping| removed.keep(mapping));
        state.mappings.insert(Mapping {
            start: range.start,
            end: range.end,
            protection: request.protection,
            flags: request.flags,
            backing: request.object.clone(),
            offset: request.offset,
            policy: MemoryPolicy::DEFAULT,
            key: request.key.unwrap_or_else(|| self.group_key()),
        });
        state.note_promises();
        Ok(range.start)
    }

    /// Takes all pages of a locked range out of the page table.
    pub(super) async fn clear(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut gather = Gather::new();
        let mut budget = Budget::new();
        let mut at = range.start;
        let mut result = Ok(());
        while at < range.end && result.is_ok() {
            match self.root().remove(at..range.end, &mut gather) {
                Ok(reached) => at = reached,
                Err(error) => result = Err(error),
            }
            self.pages_went(gather.take_page_count());
            self.finish(&mut gather).await;
            budget.step(GATHER_COST).await;
        }
        result
    }

    /// Unmaps whatever is mapped in a range.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not whole pages of programs' addresses, `ENOMEM`.
    pub async fn unmap(&self, start: usize, length: usize) -> Result<(), Errno> {
        if length == 0 || !start.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        let end = length.checked_next_multiple_of(PAGE_SIZE).and_then(|length| start.checked_add(length));
        let end = end.filter(|&end| end <= crate::arch::paging::USER_END).ok_or(Errno::EINVAL)?;
        // Nothing of this process can be outside of its space.
        let own = self.range();
        let range = start.max(own.start)..end.min(own.end);
        if range.is_empty() {
            return Ok(());
        }
        let _guard = self.lock.lock(range.clone()).await?;
        if self.state.lock().mappings.is_free(range.clone()) {
            return Ok(());
        }
        // The records first: a fault that comes afterwards finds nothing to bring in.
        let removed = self.remove_records(range.clone()).await;
        if removed.is_err() && !self.state.lock().mappings.is_free(range.clone()) {
            // Mappings that are left keep their pages.
            let next = self.mapping_at_or_above(range.start).map_or(range.end, |mapping| mapping.start);
            self.clear(range.start..next.clamp(range.start, range.end)).await?;
            return removed;
        }
        self.clear(range).await
    }

    /// Changes the rights of everything in a range.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM` (also for a range that is not mapped throughout), `EACCES` (a shared mapping of a file that
    /// was opened for reading cannot become writable).
    pub async fn protect(
        &self,
        start: usize,
        length: usize,
        protection: Protection,
        key: KeyChange,
    ) -> Result<(), Errno> {
        if !start.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        if length == 0 {
            return Ok(());
        }
        let range = self.check_range(start, length).ok_or(Errno::ENOMEM)?;
        let _guard = self.lock.lock(range.clone()).await?;
        if self.state.lock().mappings.len() + 2 > MAPPINGS_MAX {
            return Err(Errno::ENOMEM);
        }
        let (group, execute_only) = (self.group_key(), self.state.lock().keys.execute_only());
        let new_key = move |old| match key {
            KeyChange::Set(key) => key,
            KeyChange::Keep if Some(old) == execute_only => group,
            KeyChange::Keep => old,
        };
        self.protect_records(range.clone(), protection, new_key).await?;
        if protection.is_empty() {
            // The pages are out of the program's reach, but stay.
            return self.change(range, |entry| entry.with_key(new_key(entry.key())).hidden()).await;
        }
        // The right to store comes back with the next fault, which knows whether the page must be copied first.
        let execute = protection.contains(Protection::EXECUTE);
        self.change(range, |entry| {
            let write = entry.is_writable() && protection.contains(Protection::WRITE);
            entry.with_rights(Rights { write, execute, key: new_key(entry.key()) })
        })
        .await
    }

    /// Changes the rights of all pages of a locked range, a table at a time; translations are flushed when the budget
    /// is exhausted, and at the end.
    pub(super) async fn change(
        &self,
        range: Range<usize>,
        change: impl Fn(PageTableEntry) -> PageTableEntry,
    ) -> Result<(), Errno> {
        let (mut gather, mut budget) = (Gather::new(), Budget::new());
        let mut at = range.start;
        while at < range.end {
            let next = self.root().next_table(at).min(range.end);
            let cost = if self.root().has_table(at) { GATHER_COST } else { 1 };
            let reached = self.root().change(at..next, &mut gather, &change);
            let is_stopped = reached.is_err() || reached.is_ok_and(|reached| reached < next);
            if budget.spend(cost) || is_stopped {
                self.finish(&mut gather).await;
                budget.look().await;
            }
            match reached {
                Ok(reached) => at = reached,
                Err(error) => return Err(error),
            }
        }
        self.finish(&mut gather).await;
        Ok(())
    }
}

/// Mappings that were removed under a spinlock: the objects behind them are dropped after it, because that may free
/// something of any size.
#[derive(Default)]
pub(super) struct Removed {
    objects: Vec<Object>,
}

impl Removed {
    /// Keeps what is behind a removed mapping, unless there is no memory to keep it in.
    pub(super) fn keep(&mut self, mapping: Mapping<Object>) {
        if matches!(mapping.backing, Object::Source(_)) && self.objects.try_reserve(1).is_ok() {
            push_reserved(&mut self.objects, mapping.backing);
        }
    }
}
