//! A slice whose parts are locked: guards that lend the data they guard.
#![allow(unsafe_code)] // Lends what the range lock keeps others from.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut, Range, RangeBounds};
use core::slice;

use crate::epoch::{DefaultEpoch, Epoch};
use crate::error::{LockError, TryLockError};
use crate::lock::RangeLock;
use crate::request::Guard;
use crate::span::Span;

/// A slice that several may work on at once, each on a range of its own.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use heddle_range_lock::LockedSlice;
///
/// let pages = LockedSlice::new(vec![0u8; 4096]);
/// std::thread::scope(|scope| {
///     scope.spawn(|| pages.lock(..2048).unwrap().fill(1));
///     scope.spawn(|| pages.lock(2048..).unwrap().fill(2));
/// });
/// let both = pages.try_lock_shared(2047..=2048)?;
/// assert_eq!(*both, [1, 2]);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A range that is empty, or that reaches beyond the slice, is refused as [`LockError::Empty`].
pub struct LockedSlice<T, E: Epoch = DefaultEpoch> {
    lock: RangeLock<usize, (), E>,
    data: Box<[UnsafeCell<T>]>,
}

// SAFETY: a range is lent to one context for writing (hence `Send`) or to several for reading (hence `Sync`).
unsafe impl<T: Send + Sync, E: Epoch> Sync for LockedSlice<T, E> {}

impl<T> LockedSlice<T> {
    /// The data in an unlocked state. [`From`] makes one whose participants come from elsewhere.
    pub fn new(data: impl Into<Box<[T]>>) -> Self {
        Self::from(data.into())
    }
}

impl<T, E: Epoch> From<Box<[T]>> for LockedSlice<T, E> {
    fn from(data: Box<[T]>) -> Self {
        let data = Box::into_raw(data) as *mut [UnsafeCell<T>];
        // SAFETY: a cell has the layout of what is in it, and the box was given up just now.
        Self { lock: RangeLock::new(), data: unsafe { Box::from_raw(data) } }
    }
}

impl<T, E: Epoch> LockedSlice<T, E> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there is nothing to lock.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The whole, without locking: nobody else has the slice.
    pub fn get_mut(&mut self) -> &mut [T] {
        let (first, len) = (self.data.as_mut_ptr(), self.data.len());
        // SAFETY: exclusively borrowed, and no guard outlives a borrow. One that was forgotten lends nothing any more.
        unsafe { slice::from_raw_parts_mut(first.cast(), len) }
    }

    /// The data.
    pub fn into_inner(self) -> Box<[T]> {
        let data = Box::into_raw(self.data) as *mut [T];
        // SAFETY: as in `from`.
        unsafe { Box::from_raw(data) }
    }

    /// Locks a range for writing if that is possible at once.
    pub fn try_lock(&self, range: impl RangeBounds<usize>) -> Result<SliceGuardMut<'_, T, E>, TryLockError> {
        let range = self.within(range)?;
        Ok(self.lend_mut(self.lock.try_lock(range.clone())?, range))
    }

    /// Locks a range for reading if that is possible at once.
    pub fn try_lock_shared(
        &self,
        range: impl RangeBounds<usize>,
    ) -> Result<SliceGuard<'_, T, E>, TryLockError> {
        let range = self.within(range)?;
        Ok(self.lend(self.lock.try_lock_shared(range.clone())?, range))
    }

    /// Locks a range for writing, suspending the coroutine until that is possible.
    pub async fn lock_async(
        &self,
        range: impl RangeBounds<usize>,
    ) -> Result<SliceGuardMut<'_, T, E>, LockError> {
        let range = self.within(range)?;
        Ok(self.lend_mut(self.lock.lock_async(range.clone()).await?, range))
    }

    /// Locks a range for reading, suspending the coroutine until that is possible.
    pub async fn lock_shared_async(
        &self,
        range: impl RangeBounds<usize>,
    ) -> Result<SliceGuard<'_, T, E>, LockError> {
        let range = self.within(range)?;
        Ok(self.lend(self.lock.lock_shared_async(range.clone()).await?, range))
    }

    /// Locks a range for writing, parking the thread until that is possible.
    #[cfg(all(feature = "std", not(heddle_loom)))]
    pub fn lock(&self, range: impl RangeBounds<usize>) -> Result<SliceGuardMut<'_, T, E>, LockError> {
        let range = self.within(range)?;
        Ok(self.lend_mut(self.lock.lock(range.clone())?, range))
    }

    /// Locks a range for reading, parking the thread until that is possible.
    #[cfg(all(feature = "std", not(heddle_loom)))]
    pub fn lock_shared(&self, range: impl RangeBounds<usize>) -> Result<SliceGuard<'_, T, E>, LockError> {
        let range = self.within(range)?;
        Ok(self.lend(self.lock.lock_shared(range.clone())?, range))
    }

    fn within(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>, LockError> {
        Span::within(range, self.len()).ok_or(LockError::Empty)
    }

    fn lend<'a>(&'a self, guard: Guard<'a, usize, (), E>, range: Range<usize>) -> SliceGuard<'a, T, E> {
        SliceGuard { cells: &self.data[range], guard }
    }

    fn lend_mut<'a>(
        &'a self,
        guard: Guard<'a, usize, (), E>,
        range: Range<usize>,
    ) -> SliceGuardMut<'a, T, E> {
        SliceGuardMut(self.lend(guard, range))
    }
}

