//! Access to the memory of another program, a piece at a time: debuggers, `process_vm_readv`, `/proc/PID/mem`.
//!
//! The space is not entered: the pages are found in its tables and copied through the direct map, with their range
//! locked. So a debugger reads what its program may not, and writes to text: such a page becomes the program's own
//! first, and stays what it was for the program.
//!
//! `unsafe` here: pages as bytes.
#![allow(unsafe_code)]

use crate::arch::paging;
use crate::arch::paging::{PAGE_SIZE, PageTableEntry};
use crate::error::{Errno, TryError, TryResult};
use crate::memory::PageRef;
use crate::memory::gather::Gather;
use crate::memory::oom::Shortage;
use crate::memory::raw::FrameSlice;
use crate::memory::source::Object;
use crate::memory::space::lock::SpaceGuard;
use crate::memory::space::{FaultAccess, Flags, Mapping, Protection, Space, fault, resident};

/// Whether the rights of a mapping count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// As the program itself may.
    Checked,
    /// As a debugger may: everything but a shared mapping that is read-only.
    Forced,
}

/// A page that stays what it is while its range is locked, and where it is.
struct FoundPage {
    physical: u64,
    _reference: Option<PageRef>,
}

impl Space {
    /// Reads memory of the program, which need not be the caller's. The bytes lie in one page. Memory that is short is
    /// waited for until `is_over`.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`: it is over.
    pub async fn read_remote(
        &self,
        address: usize,
        bytes: &mut [u8],
        access: RemoteAccess,
        is_over: impl Fn() -> bool,
    ) -> Result<(), Errno> {
        let mut shortage = Shortage::default();
        loop {
            match self.read_once(address, bytes, access).await {
                Err(Errno::ENOMEM) => shortage.make_room(&is_over).await?,
                result => return result,
            }
        }
    }

    async fn read_once(&self, address: usize, bytes: &mut [u8], access: RemoteAccess) -> Result<(), Errno> {
        let page = address & !(PAGE_SIZE - 1);
        self.reach_page(page).await?;
        let guard = self.lock.lock(page..page + PAGE_SIZE).await?;
        self.read_locked(&guard, address, bytes, access)
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// As above; that another operation holds the page.
    pub fn try_read_remote(&self, address: usize, bytes: &mut [u8], access: RemoteAccess) -> TryResult<()> {
        let guard = self.try_reach(address)?;
        Ok(self.read_locked(&guard, address, bytes, access)?)
    }

    /// Writes memory of the program, which need not be the caller's. The bytes lie in one page. Memory that is short is
    /// waited for until `is_over`.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`: it is over.
    pub async fn write_remote(
        &self,
        address: usize,
        bytes: &[u8],
        access: RemoteAccess,
        is_over: impl Fn() -> bool,
    ) -> Result<(), Errno> {
        let mut shortage = Shortage::default();
        loop {
            match self.write_once(address, bytes, access).await {
                Err(Errno::ENOMEM) => shortage.make_room(&is_over).await?,
                result => return result,
            }
        }
    }

    async fn write_once(&self, address: usize, bytes: &[u8], access: RemoteAccess) -> Result<(), Errno> {
        let page = address & !(PAGE_SIZE - 1);
        self.reach_page(page).await?;
        let guard = self.lock.lock(page..page + PAGE_SIZE).await?;
        let mut gather = Gather::new();
        let found = self.page_to_write(&guard, page, access, &mut gather);
        self.finish(&mut gather).await;
        found?.bytes(address, bytes.len()).write(bytes);
        Ok(())
    }

    /// The same without waiting: other CPUs may see the page before for a moment.
    ///
    /// # Errors
    /// As above; that another operation holds the page.
    pub fn try_write_remote(&self, address: usize, bytes: &[u8], access: RemoteAccess) -> TryResult<()> {
        let guard = self.try_reach(address)?;
        let mut gather = Gather::new();
        let found = self.page_to_write(&guard, address & !(PAGE_SIZE - 1), access, &mut gather);
        // The next fault waits for those that have not seen it.
        let _ = self.finish_now(&mut gather);
        found?.bytes(address, bytes.len()).write(bytes);
        Ok(())
    }

    fn read_locked(
        &self,
        _: &SpaceGuard<'_>,
        address: usize,
        bytes: &mut [u8],
        access: RemoteAccess,
    ) -> Result<(), Errno> {
        let page = address & !(PAGE_SIZE - 1);
        let mapping = self.mapping_of(page).ok_or(Errno::EFAULT)?;
        if access == RemoteAccess::Checked && mapping.protection.is_empty() {
            return Err(Errno::EFAULT);
        }
        let entry = self.root().look(page);
        let found = if entry.is_present() {
            FoundPage { physical: entry.physical(), _reference: None }
        } else {
            FoundPage::missing(&mapping, page)?
        };
        found.bytes(address, bytes.len()).read(bytes);
        Ok(())
    }

    /// The page that a write goes to: one that all who share it may write, or the program's own.
    fn page_to_write(
        &self,
        _: &SpaceGuard<'_>,
        page: usize,
        access: RemoteAccess,
        gather: &mut Gather,
    ) -> Result<FoundPage, Errno> {
        let mapping = self.mapping_of(page).ok_or(Errno::EFAULT)?;
        let is_shared = mapping.flags.contains(Flags::SHARED);
        let may_write = mapping.protection.contains(Protection::WRITE);
        if !may_write && (is_shared || access == RemoteAccess::Checked) {
            return Err(Errno::EFAULT);
        }
        if is_shared {
            let Object::Source(source) = &mapping.backing else { return Err(Errno::EFAULT) };
            let found = source.page(mapping.offset_of(page) / PAGE_SIZE as u64, true)?;
            return Ok(FoundPage { physical: found.physical(), _reference: Some(found) });
        }
        let leaf = self.root().leaf(page, gather)?;
        let old = leaf.get();
        let is_own =
            old.is_present() && old.is_counted() && crate::memory::frame::references(old.physical()) == 1;
        if is_own {
            return Ok(FoundPage { physical: old.physical(), _reference: None });
        }
        let found = if old.is_present() { None } else { Some(FoundPage::missing(&mapping, page)?) };
        let source = found.as_ref().map_or(old.physical(), |found| found.physical);
        let copy = fault::copy_of(source, &mapping)?;
        leaf.replace(if mapping.protection.is_empty() { copy.hidden() } else { copy });
        if !resident::counts(old) {
            self.pages_came(1);
        }
        if old.is_present() {
            gather.take(old, 0, page..page + PAGE_SIZE);
        }
        Ok(FoundPage { physical: copy.physical(), _reference: None })
    }

    /// Grows a stack for a page that is not mapped. It does not wait for memory.
    async fn reach_page(&self, page: usize) -> Result<(), Errno> {
        if self.mapping_of(page).is_none() {
            self.fault(page, FaultAccess { is_remote: true, ..FaultAccess::default() }, || true).await?;
        }
        Ok(())
    }

    /// The same, and locks the page, without waiting.
    fn try_reach(&self, address: usize) -> TryResult<SpaceGuard<'_>> {
        let page = address & !(PAGE_SIZE - 1);
        if self.mapping_of(page).is_none() {
            let grown = self.try_fault(page, FaultAccess { is_remote: true, ..FaultAccess::default() });
            grown.ok_or(TryError::WouldBlock)?.map_err(Errno::from)?;
        }
        self.lock.try_lock(page..page + PAGE_SIZE)?.ok_or(TryError::WouldBlock)
    }

