//! Registered files and buffers.
//!
//! Each may have a tag: a completion with it as user data says that an update has taken the resource out of its
//! slot, and that no request uses it. So requests hold what they use, and the tag is posted by the drop of the last
//! holder. As in Linux, the end of the whole table posts no tags.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use heddle_kernel_core::uring::FreeSlots;

use crate::error::Errno;
use crate::fs::OpenFile;
use crate::memory::fallible;
use crate::syscall::uring::completions::{Completion, Origin};
use crate::syscall::uring::ring::Uring;

/// Something registered.
pub struct RingResource<T> {
    pub value: T,
    tag: u64,
    /// An update has taken it out.
    is_retired: AtomicBool,
    ring: Weak<Uring>,
}

impl<T> RingResource<T> {
    /// A resource of a ring; a tag of 0 is none.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(value: T, tag: u64, ring: &Arc<Uring>) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self { value, tag, is_retired: AtomicBool::new(false), ring: Arc::downgrade(ring) })
    }

    /// Lets the drop of the last holder post the tag.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }
}

impl<T> Drop for RingResource<T> {
    fn drop(&mut self) {
        if self.tag != 0
            && *self.is_retired.get_mut()
            && let Some(ring) = self.ring.upgrade()
        {
            ring.post(Completion::new(self.tag, 0, 0), Origin::Elsewhere);
        }
    }
}

/// A registered file.
pub type FileResource = RingResource<Arc<OpenFile>>;
/// Address and length of a registered buffer.
pub type BufferResource = RingResource<(u64, u64)>;

/// The slots of registered files.
#[derive(Default)]
pub struct FileTable {
    slots: Vec<Option<Arc<FileResource>>>,
    /// A bit for each slot that is in use.
    used: Vec<u64>,
    free: FreeSlots,
}

impl FileTable {
    /// A table with these files.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(slots: Vec<Option<Arc<FileResource>>>) -> Result<Self, Errno> {
        let mut free = FreeSlots::new(slots.len() as u32);
        let mut used = fallible::try_filled(0_u64, free.words_for())?;
        for (slot, file) in slots.iter().enumerate() {
            if file.is_some() {
                free.take(&mut used, slot as u32);
            }
        }
        // The first choice is the first slot.
        let whole = slots.len() as u32;
        let _ = free.set_range(0, whole);
        Ok(Self { slots, used, free })
    }

    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// The file in a slot.
    pub fn get(&self, slot: usize) -> Option<Arc<FileResource>> {
        self.slots.get(slot).and_then(Option::clone)
    }

    /// Restricts the slots that are chosen for a program.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn set_range(&mut self, first: u32, length: u32) -> Result<(), Errno> {
        self.free.set_range(first, length).map_err(|_| Errno::EINVAL)
    }

    /// Puts a file into a slot, or takes one out; returns what was there, to be dropped without a lock held.
    ///
    /// # Errors
    /// `EINVAL`: there is no such slot.
    pub fn replace(
        &mut self,
        slot: u32,
        file: Option<Arc<FileResource>>,
    ) -> Result<Option<Arc<FileResource>>, Errno> {
        let place = self.slots.get_mut(slot as usize).ok_or(Errno::EINVAL)?;
        match file {
            Some(_) => self.free.take(&mut self.used, slot),
            None => self.free.free(&mut self.used, slot),
        }
        let before = core::mem::replace(place, file);
        if let Some(before) = &before {
            before.retire();
        }
        Ok(before)
    }

    /// Puts a file into a slot that is free.
    ///
    /// # Errors
    /// `ENFILE`: there is none.
    pub fn add(&mut self, file: Arc<FileResource>) -> Result<u32, Errno> {
        let slot = self.free.find(&self.used).ok_or(Errno::ENFILE)?;
        let _ = self.replace(slot, Some(file))?;
        Ok(slot)
    }
}

impl Uring {
    /// The registered file at an index.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn fixed_file(&self, index: i32) -> Result<Arc<FileResource>, Errno> {
        let slot = usize::try_from(index).map_err(|_| Errno::EBADF)?;
        self.files.lock().get(slot).ok_or(Errno::EBADF)
    }

    /// Registers a file in a slot, or in one that is free; the result is the slot, or 0 for a chosen one.
    ///
    /// # Errors
    /// `ENXIO` (there is no table), `EINVAL`, `ENFILE`, `EBADF` (a ring), `ENOMEM`.
    pub fn install(self: &Arc<Self>, slot: Option<u32>, open: Arc<OpenFile>) -> Result<u32, Errno> {
        if crate::fs::downcast::<Self>(&open).is_some() {
            return Err(Errno::EBADF);
        }
        let file = RingResource::new(open, 0, self)?;
        let mut files = self.files.lock();
        if files.len() == 0 {
            return Err(if slot.is_some() { Errno::ENXIO } else { Errno::ENFILE });
        }
        let before = match slot {
            None => return files.add(file),
            Some(slot) => files.replace(slot, Some(file)),
        };
        drop(files);
        before.map(|_| 0)
    }

    /// Takes a registered file out.
    ///
    /// # Errors
    /// `ENXIO` (there is no table), `EINVAL`, `EBADF` (the slot is empty).
    pub fn close_fixed(&self, slot: u32) -> Result<(), Errno> {
        let before = {
            let mut files = self.files.lock();
            if files.len() == 0 {
                return Err(Errno::ENXIO);
            }
            files.replace(slot, None)?
        };
        before.map(|_| ()).ok_or(Errno::EBADF)
    }
}