impl<T, E: Epoch> fmt::Debug for LockedSlice<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedSlice").field("len", &self.len()).field("lock", &self.lock).finish()
    }
}

/// A part of a slice, locked together with other readers; unlocked on drop.
#[must_use = "the range is unlocked when the guard is dropped"]
pub struct SliceGuard<'a, T, E: Epoch = DefaultEpoch> {
    cells: &'a [UnsafeCell<T>],
    guard: Guard<'a, usize, (), E>,
}

// SAFETY: a shared guard hands out `&T` alone; the range is given back by whoever drops it.
unsafe impl<T: Sync, E: Epoch> Send for SliceGuard<'_, T, E> {}
// SAFETY: as above.
unsafe impl<T: Sync, E: Epoch> Sync for SliceGuard<'_, T, E> {}

impl<T, E: Epoch> SliceGuard<'_, T, E> {
    /// The locked indexes.
    pub fn range(&self) -> Span<usize> {
        self.guard.range()
    }
}

impl<T, E: Epoch> Deref for SliceGuard<'_, T, E> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lock keeps writers out of the range as long as the guard.
        unsafe { slice::from_raw_parts(self.cells.as_ptr().cast(), self.cells.len()) }
    }
}

impl<T: fmt::Debug, E: Epoch> fmt::Debug for SliceGuard<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A part of a slice, locked for this guard alone; unlocked on drop.
#[must_use = "the range is unlocked when the guard is dropped"]
pub struct SliceGuardMut<'a, T, E: Epoch = DefaultEpoch>(SliceGuard<'a, T, E>);

// SAFETY: an exclusive guard is as good as `&mut [T]`.
unsafe impl<T: Send, E: Epoch> Send for SliceGuardMut<'_, T, E> {}
// SAFETY: as above.
unsafe impl<T: Sync, E: Epoch> Sync for SliceGuardMut<'_, T, E> {}

impl<'a, T, E: Epoch> SliceGuardMut<'a, T, E> {
    /// The locked indexes.
    pub fn range(&self) -> Span<usize> {
        self.0.range()
    }

    /// Lets readers in.
    pub fn downgrade(mut self) -> SliceGuard<'a, T, E> {
        self.0.guard.downgrade();
        self.0
    }
}

impl<T, E: Epoch> Deref for SliceGuardMut<'_, T, E> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, E: Epoch> DerefMut for SliceGuardMut<'_, T, E> {
    fn deref_mut(&mut self) -> &mut [T] {
        let cells = self.0.cells;
        // SAFETY: the lock keeps everybody else out of the range as long as the guard.
        unsafe { slice::from_raw_parts_mut(cells.as_ptr().cast_mut().cast(), cells.len()) }
    }
}

impl<T: fmt::Debug, E: Epoch> fmt::Debug for SliceGuardMut<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