    /// Has `fill` fill as much of a range as the program itself could store to without a fault, a part of a page at a
    /// time, until it fills less than it is given. Returns the bytes filled: none where another operation holds the
    /// range, or a page of it is missing. It never waits.
    pub fn try_fill(
        &self,
        address: usize,
        length: usize,
        mut fill: impl FnMut(FrameSlice<'_>) -> usize,
    ) -> usize {
        let all = self.range();
        let end = address.saturating_add(length);
        if length == 0 || address < all.start || end > all.end {
            return 0;
        }
        let pages = address & !(PAGE_SIZE - 1)..end.next_multiple_of(PAGE_SIZE);
        let Ok(Some(_guard)) = self.lock.try_lock(pages.clone()) else { return 0 };
        // All or nothing: what is filled is the reader's alone, and the rest of a record may become another's.
        // A page with a key of its own may be one that the reader has no right to.
        let is_missing =
            |entry: Option<PageTableEntry>| entry.is_none_or(|entry| entry.key() != self.group_key());
        if pages.step_by(PAGE_SIZE).any(|page| is_missing(self.root().look_to_store(page))) {
            return 0;
        }
        let mut done = 0;
        while done < length {
            let Some(entry) = self.root().look_to_store(address + done) else { break };
            let page = FoundPage { physical: entry.physical(), _reference: None };
            let part = page.bytes(address + done, length - done);
            let wanted = part.len();
            let filled = fill(part);
            done += filled;
            if filled < wanted {
                break;
            }
        }
        done
    }

    fn mapping_of(&self, page: usize) -> Option<Mapping<Object>> {
        self.state.lock().mappings.get(page).cloned()
    }
}

impl FoundPage {
    /// A page that no table has yet, as the object has it.
    fn missing(mapping: &Mapping<Object>, page: usize) -> Result<Self, Errno> {
        let found = match &mapping.backing {
            Object::Anonymous(_) => PageRef::zero(),
            // As in Linux, a page behind the end of a file cannot be looked at.
            Object::Source(source) => {
                let index = mapping.offset_of(page) / PAGE_SIZE as u64;
                source.page(index, false).map_err(|_| Errno::EFAULT)?
            }
        };
        Ok(Self { physical: found.physical(), _reference: Some(found) })
    }

    /// The bytes from an address on, which lie in the page.
    fn bytes(&self, address: usize, length: usize) -> FrameSlice<'_> {
        let start = paging::direct_map::<u8>(self.physical).wrapping_add(address % PAGE_SIZE);
        // SAFETY: the range is locked, so the entry keeps its page, or the reference does; the bytes lie in it. A page
        // that is written is the program's own, or one that all who share it may write.
        unsafe { FrameSlice::new(start, length.min(PAGE_SIZE - address % PAGE_SIZE)) }
    }
}
