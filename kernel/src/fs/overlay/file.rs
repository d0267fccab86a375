//! An open file of an overlay: the one of the layer that it is in, or since a copy was made that of the copy.

use alloc::sync::Arc;

use crate::error::{Errno, TryResult};
use crate::fs::inode::{FileType, Inode, Opening};
use crate::fs::overlay::node::{LayerEntry, OverlayNode};
use crate::fs::range_lock::Ranges;
use crate::fs::{File, IoBuffer, OpenFile, Path, Sought, StatusFlags};
use crate::memory::{MapSource, fallible};
use crate::process::Thread;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, Watch};

/// An open file.
struct OverlayFile {
    node: Arc<OverlayNode>,
    /// The file of a layer, and whether that is the upper one.
    real: SpinLock<RealFile>,
    /// The one that was opened first, whose ranges are the file's.
    first: Arc<OpenFile>,
}

#[derive(Clone)]
struct RealFile {
    open: Arc<OpenFile>,
    is_upper: bool,
}

fn open_real(
    node: &OverlayNode,
    flags: StatusFlags,
    thread: Option<&Arc<Thread>>,
) -> Result<RealFile, Errno> {
    let is_upper = node.is_upper();
    let LayerEntry { layer, entry } = node.real()?;
    let mount = node.overlay.layers.get(layer).ok_or(Errno::EIO)?.mount.clone();
    let place = Path { mount, entry: entry.clone() };
    let opening = Opening { flags, flags_of_call: 0, place: &place, thread };
    let file = entry.node.clone().open(&opening)?;
    Ok(RealFile { open: fallible::try_arc(OpenFile::at(file, flags, place))?, is_upper })
}

pub(super) fn open(node: Arc<OverlayNode>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
    if !matches!(node.kind(), FileType::Regular | FileType::Directory) {
        // The object behind it is in no layer.
        return node.real()?.entry.node.clone().open(opening);
    }
    let real = open_real(&node, opening.flags, opening.thread)?;
    let first = real.open.clone();
    Ok(fallible::try_arc(OverlayFile { node, real: SpinLock::new(real), first })?)
}

impl OverlayFile {
    /// The file that is read and written now.
    fn current(&self) -> Result<Arc<OpenFile>, Errno> {
        let known = self.real.lock().clone();
        if known.is_upper || !self.node.is_upper() || self.node.kind() == FileType::Directory {
            return Ok(known.open);
        }
        let new = open_real(&self.node, known.open.flags(), None)?;
        let open = new.open.clone();
        let before = core::mem::replace(&mut *self.real.lock(), new);
        drop(before);
        Ok(open)
    }

    fn real(&self) -> Arc<OpenFile> {
        self.current().unwrap_or_else(|_| self.first.clone())
    }
}

impl File for OverlayFile {
    fn before_transfer(&self, thread: &Arc<Thread>, events: Events) -> Result<(), Errno> {
        self.current()?.file.before_transfer(thread, events)
    }

    fn held_pages(&self) -> usize {
        self.real().file.held_pages()
    }

    fn writes_once(&self) -> bool {
        self.first.file.writes_once()
    }

    fn seals(&self) -> Result<u32, Errno> {
        self.current()?.file.seals()
    }

    fn add_seals(&self, seals: u32) -> Result<(), Errno> {
        self.current()?.file.add_seals(seals)
    }

    fn read(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        self.current()?.file.read(open, buffer, offset)
    }

    fn write(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        self.current()?.file.write(open, buffer, offset)
    }

    fn poll(&self, open: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        self.real().file.poll(open, watch, events)
    }

    fn is_pollable(&self) -> bool {
        self.first.file.is_pollable()
    }

    fn ioctl(
        &self,
        call: &crate::call::Call<'_>,
        open: &OpenFile,
        request: u32,
        argument: usize,
    ) -> TryResult<usize> {
        self.current()?.file.ioctl(call, open, request, argument)
    }

    fn is_seekable(&self) -> bool {
        self.first.file.is_seekable()
    }

    fn ranges(&self) -> Option<&Ranges> {
        self.first.file.ranges()
    }

    fn size(&self) -> Option<u64> {
        self.real().file.size()
    }

    fn truncate(&self, size: u64) -> Result<bool, Errno> {
        self.current()?.file.truncate(size)
    }

    fn allocate(&self, mode: u32, first: u64, length: u64) -> Result<u64, Errno> {
        self.current()?.file.allocate(mode, first, length)
    }

    fn seek_data(&self, offset: u64, data: bool) -> Result<Sought, Errno> {
        self.current()?.file.seek_data(offset, data)
    }

    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        self.current()?.file.clone().map_source()
    }

    fn map_shared(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        self.current()?.file.clone().map_shared()
    }

    fn loss(&self) -> Result<(), Errno> {
        self.real().file.loss()
    }

    fn mapped_source(self: Arc<Self>) -> Option<Arc<dyn MapSource>> {
        self.real().file.clone().mapped_source()
    }

    fn released(&self, open: &OpenFile) {
        self.node.locks.release_description(open.id());
    }
}
