//! Seals of a `memfd`, fcntl(2): what nobody may do to a file any more.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::tree::node::TreeNode;
use crate::memory::{MapSource, PageRef, fallible};

/// `F_SEAL_` bits, and above them how many shared mappings there are that may become writable: the two are looked at
/// and changed in one step, since `F_SEAL_WRITE` is refused beside such a mapping and refuses another.
pub struct Seals(AtomicU32);

/// One mapping.
const MAPPING: u32 = 1 << 8;
const BITS: u32 = MAPPING - 1;

impl Seals {
    pub const fn new(bits: u32) -> Self {
        Self(AtomicU32::new(bits))
    }

    pub fn bits(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & BITS
    }

    /// Lets the file be sealed, or not, as it was made.
    pub fn allow(&self, is_allowed: bool) {
        self.0.store(if is_allowed { 0 } else { linux::F_SEAL_SEAL }, Ordering::Relaxed);
    }

    /// Adds seals.
    ///
    /// # Errors
    /// `EPERM` (sealed against it), `EBUSY` (`F_SEAL_WRITE` beside a shared mapping).
    pub fn add(&self, seals: u32) -> Result<(), Errno> {
        let change = |word: u32| {
            if word & linux::F_SEAL_SEAL != 0 {
                return Err(Errno::EPERM);
            }
            let is_new = seals & !word & linux::F_SEAL_WRITE != 0;
            if is_new && word >= MAPPING { Err(Errno::EBUSY) } else { Ok(word | seals) }
        };
        self.change(change)
    }

    fn change(&self, change: impl Fn(u32) -> Result<u32, Errno>) -> Result<(), Errno> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            match self.0.compare_exchange_weak(word, change(word)?, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(found) => word = found,
            }
        }
    }

    /// A shared mapping of a file that is open for writing begins.
    fn map(&self) -> Result<(), Errno> {
        self.change(|word| {
            if word & linux::F_SEAL_WRITE != 0 {
                Err(Errno::EPERM)
            } else {
                word.checked_add(MAPPING).ok_or(Errno::ENOMEM)
            }
        })
    }

    fn unmap(&self) {
        self.0.fetch_sub(MAPPING, Ordering::AcqRel);
    }
}

/// A shared mapping of a `memfd`, which counts as long as something is left of it.
pub(super) struct SharedMapping(Arc<TreeNode>);

impl SharedMapping {
    /// The source for mappings of a file: the file itself if it cannot be sealed any more.
    pub fn of(node: Arc<TreeNode>) -> Result<Arc<dyn MapSource>, Errno> {
        let seals = node.seals.bits();
        if seals & linux::F_SEAL_SEAL != 0 && seals & linux::F_SEAL_WRITE == 0 {
            return Ok(node);
        }
        node.seals.map()?;
        let mapping = Self(node);
        Ok(fallible::try_arc(mapping)?)
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        self.0.seals.unmap();
    }
}

impl MapSource for SharedMapping {
    fn page(&self, index: u64, write: bool) -> Result<PageRef, Errno> {
        self.0.page(index, write)
    }

    fn mapped(&self, shared: bool) {
        self.0.mapped(shared);
    }

    fn resident(&self, index: u64) -> Option<PageRef> {
        MapSource::resident(&*self.0, index)
    }

    fn serial(&self) -> (u64, u64) {
        self.0.serial()
    }

    fn path(&self) -> Option<Vec<u8>> {
        MapSource::path(&*self.0)
    }

    fn identity(&self) -> (u64, u64) {
        MapSource::identity(&*self.0)
    }
}
