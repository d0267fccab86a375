//! A process's table of descriptors.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Errno;
use crate::fs::OpenFile;
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::wait::node::Waiter;
use crate::wait::operation::pace;

use heddle_kernel_core::fallible::{push_reserved, resize_reserved};

/// The cost of closing a file, in units of a [`Budget`].
pub const CLOSE_COST: u32 = 8;

/// Slots that are looked at under one lock, and the cost of copying them.
const SLOTS_AT_ONCE: usize = 1024;
const COPY_COST: u32 = 64;

/// The open file of one descriptor number, with its flags.
#[derive(Clone)]
struct DescriptorSlot {
    open: Arc<OpenFile>,
    close_on_exec: bool,
}

/// The descriptors of a process, shared by the threads that `CLONE_FILES` joins.
#[derive(Default)]
pub struct DescriptorTable {
    slots: SpinLock<Slots>,
    /// How many threads use it. Calls under way refer to it too, and don't count.
    users: AtomicUsize,
}

#[derive(Default)]
struct Slots {
    all: Vec<Option<DescriptorSlot>>,
    /// Every descriptor below this one is in use, so that the lowest free one is found soon.
    full_below: usize,
    /// How often a slot has been filled or emptied.
    changes: u64,
}

impl DescriptorTable {
    /// A table without descriptors.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(Vec::new(), 0)
    }

    /// One more thread uses the table.
    pub fn attach(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread does not use the table any more. Returns whether it was the last.
    #[must_use]
    pub fn detach(&self) -> bool {
        self.users.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether more than one thread uses the table.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.users.load(Ordering::Acquire) > 1
    }

    /// The open file behind a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn get(&self, descriptor: i32) -> Result<Arc<OpenFile>, Errno> {
        let index = usize::try_from(descriptor).map_err(|_| Errno::EBADF)?;
        let slots = self.slots.lock();
        slots.all.get(index).and_then(Option::as_ref).map(|slot| slot.open.clone()).ok_or(Errno::EBADF)
    }

    /// Gives `open` the lowest free descriptor that is at least `from` and below `limit`.
    ///
    /// # Errors
    /// `EMFILE` (every number below `limit` is in use), `ENOMEM`.
    pub fn add(
        &self,
        open: Arc<OpenFile>,
        from: usize,
        limit: usize,
        close_on_exec: bool,
    ) -> Result<i32, Errno> {
        #[cfg(feature = "checking")]
        if crate::memory::fault_injection::fails(crate::memory::fault_injection::FailurePoint::Descriptor) {
            return Err(Errno::EMFILE);
        }
        self.add_in_room(open, from, limit, close_on_exec)
    }

    /// As [`DescriptorTable::add`], after [`DescriptorTable::make_room`].
    ///
    /// # Errors
    /// Those of `add`, if somebody else took the number.
    pub fn add_in_room(
        &self,
        open: Arc<OpenFile>,
        from: usize,
        limit: usize,
        close_on_exec: bool,
    ) -> Result<i32, Errno> {
        let mut slots = self.slots.lock();
        let first = from.max(slots.full_below);
        let free = (first..slots.all.len()).find(|&index| slots.all[index].is_none());
        let index = free.unwrap_or(first.max(slots.all.len()));
        if index >= limit {
            return Err(Errno::EMFILE);
        }
        Self::put(&mut slots, index, DescriptorSlot { open, close_on_exec })?;
        if from <= slots.full_below {
            slots.full_below = index + 1;
        }
        i32::try_from(index).map_err(|_| Errno::EMFILE)
    }

    /// Makes sure that [`DescriptorTable::add_in_room`] will find a number below `limit`, as far as nobody else takes
    /// it.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`.
    pub fn make_room(&self, limit: usize) -> Result<(), Errno> {
        #[cfg(feature = "checking")]
        if crate::memory::fault_injection::fails(crate::memory::fault_injection::FailurePoint::Descriptor) {
            return Err(Errno::EMFILE);
        }
        let mut slots = self.slots.lock();
        let first = slots.full_below;
        if first >= limit {
            return Err(Errno::EMFILE);
        }
        if slots.all.get(first).is_some_and(Option::is_none) {
            return Ok(());
        }
        let free = (first..slots.all.len()).find(|&index| slots.all[index].is_none());
        if free.unwrap_or(slots.all.len()) >= limit {
            return Err(Errno::EMFILE);
        }
        slots.full_below = free.unwrap_or(slots.all.len());
        if free.is_none() {
            slots.all.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(())
    }

    /// Makes `descriptor` stand for `open`; returns what it stood for before, to be dropped without a lock held.
    ///
    /// # Errors
    /// `EBADF` (not below `limit`), `ENOMEM`.
    pub fn replace(
        &self,
        descriptor: i32,
        open: Arc<OpenFile>,
        limit: usize,
        close_on_exec: bool,
    ) -> Result<Option<Arc<OpenFile>>, Errno> {
        let index = usize::try_from(descriptor).ok().filter(|&index| index < limit).ok_or(Errno::EBADF)?;
        let old = Self::put(&mut self.slots.lock(), index, DescriptorSlot { open, close_on_exec })?;
        Ok(old.map(|slot| slot.open))
    }

    /// Frees a descriptor and returns what it stood for, to be dropped without a lock held.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn remove(&self, descriptor: i32) -> Result<Arc<OpenFile>, Errno> {
        let index = usize::try_from(descriptor).map_err(|_| Errno::EBADF)?;
        let mut slots = self.slots.lock();
        let slot = slots.all.get_mut(index).and_then(Option::take).ok_or(Errno::EBADF)?;
        slots.full_below = slots.full_below.min(index);
        slots.changes += 1;
        Ok(slot.open)
    }

    /// Whether `exec` closes the descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close_on_exec(&self, descriptor: i32) -> Result<bool, Errno> {
        self.with(descriptor, |slot| slot.close_on_exec)
    }

    /// Says whether `exec` closes the descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_close_on_exec(&self, descriptor: i32, close: bool) -> Result<(), Errno> {
        self.with(descriptor, |slot| slot.close_on_exec = close)
    }

    /// Whether the table is so large that it is better copied by [`DescriptorTable::duplicate_in_steps`].
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.size() > SLOTS_AT_ONCE
    }

    /// A table of its own with the same descriptors, for `fork`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn duplicate(&self) -> Result<Self, Errno> {
        // Outside of the lock; there may be a few more by then.
        let mut copy = Vec::new();
        copy.try_reserve_exact(self.size()).map_err(|_| Errno::ENOMEM)?;
        let slots = self.slots.lock();
        copy.try_reserve_exact(slots.all.len()).map_err(|_| Errno::ENOMEM)?;
        slots.all.iter().for_each(|slot| push_reserved(&mut copy, slot.clone()));
        let full_below = slots.full_below;
        drop(slots);
        Ok(Self::of(copy, full_below))
    }

    /// As [`DescriptorTable::duplicate`], some of them at a time. If others change the table meanwhile, it starts
    /// again; a program that changes it all the time gets a copy of which parts are older than others.
    ///
    /// # Errors
    /// `ENOMEM`; `EINTR`: the waiter is to die.
    pub async fn duplicate_in_steps(&self, waiter: &(impl Waiter + ?Sized)) -> Result<Self, Errno> {
        const TRIES: usize = 4;
        let (mut budget, mut copy, mut tries) = (Budget::new(), Vec::new(), 0);
        loop {
            let before = self.slots.lock().changes;
            let copied = loop {
                match self.copy_some(&mut copy) {
                    Ok(false) => break Ok(()),
                    Ok(true) => {}
                    Err(error) => break Err(error),
                }
                if let Err(error) = pace(waiter, &mut budget, COPY_COST).await {
                    break Err(error);
                }
            };
            tries += 1;
            let full_below = {
                let slots = self.slots.lock();
                if slots.changes == before { Some(slots.full_below) } else { None }
            };
            match (copied, full_below) {
                (Ok(()), Some(full_below)) => return Ok(Self::of(copy, full_below)),
                (Ok(()), None) if tries == TRIES => return Ok(Self::of(copy, 0)),
                (copied, _) => {
                    while let Some(slot) = copy.pop() {
                        if slot.is_some() {
                            drop(slot);
                            budget.step(1).await;
                        }
                    }
                    copied?;
                }
            }
        }
    }

    /// Appends some slots to a copy. Returns whether there are more.
    fn copy_some(&self, copy: &mut Vec<Option<DescriptorSlot>>) -> Result<bool, Errno> {
        let missing = self.size().saturating_sub(copy.len());
        copy.try_reserve_exact(missing).map_err(|_| Errno::ENOMEM)?;
        let room = (copy.capacity() - copy.len()).min(SLOTS_AT_ONCE);
        let slots = self.slots.lock();
        let from = copy.len().min(slots.all.len());
        let end = slots.all.len().min(from + room);
        slots.all[from..end].iter().for_each(|slot| push_reserved(copy, slot.clone()));
        Ok(end < slots.all.len())
    }

    const fn of(all: Vec<Option<DescriptorSlot>>, full_below: usize) -> Self {
        Self { slots: SpinLock::new(Slots { all, full_below, changes: 0 }), users: AtomicUsize::new(0) }
    }

    /// Closes the descriptors of a process of this number of which `is_over`, which is told whether `exec` closes them,
    /// says so. One at a time, because what a close sets off may look into this table.
    pub async fn close(&self, pid: i32, is_over: impl Fn(bool) -> bool) {
        let (mut index, mut budget) = (0, Budget::new());
        while let Some(next) = self.next_in_use(index) {
            index = next + 1;
            let closed = {
                let mut slots = self.slots.lock();
                let slot = slots.all.get_mut(next);
                let closed = slot.and_then(|slot| slot.take_if(|slot| is_over(slot.close_on_exec)));
                if closed.is_some() {
                    slots.full_below = slots.full_below.min(next);
                    slots.changes += 1;
                }
                closed
            };
            if let Some(closed) = closed {
                // Nobody is there to hear of an error.
                let _ = closed.open.closed_by(pid);
                drop(closed);
                budget.step(CLOSE_COST).await;
            }
        }
    }

    /// Does for the files in the table what a close does: at the end of a process, whose number this is. Unless it was
    /// the last with this table they stay open, and only its locks go.
    pub async fn closed_by(&self, pid: i32, is_last: bool) {
        let (mut index, mut budget) = (0, Budget::new());
        while let Some(next) = self.next_in_use(index) {
            index = next + 1;
            let open = self.slots.lock().all.get(next).and_then(Option::as_ref).map(|slot| slot.open.clone());
            if let Some(open) = open {
                if is_last {
                    // Nobody is there to hear of an error.
                    let _ = open.closed_by(pid);
                } else {
                    open.release_locks(pid);
                }
                drop(open);
                budget.step(1).await;
            }
        }
    }

    /// The end of the numbers that select(2) looks at: as many as Linux has room for in a table of this size.
    #[must_use]
    pub fn reach(&self) -> usize {
        const FIRST: usize = 64;
        const STEP: usize = 128;
        match self.size() {
            size if size <= FIRST => FIRST,
            size => size.div_ceil(STEP).next_power_of_two() * STEP,
        }
    }

    /// How many descriptors there is room for without more memory.
    #[must_use]
    pub fn size(&self) -> usize {
        self.slots.lock().all.len()
    }

    /// The numbers in use, from `from` on, in order.
    #[must_use]
    pub fn next_in_use(&self, mut from: usize) -> Option<usize> {
        loop {
            let slots = self.slots.lock();
            let end = slots.all.len().min(from.saturating_add(SLOTS_AT_ONCE));
            let found = (from..end).find(|&index| slots.all[index].is_some());
            if found.is_some() || end == slots.all.len() {
                return found;
            }
            from = end;
        }
    }

    fn with<R>(&self, descriptor: i32, change: impl FnOnce(&mut DescriptorSlot) -> R) -> Result<R, Errno> {
        let index = usize::try_from(descriptor).map_err(|_| Errno::EBADF)?;
        let mut slots = self.slots.lock();
        slots.all.get_mut(index).and_then(Option::as_mut).map(change).ok_or(Errno::EBADF)
    }

    fn put(slots: &mut Slots, index: usize, slot: DescriptorSlot) -> Result<Option<DescriptorSlot>, Errno> {
        slots.changes += 1;
        let slots = &mut slots.all;
        if index >= slots.len() {
            slots.try_reserve(index + 1 - slots.len()).map_err(|_| Errno::ENOMEM)?;
            resize_reserved(slots, index + 1, None);
        }
        Ok(slots[index].replace(slot))
    }
}
