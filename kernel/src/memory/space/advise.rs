//! madvise, msync and mincore.

use alloc::sync::Arc;
use core::ops::Range;

use linux_raw_sys::general as linux;

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::MapSource;
use crate::memory::frame::LARGE_BYTES;
use crate::memory::source::Object;
use crate::memory::space::{FaultAccess, Flags, Protection, Space, write_back};
use crate::sched::Budget;

/// The cost of a fault, in units of a [`Budget`].
const FAULT_COST: u32 = 4;

/// Not in the headers that the constants come from.
const MADV_DONTNEED_LOCKED: u32 = 24;

/// The memory that may be given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forgotten {
    /// Anything.
    All,
    /// Memory that is not locked.
    Unlocked,
    /// Memory that is not locked, and of no object.
    Own,
}

impl Space {
    /// madvise(2).
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM` (also for a range that is not mapped throughout; what is mapped has been treated then).
    pub async fn advise(
        &self,
        start: usize,
        length: usize,
        advice: u32,
        is_dying: &(impl Fn() -> bool + Sync),
    ) -> Result<(), Errno> {
        let end = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE_SIZE));
        let end = end.filter(|_| start.is_multiple_of(PAGE_SIZE)).ok_or(Errno::EINVAL)?;
        if length == 0 {
            return Ok(());
        }
        let range = self.check_range(start, end - start).ok_or(Errno::ENOMEM)?;
        match advice {
            linux::MADV_DONTNEED => self.forget(range, Forgotten::Unlocked).await,
            MADV_DONTNEED_LOCKED => self.forget(range, Forgotten::All).await,
            linux::MADV_FREE => self.forget(range, Forgotten::Own).await,
            linux::MADV_DONTFORK => self.flag(range, Flags::NOT_INHERITED, true).await,
            linux::MADV_DOFORK => self.flag(range, Flags::NOT_INHERITED, false).await,
            linux::MADV_WIPEONFORK => self.wipe_in_child(range).await,
            linux::MADV_KEEPONFORK => self.flag(range, Flags::WIPED_IN_CHILD, false).await,
            linux::MADV_DONTDUMP => self.flag(range, Flags::NOT_DUMPED, true).await,
            linux::MADV_DODUMP => self.flag(range, Flags::NOT_DUMPED, false).await,
            linux::MADV_HUGEPAGE => self.flag_pages(range, Flags::LARGE_PAGES, Flags::SMALL_PAGES).await,
            linux::MADV_NOHUGEPAGE => self.flag_pages(range, Flags::SMALL_PAGES, Flags::LARGE_PAGES).await,
            linux::MADV_COLLAPSE => {
                let collapsed = self.collapse(range.clone(), is_dying).await;
                self.is_mapped(range)?;
                collapsed
            }
            linux::MADV_POPULATE_READ => self.populate(range, false, is_dying).await,
            linux::MADV_POPULATE_WRITE => self.populate(range, true, is_dying).await,
            linux::MADV_NORMAL
            | linux::MADV_RANDOM
            | linux::MADV_SEQUENTIAL
            | linux::MADV_WILLNEED
            | linux::MADV_MERGEABLE
            | linux::MADV_UNMERGEABLE
            | linux::MADV_COLD
            | linux::MADV_PAGEOUT => self.is_mapped(range),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Whether a range is mapped throughout.
    fn is_mapped(&self, range: Range<usize>) -> Result<(), Errno> {
        if self.state.lock().mappings.covers(range) { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Gives pages back; the next access finds the object's contents, or zeros.
    async fn forget(&self, range: Range<usize>, what: Forgotten) -> Result<(), Errno> {
        let _guard = self.lock.lock(range.clone()).await?;
        let (mut at, mut budget, mut is_mapped) = (range.start, Budget::new(), true);
        loop {
            let next = {
                let state = self.state.lock();
                let mut rest = state.mappings.overlapping(at..range.end);
                rest.next().map(|mapping| {
                    let is_locked = mapping.flags.contains(Flags::LOCKED);
                    (mapping.part(&(at..range.end)).range(), mapping.backing.clone(), is_locked)
                })
            };
            let Some((part, object, is_locked)) = next else { break };
            budget.step(FAULT_COST).await;
            is_mapped &= part.start == at;
            let is_refused = match what {
                Forgotten::All => false,
                Forgotten::Unlocked => is_locked,
                Forgotten::Own => is_locked || matches!(object, Object::Source(_)),
            };
            if is_refused {
                return Err(Errno::EINVAL);
            }
            at = part.end;
            self.clear(part).await?;
        }
        if is_mapped && at >= range.end { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Children find zeros in a range, which is to be the process's own memory.
    async fn wipe_in_child(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut at = range.start;
        let mut budget = Budget::new();
        loop {
            let next = {
                let state = self.state.lock();
                let mut rest = state.mappings.overlapping(at..range.end);
                rest.next().map(|mapping| {
                    let is_shared = mapping.flags.contains(Flags::SHARED);
                    let is_own = matches!(mapping.backing, Object::Anonymous(_)) && !is_shared;
                    (mapping.part(&(at..range.end)).range(), is_own)
                })
            };
            let Some((part, is_own)) = next else { break };
            if !is_own {
                // The part before has been treated; the later error counts.
                let _ = self.flag(range.start..part.start, Flags::WIPED_IN_CHILD, true).await;
                return Err(Errno::EINVAL);
            }
            budget.step(FAULT_COST).await;
            at = part.end;
        }
        self.flag(range, Flags::WIPED_IN_CHILD, true).await
    }

    async fn flag(&self, range: Range<usize>, flag: Flags, value: bool) -> Result<(), Errno> {
        let (set, cleared) = if value { (flag, Flags::empty()) } else { (Flags::empty(), flag) };
        self.flag_pages(range, set, cleared).await
    }

    /// Sets flags and clears others.
    async fn flag_pages(&self, range: Range<usize>, set: Flags, cleared: Flags) -> Result<(), Errno> {
        let _guard = self.lock.lock(range.clone()).await?;
        let mut is_mapped = true;
        self.each_part(range, |state, part| {
            state.mappings.reserve(2)?;
            state.mappings.change(part.clone(), |mapping| {
                mapping.flags = mapping.flags.difference(cleared).union(set);
            });
            is_mapped &= state.mappings.covers(part);
            Ok(())
        })
        .await?;
        if is_mapped { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Locks a range or unlocks it, which must be mapped throughout: it is counted, for memory is never paged out. With
    /// `limit` no more than so many bytes may be locked then.
    ///
    /// # Errors
    /// `ENOMEM`: also beyond the limit.
    pub async fn lock_memory(
        &self,
        range: Range<usize>,
        is_locked: bool,
        limit: Option<usize>,
    ) -> Result<(), Errno> {
        let _guard = self.lock.lock(range.clone()).await?;
        let locked = self.totals_of(range.clone()).await.locked;
        let others = self.locked_bytes().saturating_sub(locked);
        if is_locked && limit.is_some_and(|limit| others + range.len() > limit) {
            return Err(Errno::ENOMEM);
        }
        let mut is_mapped = true;
        self.each_part(range, |state, part| {
            state.mappings.reserve(2)?;
            state.mappings.change(part.clone(), |mapping| mapping.flags.set(Flags::LOCKED, is_locked));
            is_mapped &= state.mappings.covers(part);
            Ok(())
        })
        .await?;
        if is_mapped { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Locks or unlocks everything that is mapped. With `limit`, no more than so many bytes may be mapped to be locked.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn lock_all_memory(&self, is_locked: bool, limit: Option<usize>) -> Result<(), Errno> {
        let range = self.range();
        let _guard = self.lock.lock(range.clone()).await?;
        if is_locked && limit.is_some_and(|limit| self.mapped_bytes() > limit) {
            return Err(Errno::ENOMEM);
        }
        self.each_part(range, |state, part| {
            state.mappings.reserve(2)?;
            state.mappings.change(part, |mapping| mapping.flags.set(Flags::LOCKED, is_locked));
            Ok(())
        })
        .await
    }

    /// Brings all pages of a range in that has been locked, those that can be written as if they were written to, so
    /// that no later write has to wait for a copy.
    ///
    /// # Errors
    /// As [`Space::populate`].
    pub async fn populate_locked(
        &self,
        range: Range<usize>,
        is_dying: &(impl Fn() -> bool + Sync),
    ) -> Result<(), Errno> {
        self.is_mapped(range.clone())?;
        // One budget for all parts, of which there may be one for each page.
        let (mut budget, mut at) = (Budget::new(), range.start);
        while at < range.end {
            let (part, is_own) = {
                let state = self.state.lock();
                let mapping = state.mappings.overlapping(at..range.end).next().ok_or(Errno::ENOMEM)?;
                let is_writable = mapping.protection.contains(Protection::WRITE);
                let is_own = is_writable && !mapping.flags.contains(Flags::SHARED);
                (mapping.part(&(at..range.end)).range(), is_own)
            };
            at = part.end;
            self.fill(part, is_own, is_dying, &mut budget).await?;
        }
        Ok(())
    }

    /// Brings all pages of a range in: `MAP_POPULATE`, `MADV_POPULATE_READ` and `_WRITE`.
    ///
    /// # Errors
    /// `ENOMEM`, `EFAULT`; `EINTR` if the caller is to die.
    pub async fn populate(
        &self,
        range: Range<usize>,
        write: bool,
        is_dying: &(impl Fn() -> bool + Sync),
    ) -> Result<(), Errno> {
        self.is_mapped(range.clone())?;
        self.fill(range, write, is_dying, &mut Budget::new()).await
    }

    async fn fill(
        &self,
        range: Range<usize>,
        write: bool,
        is_dying: &(impl Fn() -> bool + Sync),
        budget: &mut Budget,
    ) -> Result<(), Errno> {
        let mut page = range.start;
        while page < range.end {
            if budget.spend(FAULT_COST) {
                budget.look().await;
                if is_dying() {
                    return Err(Errno::EINTR);
                }
            }
            self.fault(page, FaultAccess { write, ..FaultAccess::default() }, is_dying).await?;
            page += if write && self.is_large_at(page) { LARGE_BYTES } else { PAGE_SIZE };
        }
        Ok(())
    }

    /// The range of msync(2), which must be mapped throughout.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`.
    pub fn check_sync(&self, start: usize, length: usize) -> Result<Range<usize>, Errno> {
        if !start.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        let range = self.check_range(start, length).ok_or(Errno::ENOMEM)?;
        self.is_mapped(range.clone())?;
        Ok(range)
    }

