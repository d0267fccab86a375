//! The guest's state of a file in a shared folder, the same for all nodes of that file.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicI32, Ordering};

use crate::error::Errno;
use crate::fs::lock::FileLocks;
use crate::fs::pipe::Pipe;
use crate::fs::share::Fid;
use crate::fs::share::node::SharedNode;
use crate::fs::share::pages::{Mapped, SharedPages};
use crate::memory::{MapSource, fallible, writeback};
use crate::sched::detour::{DetourGuard, DetourLock};
use crate::sync::SpinLock;

/// The state of a file while somebody has it open.
pub struct FileState {
    /// The advisory locks.
    pub locks: FileLocks,
    /// Open descriptions that may write; below zero, how many programs run from it.
    writers: AtomicI32,
    /// The pipe of a FIFO, while somebody has it open.
    pipe: SpinLock<Weak<Pipe>>,
    mapped: SpinLock<Mappings>,
    /// Whoever reads or writes bytes holds it, until the host has answered: others see all of a write or nothing of it,
    /// and what the host has and what is kept of it here change in the same order.
    contents: DetourLock,
}

/// The pages of the file, from the first mapping on until the last is gone and what was written is stored.
#[derive(Default)]
struct Mappings {
    pages: Option<Arc<SharedPages>>,
    source: Weak<Mapped>,
    /// How many sources there are whose end is not complete.
    sources: usize,
}

impl FileState {
    pub fn new() -> Self {
        Self {
            locks: FileLocks::new(),
            writers: AtomicI32::new(0),
            pipe: SpinLock::new(Weak::new()),
            mapped: SpinLock::new(Mappings::default()),
            contents: DetourLock::new(),
        }
    }

    /// Waits until nobody else reads or writes bytes.
    ///
    /// # Errors
    /// `EINTR`: the thread was killed meanwhile.
    pub fn lock_contents(&self) -> Result<DetourGuard<'_>, Errno> {
        self.contents.lock_killably().ok_or(Errno::EINTR)
    }

    /// The same for what has to be stored, whatever becomes of the thread.
    pub fn lock_contents_to_store(&self) -> DetourGuard<'_> {
        self.contents.lock()
    }

    /// Counts an open description that may write.
    pub fn begin_writing(&self) -> Result<(), Errno> {
        self.count(|count| (count >= 0).then_some(count + 1))
    }

    /// Counts a program that runs from the file.
    pub fn begin_executing(&self) -> Result<(), Errno> {
        self.count(|count| (count <= 0).then_some(count - 1))
    }

    fn count(&self, change: impl FnMut(i32) -> Option<i32>) -> Result<(), Errno> {
        let counted = self.writers.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
        counted.map(drop).map_err(|_| Errno::ETXTBSY)
    }

    /// Takes back what was counted last.
    pub fn end_writing(&self) {
        self.writers.fetch_sub(1, Ordering::Release);
    }

    /// The same for a program.
    pub fn end_executing(&self) {
        self.writers.fetch_add(1, Ordering::Release);
    }

    /// The pipe, made if nobody has the FIFO open.
    pub fn pipe(&self) -> Result<Arc<Pipe>, Errno> {
        let mut current = self.pipe.lock();
        if let Some(pipe) = current.upgrade() {
            return Ok(pipe);
        }
        let pipe = Pipe::new(true)?;
        *current = Arc::downgrade(&pipe);
        Ok(pipe)
    }

    /// The file's pages, if it is mapped.
    pub fn pages(&self) -> Option<Arc<SharedPages>> {
        self.mapped.lock().pages.clone()
    }

    /// The source of the file's mappings.
    pub fn source(&self) -> Option<Arc<dyn MapSource>> {
        let source = self.mapped.lock().source.upgrade()?;
        Some(source)
    }

    /// The same, made for the first of them.
    pub fn map(
        self: &Arc<Self>,
        node: &Arc<SharedNode>,
        fid: &Arc<Fid>,
        may_write: bool,
    ) -> Result<Arc<dyn MapSource>, Errno> {
        // The host is not asked with the lock held.
        let size = node.size()?;
        let mut mapped = self.mapped.lock();
        let pages = match &mapped.pages {
            Some(pages) => pages.clone(),
            None => SharedPages::new(node.clone(), fid.clone(), size)?,
        };
        if may_write {
            pages.store_by(fid);
        }
        if let Some(source) = mapped.source.upgrade() {
            return Ok(source);
        }
        // One that is dropped counts itself out, so there must be none that was not counted in.
        let source = fallible::try_arc_with(|| Mapped::new(self.clone(), pages.clone()))?;
        mapped.sources += 1;
        mapped.source = Arc::downgrade(&source);
        mapped.pages = Some(pages);
        drop(mapped);
        let source: Arc<dyn MapSource> = source;
        writeback::register(&source)?;
        Ok(source)
    }

    /// A source is at its end, and what was written by it is stored.
    pub fn unmapped(&self) {
        let mut mapped = self.mapped.lock();
        mapped.sources -= 1;
        let last = if mapped.sources == 0 { mapped.pages.take() } else { None };
        drop(mapped);
        drop(last);
    }
}
