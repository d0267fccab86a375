//! Files of a shared folder as sources of mappings.

use alloc::sync::Arc;
use core::ops::Range;

use crate::device::share::GiveUp;
use crate::error::Errno;
use crate::fs::share::handle::Handle;
use crate::fs::share::node::SharedNode;
use crate::fs::share::pages::PAGE;
use crate::memory::source::Written;
use crate::memory::{FrameRef, MapSource, PageRef, fallible, writeback};
use crate::sched::detour;
use crate::sync::SpinLock;

/// A source of mappings, from the first mapping of a file until the last is gone and what was written is stored.
pub struct Mapped {
    node: Arc<SharedNode>,
    reader: Arc<Handle>,
    /// A handle that was opened for writing.
    writer: SpinLock<Option<Arc<Handle>>>,
    /// Pages written until this moment are to be stored, since those who wrote it have ended their mappings.
    ended_at: u64,
}

impl Mapped {
    pub fn new(node: Arc<SharedNode>, reader: Arc<Handle>) -> Result<Arc<Self>, Errno> {
        Self::ending(node, reader, 0)
    }

    fn ending(node: Arc<SharedNode>, reader: Arc<Handle>, ended_at: u64) -> Result<Arc<Self>, Errno> {
        fallible::try_arc_with(|| Self { node, reader, writer: SpinLock::new(None), ended_at })
    }

    /// The handle by which pages are read.
    pub const fn reader(&self) -> &Arc<Handle> {
        &self.reader
    }

    /// Lets the pages be stored by this handle.
    pub fn store_by(&self, handle: &Arc<Handle>) {
        let mut writer = self.writer.lock();
        if writer.is_none() {
            *writer = Some(handle.clone());
        }
    }

    /// Sends a page to the host, as far as the file reaches.
    fn send(&self, index: u64, frame: &FrameRef) -> Result<(), Errno> {
        let handle = self.writer.lock().clone().ok_or(Errno::EIO)?;
        let (fid, state) = (handle.fid()?, &self.node.state);
        let server = &fid.server;
        let _contents = state.lock_contents_to_store();
        let offset = index * PAGE;
        let length = self.node.size(GiveUp::Never)?.saturating_sub(offset).min(PAGE) as usize;
        state.change(server);
        let mut done = 0;
        while done < length {
            let fill = |place: &mut [u8]| {
                frame.bytes().part(done..length).read(place);
                Ok(())
            };
            let sent = server.write(fid, offset + done as u64, length - done, fill, |_| {});
            match sent.map_err(crate::process::executable::as_error)? {
                0 => return Err(Errno::EIO),
                count => done += count,
            }
        }
        state.change(server);
        writeback::note_progress(server.device);
        Ok(())
    }

    fn store_pages(&self, pages: Range<u64>, clean: u64) -> Result<(), Errno> {
        self.node.state.pages.store(pages, clean, |index, frame| self.send(index, frame))
    }

    /// Stores what was written until a moment, or notes that it is lost. Pages that somebody has mapped again since, by
    /// this source or another, count as written still.
    fn finish_until(&self, moment: u64) {
        let send = |index: u64, frame: &FrameRef| {
            let sent = self.send(index, frame);
            // It may be many pages, for nobody who waits for them.
            let _ = detour::give_way();
            sent
        };
        if let Err(error) = self.node.state.pages.store(0..u64::MAX, moment, send) {
            ::log::warn!("a mapped file of a shared folder could not be stored: {error:?}");
            // Nobody would store them later, and what is read must be what the host has.
            self.node.state.pages.forget_written(self.node.server(), moment);
            self.node.state.note_loss(error);
        }
    }

    /// Has a successor of this source finished by the folder's storer, so that who has ended the last mapping does not
    /// wait for a host that hangs. It is finished here where there is no memory for that.
    fn hand_over(&self, moment: u64) {
        let Ok(successor) = Self::ending(self.node.clone(), self.reader.clone(), moment) else {
            return self.finish_until(moment);
        };
        *successor.writer.lock() = self.writer.lock().clone();
        let source: Arc<dyn MapSource> = successor.clone();
        if writeback::register(&source).is_err() {
            return successor.finish();
        }
        // Whoever stores or maps the file meanwhile finds this one.
        self.node.state.adopt(&successor);
        if writeback::finish_later(&source).is_err() {
            successor.finish();
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Nobody writes by these mappings any more. There may be new ones, which write later.
        let Some((_, moment)) = self.node.state.pages.written(&(0..u64::MAX)) else { return };
        match self.node.state.mapping() {
            // The written pages belong to those who map the file by another source, which stores it all at its end.
            Some(other) => {
                if let Some(writer) = self.writer.lock().take() {
                    other.store_by(&writer);
                }
            }
            None => self.hand_over(moment),
        }
    }
}

impl MapSource for Mapped {
    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        let size = || self.node.size(GiveUp::Never);
        self.node.state.pages.page(&self.reader, index, size, write).map(PageRef::Counted)
    }

    fn resident(&self, index: u64) -> Option<PageRef> {
        self.node.state.pages.resident(index).map(PageRef::Counted)
    }

    fn written(&self, pages: &Range<u64>) -> Option<Written> {
        let (pages, moment) = self.node.state.pages.written(pages)?;
        Some(Written { pages, moment })
    }

    fn store(&self, written: &Written, is_unmapped: bool) -> Result<(), Errno> {
        self.store_pages(written.pages.clone(), if is_unmapped { written.moment } else { 0 })
    }

    fn finish(&self) {
        self.finish_until(self.ended_at);
    }

    fn store_unmapped(&self) {
        if !self.node.state.lazy.lock().is_pinning() {
            self.node.state.pages.give_up(&self.node.fid.server, |index, frame| self.send(index, frame));
        }
    }

    fn identity(&self) -> (u64, u64) {
        self.node.identity()
    }
}
