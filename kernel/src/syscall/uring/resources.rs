//! Registered files and buffers.
//!
//! Each may have a tag: a completion with it as user data says that an update has taken the resource out of its
//! slot, and that no request uses it. So requests hold what they use, and the tag is posted by the drop of the last
//! holder. As in Linux, tags come in the order of the updates, and behind all requests with registered resources that
//! began before: a request holds the [`ResourceEra`] that it began in, which holds what the updates of its time have
//! taken out. The end of the whole table posts no tags.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use heddle_kernel_core::uring::FreeSlots;

use crate::error::Errno;
use crate::fs::OpenFile;
use crate::memory::fallible;
use crate::sync::SpinLock;
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

/// The time between two updates, which ends when its requests and those of earlier ones have ended.
pub struct ResourceEra {
    state: SpinLock<EraState>,
    /// How many there are of the ring.
    open: Arc<AtomicU32>,
}

#[derive(Default)]
struct EraState {
    /// The resource that the update at its end has taken out.
    retired: Option<RetiredResource>,
    /// The one after it, which ends later.
    next: Option<Arc<ResourceEra>>,
}

/// A resource that an update has taken out of its slot.
pub enum RetiredResource {
    File(#[expect(dead_code, reason = "it is held: its drop posts the tag")] Arc<FileResource>),
    Buffer(#[expect(dead_code, reason = "it is held: its drop posts the tag")] Arc<BufferResource>),
}

impl Drop for ResourceEra {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        // One after the other: a drop within a drop would take stack for each.
        let mut state = core::mem::take(self.state.get_mut());
        loop {
            drop(state.retired.take());
            let Some(mut next) = state.next.take().and_then(Arc::into_inner) else { return };
            state = core::mem::take(next.state.get_mut());
        }
    }
}

/// The eras of a ring.
#[derive(Default)]
pub struct ResourceEras {
    current: Option<Arc<ResourceEra>>,
    open: Option<Arc<AtomicU32>>,
}

impl ResourceEras {
    /// More are not kept apart: they may all end at once. Tags come when their own resource is free from then on.
    const OPEN_MAX: u32 = 64;

    /// The era in which a request begins.
    pub fn current(&self) -> Option<Arc<ResourceEra>> {
        self.current.clone()
    }

    /// Begins the first era.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn begin(&mut self) -> Result<(), Errno> {
        if self.current.is_none() {
            self.open = Some(fallible::try_arc(AtomicU32::new(0))?);
            self.current = Some(self.next().ok_or(Errno::ENOMEM)?);
        }
        Ok(())
    }

    fn next(&self) -> Option<Arc<ResourceEra>> {
        let open = self.open.clone()?;
        if open.load(Ordering::Relaxed) >= Self::OPEN_MAX {
            return None;
        }
        open.fetch_add(1, Ordering::Relaxed);
        // If there is no memory, its drop counts it out.
        fallible::try_arc(ResourceEra { state: SpinLock::new(EraState::default()), open }).ok()
    }

    /// Ends the era with an update. The result is to be dropped without a lock held.
    #[must_use]
    pub fn end(&mut self, retired: RetiredResource) -> (Option<Arc<ResourceEra>>, Option<RetiredResource>) {
        let Some(next) = self.next() else { return (None, Some(retired)) };
        let Some(before) = self.current.replace(next.clone()) else { return (None, Some(retired)) };
        *before.state.lock() = EraState { retired: Some(retired), next: Some(next) };
        (Some(before), None)
    }
}

impl Uring {
    /// An update has taken a resource out: its tag comes when no request uses it, in its turn.
    fn retire(&self, retired: RetiredResource) {
        let ended = self.eras.lock().end(retired);
        drop(ended);
    }

    /// As [`Uring::retire`], of what was in a slot for files.
    pub fn retire_file(&self, before: Option<Arc<FileResource>>) {
        if let Some(before) = before {
            self.retire(RetiredResource::File(before));
        }
    }

    /// As [`Uring::retire`], of what was in a slot for buffers.
    pub fn retire_buffer(&self, before: Option<Arc<BufferResource>>) {
        if let Some(before) = before {
            before.retire();
            self.retire(RetiredResource::Buffer(before));
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
        self.retire_file(before?);
        Ok(0)
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
        let is_taken = before.is_some();
        self.retire_file(before);
        if is_taken { Ok(()) } else { Err(Errno::EBADF) }
    }
}
