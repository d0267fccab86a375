//! The interests of an epoll instance: found by their number, and by the file they watch.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::error::Errno;
use crate::fs::epoll::EpollInterest;
use crate::memory::fallible;

use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::hash::KeyedMap;

/// A file as a program names it to an instance: its descriptor, and the open file that it stood for then.
type Name = (i32, u64);

/// The interests; each operation takes the same time whatever their number.
pub struct Interests {
    slots: Vec<Option<Arc<EpollInterest>>>,
    numbers: KeyedMap<Name, u32>,
    /// Numbers that are free below the length of `slots`; has room for all of them.
    free: Vec<u32>,
}

impl Interests {
    pub fn new() -> Self {
        let numbers = KeyedMap::default();
        Self { slots: Vec::new(), numbers, free: Vec::new() }
    }

    /// One more than the largest number in use.
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many there are, those in files that have been closed included.
    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    /// The interest with this number.
    pub fn get(&self, index: usize) -> Option<&Arc<EpollInterest>> {
        self.slots.get(index).and_then(Option::as_ref)
    }

    /// The interest in a file.
    pub fn find(&self, descriptor: i32, id: u64) -> Option<Arc<EpollInterest>> {
        let index = *self.numbers.get(&(descriptor, id))?;
        self.get(index as usize).cloned()
    }

    /// A number for another interest, which [`Interests::put`] then cannot fail to take.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(&mut self) -> Result<usize, Errno> {
        if self.free.is_empty() && self.slots.len() == self.slots.capacity() {
            self.sweep();
        }
        self.numbers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        if self.free.is_empty() {
            fallible::try_push(&mut self.slots, None)?;
            let missing = self.slots.capacity() - self.free.len();
            if self.free.try_reserve(missing).is_err() {
                self.slots.pop();
                return Err(Errno::ENOMEM);
            }
            push_reserved(&mut self.free, (self.slots.len() - 1) as u32);
        }
        self.free.last().map(|&index| index as usize).ok_or(Errno::ENOMEM)
    }

    /// Takes an interest in under the number that was reserved last.
    #[expect(clippy::disallowed_methods, reason = "room for the number is reserved")]
    pub fn put(&mut self, interest: Arc<EpollInterest>) {
        let index = interest.index.load(Ordering::Relaxed);
        self.free.pop_if(|free| *free == index);
        self.numbers.insert((interest.descriptor, interest.id), index);
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = Some(interest);
        }
    }

    /// Takes an interest out, if it is there.
    pub fn remove(&mut self, interest: &Arc<EpollInterest>) -> Option<Arc<EpollInterest>> {
        let slot = self.slots.get_mut(interest.index.load(Ordering::Relaxed) as usize)?;
        let old = slot.take_if(|known| Arc::ptr_eq(known, interest))?;
        self.numbers.remove(&(old.descriptor, old.id));
        push_reserved(&mut self.free, old.index.load(Ordering::Relaxed));
        Some(old)
    }

    /// Takes so many interests out of use, and drops them. Returns whether none is left.
    pub fn retire_some(&mut self, count: usize) -> bool {
        for _ in 0..count {
            match self.slots.pop() {
                Some(Some(interest)) => interest.retire(),
                Some(None) => {}
                None => break,
            }
        }
        self.slots.is_empty()
    }

    /// Files that have been closed for good leave their places to others. Called before the table grows, so that the
    /// time it takes is spread over as many additions.
    fn sweep(&mut self) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(gone) = slot.take_if(|interest| interest.open.strong_count() == 0) {
                self.numbers.remove(&(gone.descriptor, gone.id));
                push_reserved(&mut self.free, index as u32);
            }
        }
    }
}
