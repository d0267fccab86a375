//! A lock of many readers or one writer.
#![allow(unsafe_code)] // The guards are the proof of access to the value.

use super::semaphore::{Permit, Semaphore};
use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// A lock for coroutines that many may hold for reading or one for writing, across awaits.
///
/// It serves the most urgent first, and while that is a writer who has to wait, nobody behind it gets in: writers
/// don't starve. Unlike a [`Mutex`](super::Mutex), it lends no levels.
pub struct RwLock<T: ?Sized> {
    permits: Semaphore,
    value: UnsafeCell<T>,
}

/// A reader takes one permit, a writer takes all.
const ALL: usize = u32::MAX as usize;

// SAFETY: the value goes where the lock goes.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: readers share the value, and writers hand it from one thread to another.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

impl<T> RwLock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { permits: Semaphore::new(ALL), value: UnsafeCell::new(value) }
    }

    /// The value of a lock that nobody shares any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer has it.
    pub async fn read(&self) -> ReadGuard<'_, T> {
        ReadGuard { _permit: self.permits.acquire(1).await, value: &self.value }
    }

    /// Waits until nobody has it.
    pub async fn write(&self) -> WriteGuard<'_, T> {
        WriteGuard { _permit: self.permits.acquire(ALL).await, value: &self.value }
    }

    /// For reading, if no writer has it and nobody waits.
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        Some(ReadGuard { _permit: self.permits.try_acquire(1)?, value: &self.value })
    }

    /// For writing, if nobody has it.
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        Some(WriteGuard { _permit: self.permits.try_acquire(ALL)?, value: &self.value })
    }

    /// The value of a lock that nobody shares.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// The lock, for reading; gives it back when it is dropped.
#[must_use = "the lock is released at once if the guard is not kept"]
pub struct ReadGuard<'a, T: ?Sized> {
    _permit: Permit<'a>,
    value: &'a UnsafeCell<T>,
}

/// The lock, for writing; gives it back when it is dropped.
#[must_use = "the lock is released at once if the guard is not kept"]
pub struct WriteGuard<'a, T: ?Sized> {
    _permit: Permit<'a>,
    value: &'a UnsafeCell<T>,
}

// SAFETY: a guard for reading is a shared reference.
unsafe impl<T: ?Sized + Sync> Send for ReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for ReadGuard<'_, T> {}
// SAFETY: a guard for writing is an exclusive reference.
unsafe impl<T: ?Sized + Send> Send for WriteGuard<'_, T> {}
// SAFETY: a shared guard gives shared access only.
unsafe impl<T: ?Sized + Sync> Sync for WriteGuard<'_, T> {}

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: while the permit is held, no writer has all of them.
        unsafe { &*self.value.get() }
    }
}

impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: while all permits are held, nobody else has one.
        unsafe { &*self.value.get() }
    }
}

impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.value.get() }
    }
}

impl<T: ?Sized> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").finish_non_exhaustive()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for WriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
