//! Open files of a shared folder.

use alloc::sync::Arc;

use heddle_kernel_core::ninep::{MessageWriter, Reader, kind};

use crate::device::share::GiveUp;
use crate::error::{Errno, TryResult};
use crate::fs::share::handle::Handle;
use crate::fs::share::node::SharedNode;
use crate::fs::share::{CHUNK, Fid};
use crate::fs::{File, IoBuffer, OpenFile, StatusFlags};
use crate::memory::MapSource;

/// An open file.
pub struct SharedFile {
    node: Arc<SharedNode>,
    /// The handle; a directory is opened for each listing.
    handle: Option<Arc<Handle>>,
    /// Opened for reading and writing, so that mappings can be stored by the handle.
    stores: bool,
}

impl SharedFile {
    pub(super) const fn directory(node: Arc<SharedNode>) -> Self {
        Self { node, handle: None, stores: false }
    }

    pub(super) const fn regular(node: Arc<SharedNode>, handle: Arc<Handle>, stores: bool) -> Self {
        Self { node, handle: Some(handle), stores }
    }

    fn handle(&self) -> Result<&Arc<Handle>, Errno> {
        self.handle.as_ref().ok_or(Errno::EISDIR)
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
        let handle = self.handle()?;
        let state = &self.node.state;
        let _contents = state.lock_contents()?;
        let length = self.node.length(GiveUp::Forget)?;
        if length.is_lost {
            state.pages.read_lost(handle, length.bytes, buffer, offset)
        } else {
            state.pages.read(handle, length.bytes, buffer, offset)
        }
    }

    fn write(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let fid = self.handle()?.fid()?;
        let (state, server) = (&self.node.state, &fid.server);
        let _contents = state.lock_contents()?;
        let appends = buffer.appends() || open.flags().contains(StatusFlags::APPEND);
        // The end is where the host has it now.
        let give_up = GiveUp::Forget;
        let before =
            if appends { self.node.asked_length(give_up)?.bytes } else { self.node.size(give_up)? };
        let offset = if appends { before } else { offset };
        let count = buffer.remaining().min(CHUNK);
        // Looked at without taking it: the server says how much it took.
        let fill = |place: &mut [u8]| {
            buffer.peek(place)?;
            Ok(())
        };
        state.change(server);
        let written = server.write(fid, offset, count, fill, |bytes| {
            state.pages.was_written(server, offset, bytes, before);
            state.grow(server, offset + bytes.len() as u64);
        });
        state.change(server);
        let written = written?;
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
        self.handle.as_ref().and_then(|_| self.node.size(GiveUp::Forget).ok())
    }

    fn truncate(&self, size: u64) -> Result<bool, Errno> {
        self.handle()?;
        let state = &self.node.state;
        let _contents = state.lock_contents()?;
        let before = self.node.size(GiveUp::Forget)?;
        self.node.truncate(size)?;
        state.pages.was_truncated(self.node.server(), before, size);
        Ok(true)
    }

    fn allocate(&self, _: u32, _: u64, _: u64) -> Result<u64, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn released(&self, open: &OpenFile) {
        let Some(state) = self.handle.as_ref().map(|_| &self.node.state) else { return };
        let flags = open.flags();
        if flags.contains(StatusFlags::EXECUTE) {
            state.end_executing();
        } else if flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR) {
            state.end_writing();
        }
        state.locks.release_description(open.id());
    }

    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        let handle = self.handle.as_ref().ok_or(Errno::ENODEV)?;
        self.node.state.map(&self.node, handle, self.stores)
    }

    fn mapped_source(self: Arc<Self>) -> Option<Arc<dyn MapSource>> {
        self.node.state.source()
    }
}