    /// Whether a mapping in a range is locked.
    pub fn has_locked(&self, range: &Range<usize>) -> bool {
        let state = self.state.lock();
        state.mappings.overlapping(range.clone()).any(|mapping| mapping.flags.contains(Flags::LOCKED))
    }

    /// Whether a range has something that msync(2) stores: most objects are in memory only.
    pub fn has_written(&self, range: &Range<usize>) -> bool {
        self.next_written(range.clone()).is_some()
    }

    /// The next shared mapping in a range that has been written to: where it ends, its object, and which pages.
    fn next_written(&self, range: Range<usize>) -> Option<(usize, Arc<dyn MapSource>, Range<u64>)> {
        let state = self.state.lock();
        state.mappings.overlapping(range.clone()).find_map(|mapping| {
            let Object::Source(source) = &mapping.backing else { return None };
            let part = mapping.part(&range);
            let first = part.offset / PAGE_SIZE as u64;
            let pages = first..first + ((part.end - part.start) / PAGE_SIZE) as u64;
            let is_written = mapping.flags.contains(Flags::SHARED) && source.written(&pages).is_some();
            is_written.then(|| (part.end, source.clone(), pages))
        })
    }

    /// Stores what was written to the files that are mapped in a range: msync(2).
    ///
    /// # Errors
    /// `EIO` and the like.
    pub async fn sync(&self, range: Range<usize>) -> Result<(), Errno> {
        let mut at = range.start;
        while let Some((end, source, pages)) = self.next_written(at..range.end) {
            write_back(&source, pages).await?;
            at = end;
        }
        Ok(())
    }

    /// mincore(2): which pages of a range are in memory, a byte each. Returns how many pages are told of: those before
    /// the first that is not mapped.
    ///
    /// # Errors
    /// `ENOMEM` without memory for the lock's record.
    pub async fn residency(&self, range: Range<usize>, pages: &mut [u8]) -> Result<usize, Errno> {
        let _guard = self.lock.lock(range.clone()).await?;
        let is_mapped = self.is_mapped(range.clone()).is_ok();
        for (index, (page, byte)) in range.step_by(PAGE_SIZE).zip(pages.iter_mut()).enumerate() {
            if !is_mapped && self.is_mapped(page..page + PAGE_SIZE).is_err() {
                return Ok(index);
            }
            *byte = u8::from(self.root().look(page).is_present());
        }
        Ok(pages.len())
    }
}
