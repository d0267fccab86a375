//! Open files of a shared folder.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

use heddle_ninep::{Reader, Writer, kind};

use super::node::SharedNode;
use super::{CHUNK, Fid};
use crate::error::{Attempt, Errno};
use crate::file::{File, IoBuffer, Node, OpenFile, StatusFlags};
use crate::memory::{FrameRef, MapSource, PageRef, fallible};
use crate::sync::SpinLock;

const PAGE_BYTES: u64 = 4096;

/// An open file.
pub struct SharedFile {
    node: Arc<SharedNode>,
    /// The opened handle; a directory is opened for each listing.
    fid: Option<Arc<Fid>>,
    pages: SpinLock<Weak<Pages>>,
}

impl SharedFile {
    pub(super) fn directory(node: Arc<SharedNode>) -> Self {
        Self { node, fid: None, pages: SpinLock::new(Weak::new()) }
    }

    pub(super) fn regular(node: Arc<SharedNode>, fid: Fid) -> Result<Self, Errno> {
        Ok(Self { node, fid: Some(fallible::try_arc(fid)?), pages: SpinLock::new(Weak::new()) })
    }

    fn fid(&self) -> Result<&Arc<Fid>, Errno> {
        self.fid.as_ref().ok_or(Errno::EISDIR)
    }
}

fn ask_to_read(writer: &mut Writer<'_>, fid: &Fid, offset: u64, count: usize) {
    writer.u32(fid.number);
    writer.u64(offset);
    writer.u32(count as u32);
}

fn contents<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Errno> {
    let length = reader.u32().map_err(Errno::from)? as usize;
    reader.bytes(length).map_err(Errno::from)
}

impl File for SharedFile {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Attempt<usize> {
        let fid = self.fid()?;
        let count = buffer.remaining().min(CHUNK);
        fid.server.ask(
            kind::READ,
            |writer| {
                ask_to_read(writer, fid, offset, count);
                Ok(())
            },
            |reader| Ok(buffer.copy_out(contents(reader)?)?),
        )
    }

    fn write(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Attempt<usize> {
        let fid = self.fid()?;
        let offset = if open.flags().contains(StatusFlags::APPEND) { self.node.size()? } else { offset };
        let count = buffer.remaining().min(CHUNK);
        let written = fid.server.ask(
            kind::WRITE,
            |writer| {
                ask_to_read(writer, fid, offset, count);
                // Looked at without taking it: the server says how much it took.
                buffer.peek(writer.space(count).ok_or(Errno::EIO)?)?;
                Ok(())
            },
            |reader| Ok(reader.u32().map_err(Errno::from)? as usize),
        )?;
        buffer.skip(written.min(count));
        Ok(written.min(count))
    }

    fn is_pollable(&self) -> bool {
        false
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn size(&self) -> Option<u64> {
        self.fid.as_ref().and_then(|_| self.node.size().ok())
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.fid()?;
        self.node.truncate(size)
    }

    fn allocate(&self, _: u32, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn released(&self, open: &OpenFile) {
        if let Ok(Some(locks)) = self.node.locks(false) {
            locks.release_description(open.id());
        }
    }

    fn keeps_mapped_writes(&self) -> bool {
        false
    }

    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        let fid = self.fid.as_ref().ok_or(Errno::ENODEV)?;
        let mut pages = self.pages.lock();
        if let Some(pages) = pages.upgrade() {
            return Ok(pages);
        }
        let (node, fid) = (self.node.clone(), fid.clone());
        let made = fallible::try_arc(Pages { node, fid, cache: SpinLock::new(BTreeMap::new()) })?;
        *pages = Arc::downgrade(&made);
        Ok(made)
    }
}

/// The pages of a file that programs have mapped, each as it was when it was first touched.
struct Pages {
    node: Arc<SharedNode>,
    fid: Arc<Fid>,
    cache: SpinLock<BTreeMap<u64, FrameRef>>,
}

impl Pages {
    fn load(&self, index: u64) -> Result<FrameRef, Errno> {
        let offset = index.checked_mul(PAGE_BYTES).ok_or(Errno::EFBIG)?;
        if offset >= self.node.size()? {
            return Err(Errno::EFAULT);
        }
        let frame = FrameRef::allocate_zeroed()?;
        let mut done = 0;
        while done < PAGE_BYTES as usize {
            let read = |reader: &mut Reader<'_>| {
                let length = reader.u32()? as usize;
                let bytes = reader.bytes(length)?;
                frame.write(done, &bytes[..bytes.len().min(PAGE_BYTES as usize - done)]);
                Ok(bytes.len())
            };
            let left = PAGE_BYTES as usize - done;
            let write = |writer: &mut Writer<'_>| ask_to_read(writer, &self.fid, offset + done as u64, left);
            match self.fid.server.call(kind::READ, write, read)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(frame)
    }
}

impl MapSource for Pages {
    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        if write {
            return Err(Errno::EIO);
        }
        if let Some(frame) = self.cache.lock().get(&index) {
            return Ok(PageRef::Counted(frame.clone()));
        }
        let frame = self.load(index)?;
        let mut cache = self.cache.lock();
        // Somebody else may have been faster; everybody maps the same page.
        if let Some(frame) = cache.get(&index) {
            return Ok(PageRef::Counted(frame.clone()));
        }
        fallible::try_insert(&mut cache, index, frame.clone())?;
        Ok(PageRef::Counted(frame))
    }
}
