//! Open files of a shared folder.

use alloc::sync::Arc;

use heddle_kernel_core::ninep::{MessageWriter, Reader, kind};

use crate::error::{Errno, TryResult};
use crate::fs::share::node::SharedNode;
use crate::fs::share::{CHUNK, Fid};
use crate::fs::{File, IoBuffer, OpenFile, StatusFlags};
use crate::memory::MapSource;

/// An open file.
pub struct SharedFile {
    node: Arc<SharedNode>,
    /// The opened handle; a directory is opened for each listing.
    fid: Option<Arc<Fid>>,
    /// Opened for reading and writing, so that mappings can be stored by the handle.
    stores: bool,
}

impl SharedFile {
    pub(super) const fn directory(node: Arc<SharedNode>) -> Self {
        Self { node, fid: None, stores: false }
    }

    pub(super) const fn regular(node: Arc<SharedNode>, fid: Arc<Fid>, stores: bool) -> Self {
        Self { node, fid: Some(fid), stores }
    }

    fn fid(&self) -> Result<&Arc<Fid>, Errno> {
        self.fid.as_ref().ok_or(Errno::EISDIR)
    }
}

/// The fields of a request to read, and the first of one to write.
pub(super) fn ask_to_read(writer: &mut MessageWriter<'_>, fid: &Fid, offset: u64, count: usize) {
    writer.u32(fid.number);
    writer.u64(offset);
    writer.u32(count as u32);
}

/// Reads from the host, at most a message's worth.
pub(super) fn read(fid: &Fid, buffer: &mut IoBuffer<'_>, offset: u64, count: usize) -> TryResult<usize> {
    fid.server.ask(
        kind::READ,
        |writer| {
            ask_to_read(writer, fid, offset, count);
            Ok(())
        },
        |reader| Ok(buffer.copy_out(contents(reader)?)?),
    )
}

fn contents<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Errno> {
    let length = reader.u32().map_err(Errno::from)? as usize;
    reader.bytes(length).map_err(Errno::from)
}

impl File for SharedFile {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let fid = self.fid()?;
        let state = self.node.state()?;
        let _contents = state.lock_contents()?;
        match state.pages() {
            Some(pages) => pages.read(fid, buffer, offset),
            None => read(fid, buffer, offset, buffer.remaining().min(CHUNK)),
        }
    }

    fn write(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let fid = self.fid()?;
        let state = self.node.state()?;
        let _contents = state.lock_contents()?;
        let appends = buffer.appends() || open.flags().contains(StatusFlags::APPEND);
        let offset = if appends { self.node.size()? } else { offset };
        let count = buffer.remaining().min(CHUNK);
        // Kept until the exchange is over: the end of the last use of a handle is a message itself.
        let mut pages = None;
        // Looked at without taking it: the server says how much it took.
        let fill = |place: &mut [u8]| {
            buffer.peek(place)?;
            Ok(())
        };
        let written = fid.server.write(fid, offset, count, fill, |bytes| {
            pages = state.pages();
            if let Some(pages) = &pages {
                pages.was_written(offset, bytes);
            }
        })?;
        buffer.skip(written);
        Ok(written)
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

    fn truncate(&self, size: u64) -> Result<bool, Errno> {
        self.fid()?;
        let state = self.node.state()?;
        let _contents = state.lock_contents()?;
        let before = self.node.size()?;
        self.node.truncate(size)?;
        if let Some(pages) = state.pages() {
            pages.was_truncated(before, size);
        }
        Ok(true)
    }

    fn allocate(&self, _: u32, _: u64, _: u64) -> Result<u64, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn released(&self, open: &OpenFile) {
        let Some(state) = self.fid.as_ref().and_then(|_| self.node.state().ok()) else { return };
        let flags = open.flags();
        if flags.contains(StatusFlags::EXECUTE) {
            state.end_executing();
        } else if flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR) {
            state.end_writing();
        }
        state.locks.release_description(open.id());
    }

    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        let fid = self.fid.as_ref().ok_or(Errno::ENODEV)?;
        self.node.state()?.map(&self.node, fid, self.stores)
    }

    fn mapped_source(self: Arc<Self>) -> Option<Arc<dyn MapSource>> {
        self.node.state().ok()?.source()
    }
}
