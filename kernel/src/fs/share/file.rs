//! Open files of a shared folder.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use heddle_kernel_core::ninep::{MessageWriter, Reader, kind};
use linux_raw_sys::general as linux;

use crate::device::share::GiveUp;
use crate::error::{Errno, TryResult};
use crate::fs::share::handle::Handle;
use crate::fs::share::node::SharedNode;
use crate::fs::share::{CHUNK, Fid, handle};
use crate::fs::{File, IoBuffer, OpenFile, StatusFlags};
use crate::memory::MapSource;
use crate::sync::SpinLock;

/// An open file.
pub struct SharedFile {
    node: Arc<SharedNode>,
    /// The handle; a directory is opened for each listing.
    handle: Option<Arc<Handle>>,
    /// A handle by which the host appends, once it was needed.
    appender: SpinLock<Option<Arc<Handle>>>,
    /// Opened for reading and writing, so that mappings can be stored by the handle.
    stores: bool,
    /// The losses of the file that were told of, or came before it was opened.
    told_losses: AtomicU64,
}

impl SharedFile {
    pub(super) const fn directory(node: Arc<SharedNode>) -> Self {
        let appender = SpinLock::new(None);
        Self { node, handle: None, appender, stores: false, told_losses: AtomicU64::new(0) }
    }

    pub(super) fn regular(
        node: Arc<SharedNode>,
        handle: Arc<Handle>,
        appender: Option<Arc<Handle>>,
        stores: bool,
    ) -> Self {
        let told_losses = AtomicU64::new(node.state.told_losses());
        Self { node, handle: Some(handle), appender: SpinLock::new(appender), stores, told_losses }
    }

    /// A handle by which bytes are written, at the end or at an offset; whether the host appends by it.
    fn writer(&self, appends: bool) -> Result<(Arc<Handle>, bool), Errno> {
        let handle = self.handle()?;
        if appends && let Some(appender) = self.appender()? {
            return Ok((appender, true));
        }
        if handle.appends() && !appends {
            // It was opened to append, and is not to any more.
            let fid = handle::open(&self.node, linux::O_WRONLY)?;
            return Ok((Handle::opened(self.node.clone(), fid, linux::O_WRONLY)?, false));
        }
        Ok((handle.clone(), handle.appends()))
    }

    /// A handle by which the host appends. `None` if the host does not have the file by its name any more and there was
    /// none before.
    fn appender(&self) -> Result<Option<Arc<Handle>>, Errno> {
        const FLAGS: u32 = linux::O_WRONLY | linux::O_APPEND;
        if let Some(known) = self.appender.lock().clone() {
            return Ok(Some(known));
        }
        let fid = match handle::open(&self.node, FLAGS) {
            Ok(fid) => fid,
            Err(error @ (Errno::EINTR | Errno::ENOMEM)) => return Err(error),
            Err(_) => return Ok(None),
        };
        let opened = Handle::opened(self.node.clone(), fid, FLAGS)?;
        let before = self.appender.lock().replace(opened.clone());
        drop(before);
        Ok(Some(opened))
    }

    /// Where the file ends, which the host does not say by its name any more.
    ///
    /// # Errors
    /// `ESTALE`: it was not opened to be read, so nobody can say.
    fn end_by_reading(&self, fid: &Fid, known: u64) -> Result<u64, Errno> {
        if !self.stores {
            return Err(Errno::ESTALE);
        }
        // Whether the file has so many bytes.
        let has = |bytes: u64| {
            let ask = |writer: &mut MessageWriter<'_>| ask_to_read(writer, fid, bytes - 1, 1);
            fid.server.call(kind::READ, ask, |reader| Ok(reader.u32()? > 0))
        };
        let mut least = if known > 0 && has(known)? { known } else { 0 };
        let mut step = 1;
        while has(least.checked_add(step).ok_or(Errno::EFBIG)?)? {
            least += step;
            step *= 2;
        }
        // It has `least` bytes, and fewer than `step` more.
        while step > 1 {
            let half = step / 2;
            if has(least + half)? {
                least += half;
                step -= half;
            } else {
                step = half;
            }
        }
        Ok(least)
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
        let appends = buffer.appends() || open.flags().contains(StatusFlags::APPEND);
        let (handle, is_by_host) = self.writer(appends)?;
        let fid = handle.fid()?;
        let (state, server) = (&self.node.state, &fid.server);
        let _contents = state.lock_contents()?;
        // The end is where the host has it now.
        let give_up = GiveUp::Forget;
        let length = if appends { self.node.asked_length(give_up)? } else { self.node.length(give_up)? };
        let before = if appends && length.is_lost && !is_by_host {
            self.end_by_reading(fid, length.bytes)?
        } else {
            length.bytes
        };
        let offset = if appends { before } else { offset };
        let count = buffer.remaining().min(CHUNK);
        // Looked at without taking it: the server says how much it took.
        let fill = |place: &mut [u8]| {
            buffer.peek(place)?;
            Ok(())
        };
        state.change(server);
        let written = server.write(fid, offset, count, fill, |bytes| {
            if appends && length.is_lost {
                // The place is not known; who reads asks the host.
                state.pages.distrust();
                return;
            }
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
        self.node.truncate(size)?;
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

    fn loss(&self) -> Result<(), Errno> {
        let told = self.told_losses.load(Ordering::Relaxed);
        let Some((losses, error)) = self.node.state.tell_loss(told) else { return Ok(()) };
        self.told_losses.store(losses, Ordering::Relaxed);
        Err(error)
    }
}
