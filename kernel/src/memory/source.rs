//! Sources of a mapping's memory besides fresh memory.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use heddle_kernel_core::mapping::Backing;

use crate::error::Errno;
use crate::memory::fallible::try_insert;
use crate::memory::{FrameRef, PageRef};
use crate::sync::SpinLock;

/// An object whose pages can be mapped: a file, or memory that processes share.
pub trait MapSource: Any + Send + Sync {
    /// Page `index` of the object. With `write`, the page must be one that all who map the object share, in a
    /// counted frame, because it is about to be mapped writable; holes are filled. Without it, a hole may be the page
    /// of zeros. Never waits.
    ///
    /// # Errors
    /// `ENOMEM`; anything else, for example beyond the end of the file, becomes `SIGBUS`.
    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno>;

    /// Told before the object is mapped; `shared` if changes through the mapping are others' to see.
    fn mapped(&self, shared: bool) {
        let _ = shared;
    }

    /// The page, if it is in memory and can be mapped for reading at once. Faults bring in such pages around the one
    /// they are about.
    fn resident(&self, index: u64) -> Option<PageRef> {
        let _ = index;
        None
    }

    /// Whether it is memory that processes share, and no file.
    fn is_memory(&self) -> bool {
        false
    }

    /// A pair of numbers that no other object has or will have: the key of a futex in shared memory. An object that
    /// only stands for another object has that object's.
    fn serial(&self) -> (u64, u64) {
        self.identity()
    }

    /// The object that a child maps in place of this one; `None` for this one itself.
    fn for_child(&self) -> Option<Result<Arc<dyn MapSource>, Errno>> {
        None
    }

    /// Those of these pages that have been handed out to be written and not been stored since, where storing them means
    /// more than keeping them.
    fn written(&self, pages: &Range<u64>) -> Option<Written> {
        let _ = pages;
        None
    }

    /// Stores what was written to pages. If they are in no program's reach since [`MapSource::written`] told of them,
    /// they count as stored until they are handed out again.
    ///
    /// # Errors
    /// The error that keeps them from being stored.
    fn store(&self, written: &Written, is_unmapped: bool) -> Result<(), Errno> {
        let _ = (written, is_unmapped);
        Ok(())
    }

    /// Releases pages that are not mapped, where they can be read again, after storing what was written of them. May
    /// wait for the host, for ever if that hangs.
    fn store_unmapped(&self) {}

    /// Stores what was written, after the last mapping has ended, or notes that it is lost. May wait likewise.
    fn finish(&self) {}

    /// The path shown in `/proc/PID/maps`.
    fn path(&self) -> Option<Vec<u8>> {
        None
    }

    /// Device and inode numbers shown in `/proc/PID/maps`.
    fn identity(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// The number of an object without an inode; none is ever given twice.
pub struct SerialNumber(u64);

impl SerialNumber {
    /// For [`MapSource::serial`].
    pub const fn pair(&self) -> (u64, u64) {
        // No file system has this device.
        (u64::MAX, self.0)
    }
}

impl Default for SerialNumber {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Pages of an object that were written.
#[derive(Clone, Debug)]
pub struct Written {
    /// All of them are among these.
    pub pages: Range<u64>,
    /// When that was found out, in the object's own time.
    pub moment: u64,
}

/// The source of a mapping's memory.
#[derive(Clone)]
pub enum Object {
    /// Memory of the process's own, zeros at first; the name is for `/proc/PID/maps`.
    Anonymous(Option<&'static str>),
    /// A file or shared memory.
    Source(Arc<dyn MapSource>),
}

impl Backing for Object {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Anonymous(name), Self::Anonymous(other)) => name == other,
            (Self::Source(source), Self::Source(other)) => Arc::ptr_eq(source, other),
            _ => false,
        }
    }

    fn has_offsets(&self) -> bool {
        matches!(self, Self::Source(_))
    }
}

/// Memory that a process shares with its children: `MAP_SHARED | MAP_ANONYMOUS`.
#[derive(Default)]
pub struct SharedMemory {
    serial: SerialNumber,
    pages: SpinLock<BTreeMap<u64, FrameRef>>,
}

impl SharedMemory {
    /// How many of its pages are in memory.
    pub fn resident_pages(&self) -> usize {
        self.pages.lock().len()
    }
}

impl MapSource for SharedMemory {
    fn serial(&self) -> (u64, u64) {
        self.serial.pair()
    }

    fn page(&self, index: u64, _write: bool) -> Result<PageRef, Errno> {
        let mut pages = self.pages.lock();
        if let Some(frame) = pages.get(&index) {
            return Ok(PageRef::Counted(frame.clone()));
        }
        let frame = FrameRef::allocate_zeroed()?;
        try_insert(&mut pages, index, frame.clone())?;
        Ok(PageRef::Counted(frame))
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn path(&self) -> Option<Vec<u8>> {
        crate::memory::fallible::try_to_vec(b"/dev/zero (deleted)").ok()
    }
}
