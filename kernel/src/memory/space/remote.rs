//! Access to the memory of another program, a piece at a time: debuggers, `process_vm_readv`, `/proc/PID/mem`.
//!
//! The space is not entered: the pages are found in its tables and copied through the direct map, with their range
//! locked. So a debugger reads what its program may not, and writes to text: such a page becomes the program's own
//! first, and stays what it was for the program.
//!
//! `unsafe` here: pages as bytes.
#![allow(unsafe_code)]

use crate::arch::paging;
use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::gather::Gather;
use crate::memory::raw::FrameSlice;
use crate::memory::source::Object;
use crate::memory::space::{Flags, Mapping, Protection, Space};
use crate::memory::{PageRef, space::fault};

/// Whether the rights of a mapping count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// As the program itself may.
    Checked,
    /// As a debugger may: everything but a shared mapping that is read-only.
    Forced,
}

impl Space {
    /// Reads memory of the program, which need not be the caller's. The bytes lie in one page.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`.
    pub async fn read_remote(
        &self,
        address: usize,
        bytes: &mut [u8],
        access: RemoteAccess,
    ) -> Result<(), Errno> {
        let page = address & !(PAGE_SIZE - 1);
        self.reach_page(page).await?;
        let _guard = self.lock.lock(page..page + PAGE_SIZE).await?;
        let mapping = self.mapping_now(page).ok_or(Errno::EFAULT)?;
        if access == RemoteAccess::Checked && mapping.protection.is_empty() {
            return Err(Errno::EFAULT);
        }
        let entry = self.root().look(page);
        let found = if entry.is_present() { None } else { Some(mapping.missing_page(page)?) };
        let physical = found.as_ref().map_or(entry.physical(), PageRef::physical);
        let start = paging::direct_map::<u8>(physical).wrapping_add(address - page);
        // SAFETY: the range is locked, so the entry keeps its page, or `found` does; the bytes lie in it.
        unsafe { FrameSlice::new(start, bytes.len()) }.read(bytes);
        drop(found);
        Ok(())
    }

    /// Writes memory of the program, which need not be the caller's. The bytes lie in one page.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`.
    pub async fn write_remote(
        &self,
        address: usize,
        bytes: &[u8],
        access: RemoteAccess,
    ) -> Result<(), Errno> {
        let page = address & !(PAGE_SIZE - 1);
        self.reach_page(page).await?;
        let _guard = self.lock.lock(page..page + PAGE_SIZE).await?;
        let mapping = self.mapping_now(page).ok_or(Errno::EFAULT)?;
        let is_shared = mapping.flags.contains(Flags::SHARED);
        let may_write = mapping.protection.contains(Protection::WRITE);
        if !may_write && (is_shared || access == RemoteAccess::Checked) {
            return Err(Errno::EFAULT);
        }
        let (physical, _page) = if is_shared {
            let Object::Source(source) = &mapping.backing else { return Err(Errno::EFAULT) };
            let found = source.page(mapping.offset_of(page) / PAGE_SIZE as u64, true)?;
            (found.physical(), Some(found))
        } else {
            (self.own_page(&mapping, page).await?, None)
        };
        let start = paging::direct_map::<u8>(physical).wrapping_add(address - page);
        // SAFETY: as in `read_remote`; the page is the program's own, or one that all who share it may write.
        unsafe { FrameSlice::new(start, bytes.len()) }.write(bytes);
        Ok(())
    }

    /// Makes a page of a private mapping the program's own, with its range locked; returns where it is.
    async fn own_page(&self, mapping: &Mapping<Object>, page: usize) -> Result<u64, Errno> {
        let mut gather = Gather::new();
        let leaf = self.root().leaf(page, &mut gather)?;
        let old = leaf.get();
        let is_own =
            old.is_present() && old.is_counted() && crate::memory::frame::references(old.physical()) == 1;
        let mut physical = old.physical();
        if !is_own {
            let found = if old.is_present() { None } else { Some(mapping.missing_page(page)?) };
            let source = found.as_ref().map_or(old.physical(), PageRef::physical);
            let copy = fault::copy_of(source, mapping)?;
            let copy = if mapping.protection.is_empty() { copy.hidden() } else { copy };
            physical = copy.physical();
            leaf.replace(copy);
            if old.is_present() {
                gather.take(old, 0, page..page + PAGE_SIZE);
            }
        }
        self.finish(&mut gather).await;
        Ok(physical)
    }

    /// Grows a stack for a page that is not mapped.
    async fn reach_page(&self, page: usize) -> Result<(), Errno> {
        if self.mapping_now(page).is_none() {
            let missing = crate::memory::user::PageFault { address: page, write: false };
            self.fault_in(missing).await?;
        }
        Ok(())
    }

    fn mapping_now(&self, page: usize) -> Option<Mapping<Object>> {
        self.state.lock().mappings.get(page).cloned()
    }
}

/// The pages of a mapping that no table has yet.
trait MissingPage {
    /// The page as the object has it.
    fn missing_page(&self, page: usize) -> Result<PageRef, Errno>;
}

impl MissingPage for Mapping<Object> {
    fn missing_page(&self, page: usize) -> Result<PageRef, Errno> {
        match &self.backing {
            Object::Anonymous(_) => Ok(PageRef::zero()),
            // As in Linux, a page behind the end of a file cannot be looked at.
            Object::Source(source) => {
                source.page(self.offset_of(page) / PAGE_SIZE as u64, false).map_err(|_| Errno::EFAULT)
            }
        }
    }
}
