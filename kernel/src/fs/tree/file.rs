//! Reading, writing and mapping the nodes of a tree.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryError, TryResult};
use crate::fs::buffer::Atomicity;
use crate::fs::flags::FileFlags;
use crate::fs::inode::{Inode, Metadata};
use crate::fs::range_lock::Ranges;
use crate::fs::tree::content::Content;
use crate::fs::tree::node::{Body, SET_ID};
use crate::fs::tree::page::{PAGE, PAGE_BYTES};
use crate::fs::tree::seals::SharedMapping;
use crate::fs::tree::{TreeNode, page};
use crate::fs::xattr::CAPABILITY;
use crate::fs::{File, FileType, IoBuffer, OpenFile, Sought, StatusFlags};
use crate::memory::{MapSource, PageRef};
use crate::process::Thread;
use crate::sync::SpinLock;
use crate::wait::queue::Events;

/// A bit of [`TreeNode::mapped`]: the file has been mapped.
const MAPPED: u8 = 1;
/// A bit of [`TreeNode::mapped`]: it has been mapped shared.
const SHARED: u8 = 2;

impl TreeNode {
    fn content(&self) -> Result<&SpinLock<Content>, Errno> {
        match &self.body {
            Body::Regular(content) => Ok(content),
            Body::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Whether somebody has mapped the file so that changes are seen by others: then no page is the image's own, which
    /// a write would have to take away again.
    fn is_shared(&self) -> bool {
        self.mapped.load(Ordering::Relaxed) & SHARED != 0
    }

    fn is_sealed(&self, seals: u32) -> bool {
        self.seals.bits() & seals != 0
    }

    /// Notes a change of the contents.
    fn written(&self) {
        self.attributes.lock().touch();
    }

    /// A change of the contents takes the set-id bits away, and the file's capabilities. The group's bit without the
    /// right to execute stays for a member.
    fn lose_privileges(&self, is_member: bool) {
        {
            let mut attributes = self.attributes.lock();
            let has_group = attributes.permissions & linux::S_IXGRP != 0 || !is_member;
            attributes.permissions &= !if has_group { SET_ID } else { linux::S_ISUID };
        }
        // None is what most files have.
        let _ = self.extended.remove(CAPABILITY);
    }
}

impl File for TreeNode {
    fn held_pages(&self) -> usize {
        let Body::Regular(content) = &self.body else { return 0 };
        let has_name = self.attributes.lock().links > 0;
        if has_name { 0 } else { usize::try_from(content.lock().pages()).unwrap_or(usize::MAX) }
    }

    /// `CAP_FSETID` keeps the set-id bits of what its holder writes.
    fn before_transfer(&self, thread: &Arc<Thread>, events: Events) -> Result<(), Errno> {
        if events.contains(Events::OUT) && self.kind == FileType::Regular {
            let (is_set_id, gid) = {
                let attributes = self.attributes.lock();
                (attributes.permissions & SET_ID != 0, attributes.gid)
            };
            let credentials = is_set_id.then(|| thread.credentials());
            if let Some(credentials) = credentials.filter(|who| !who.is_capable(linux::CAP_FSETID)) {
                self.lose_privileges(credentials.is_in_group(gid));
            } else if self.extended.has(CAPABILITY) {
                let _ = self.extended.remove(CAPABILITY);
            }
        }
        Ok(())
    }

    fn read(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let content = self.content()?;
        let (mut read, begin, mut changes) = (0, buffer.mark(), 0);
        let is_alone = buffer.unity() == Atomicity::Alone;
        while buffer.remaining() > 0 {
            let at = offset.saturating_add(read as u64);
            let (source, length) = {
                let content = content.lock();
                if is_alone && read == 0 {
                    if self.ranges.are_used() {
                        return Err(TryError::WouldBlock);
                    }
                    changes = self.ranges.changes();
                }
                let Some(left) = content.size().checked_sub(at).filter(|&left| left > 0) else { break };
                let within = PAGE - at % PAGE;
                let length = left.min(within).min(buffer.remaining() as u64) as usize;
                (content.source(self.lower(), at / PAGE), length)
            };
            match page::copy_out(&source, at as usize % PAGE_BYTES, length, buffer) {
                Ok(count) => read += count,
                Err(halt) if is_alone => {
                    buffer.rewind(begin);
                    return Err(halt);
                }
                Err(halt) if buffer.done() == 0 || read == 0 => return Err(halt),
                Err(_) => break,
            }
        }
        if is_alone && read > 0 && self.ranges.have_changed(changes) {
            buffer.rewind(begin);
            return Err(TryError::WouldBlock);
        }
        if read > 0 {
            self.accessed_by(open);
        }
        Ok(read)
    }

    #[inline]
    fn accessed_by(&self, open: &OpenFile) {
        if open.flags().contains(StatusFlags::NOATIME) || self.flags.get().contains(FileFlags::NOATIME) {
            return;
        }
        let mut attributes = self.attributes.lock();
        // As with `relatime`; a node of the image stays clean.
        let is_older = attributes.accessed.seconds <= attributes.modified.seconds;
        if attributes.dirty && is_older && !keeps_access_time(open) {
            attributes.accessed = crate::fs::inode::Timestamp::now();
        }
    }

    fn write(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        let mut content = self.content()?.lock();
        if buffer.unity() == Atomicity::Alone && self.ranges.are_used() {
            return Err(TryError::WouldBlock);
        }
        let appends = buffer.appends() || open.flags().contains(StatusFlags::APPEND);
        let offset = if appends { content.size() } else { offset };
        if self.is_sealed(linux::F_SEAL_WRITE | linux::F_SEAL_FUTURE_WRITE) {
            return Err(Errno::EPERM.into());
        }
        let grows = offset.saturating_add(buffer.remaining() as u64) > content.size();
        if grows && self.is_sealed(linux::F_SEAL_GROW) {
            // Linux writes page by page, and the page that would make the file longer fails.
            let room = (content.size() / PAGE * PAGE).saturating_sub(offset);
            if room == 0 {
                return Err(Errno::EPERM.into());
            }
            buffer.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        }
        self.ranges.begin_change();
        // The holder of the range lets others at the contents between two pages.
        let most = if buffer.unity() == Atomicity::Held { PAGE_BYTES } else { usize::MAX };
        let mut written = content.write(&self.tree, self.lower(), buffer, offset, most);
        drop(content);
        while most == PAGE_BYTES
            && buffer.remaining() > 0
            && let Ok(before @ 1..) = written
        {
            let mut content = self.content()?.lock();
            let at = offset + before as u64;
            match content.write(&self.tree, self.lower(), buffer, at, most) {
                Ok(more @ 1..) => written = Ok(before + more),
                _ => break,
            }
        }
        if written.is_ok() {
            self.written();
        }
        written
    }

    fn is_pollable(&self) -> bool {
        false
    }

    fn is_seekable(&self) -> bool {
        matches!(self.kind, FileType::Regular | FileType::Directory)
    }

    fn metadata(&self) -> Metadata {
        Inode::metadata(self)
    }

    fn ranges(&self) -> Option<&Ranges> {
        (self.kind == FileType::Regular).then_some(&self.ranges)
    }

    fn size(&self) -> Option<u64> {
        self.content().ok().map(|content| content.lock().size())
    }

    fn truncate(&self, size: u64) -> Result<bool, Errno> {
        let mut content = self.content()?.lock();
        let seal = match size.cmp(&content.size()) {
            core::cmp::Ordering::Less => linux::F_SEAL_SHRINK,
            core::cmp::Ordering::Equal => 0,
            core::cmp::Ordering::Greater => linux::F_SEAL_GROW,
        };
        if self.is_sealed(seal) {
            return Err(Errno::EPERM);
        }
        self.ranges.begin_change();
        let is_done = content.truncate(&self.tree, self.lower(), size)?;
        drop(content);
        self.written();
        Ok(is_done)
    }

    fn allocate(&self, mode: u32, first: u64, length: u64) -> Result<u64, Errno> {
        const KEEP: u32 = linux::FALLOC_FL_KEEP_SIZE;
        const PUNCH: u32 = linux::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: u32 = linux::FALLOC_FL_ZERO_RANGE;
        let end = first.checked_add(length).ok_or(Errno::EFBIG)?;
        let mut content = self.content()?.lock();
        let (tree, lower) = (&*self.tree, self.lower());
        // As in Linux, memory for bytes that are zeros anyway is no write; and taking some away makes nothing longer.
        let writes = mode & (linux::FALLOC_FL_PUNCH_HOLE | ZERO) != 0;
        let reaches_on = mode != PUNCH && end > content.size();
        if writes && self.is_sealed(linux::F_SEAL_WRITE | linux::F_SEAL_FUTURE_WRITE)
            || reaches_on && self.is_sealed(linux::F_SEAL_GROW)
        {
            return Err(Errno::EPERM);
        }
        self.ranges.begin_change();
        let reached = match mode {
            0 | KEEP => content.allocate(tree, lower, first, end, mode == 0)?,
            PUNCH => content.punch(tree, lower, first, end)?,
            _ if mode & !KEEP == ZERO => {
                let punched = content.punch(tree, lower, first, end)?;
                content.allocate(tree, lower, first, punched, mode == ZERO)?
            }
            _ => return Err(Errno::EOPNOTSUPP),
        };
        drop(content);
        self.written();
        Ok(reached - first)
    }

    fn seek_data(&self, offset: u64, data: bool) -> Result<Sought, Errno> {
        self.content()?.lock().seek(offset, data)
    }

    fn seals(&self) -> Result<u32, Errno> {
        if self.kind == FileType::Regular { Ok(self.seals.bits()) } else { Err(Errno::EINVAL) }
    }

    fn add_seals(&self, seals: u32) -> Result<(), Errno> {
        const KNOWN: u32 = linux::F_SEAL_SEAL
            | linux::F_SEAL_SHRINK
            | linux::F_SEAL_GROW
            | linux::F_SEAL_WRITE
            | linux::F_SEAL_FUTURE_WRITE;
        if self.kind != FileType::Regular || seals & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        self.seals.add(seals)
    }

    fn map_shared(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        if self.kind == FileType::Regular { SharedMapping::of(self) } else { Err(Errno::ENODEV) }
    }

    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        match self.body {
            Body::Regular(_) => Ok(self),
            _ => Err(Errno::ENODEV),
        }
    }

    fn mapped_source(self: Arc<Self>) -> Option<Arc<dyn MapSource>> {
        let mapped = self.mapped.load(Ordering::Relaxed) & MAPPED != 0;
        mapped.then_some(self as Arc<dyn MapSource>)
    }

    fn released(&self, open: &OpenFile) {
        let flags = open.flags();
        if self.kind == FileType::Regular {
            if let Some(leases) = self.leases.get() {
                leases.remove(open);
            }
            if flags.contains(StatusFlags::EXECUTE) {
                self.writers.fetch_add(1, Ordering::Release);
            }
            if flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR) {
                self.writers.fetch_sub(1, Ordering::Release);
            } else {
                self.readers.fetch_sub(1, Ordering::Release);
            }
        }
        self.locks.release_description(open.id());
    }
}

impl MapSource for TreeNode {
    fn mapped(&self, shared: bool) {
        self.mapped.fetch_or(if shared { MAPPED | SHARED } else { MAPPED }, Ordering::Relaxed);
    }

    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        let mut content = self.content()?.lock();
        let page = content.map(&self.tree, self.lower(), index, write, self.is_shared())?;
        drop(content);
        if write {
            self.written();
        }
        Ok(page)
    }

    fn resident(&self, index: u64) -> Option<PageRef> {
        self.content().ok()?.lock().resident(self.lower(), index, self.is_shared())
    }

    fn path(&self) -> Option<Vec<u8>> {
        self.last_place()?.path(&crate::fs::mount::root()?).ok()
    }

    fn identity(&self) -> (u64, u64) {
        (self.tree.device, self.inode)
    }
}

/// Whether reading leaves the access time as it is: the mount says so.
fn keeps_access_time(open: &OpenFile) -> bool {
    open.place.as_ref().is_some_and(|place| place.mount.flags() & linux_raw_sys::general::MS_NOATIME != 0)
}
