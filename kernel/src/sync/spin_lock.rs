//! The kernel's spinlock.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// A spinlock around a value.
///
/// Its guard is `!Send`, and futures of the scheduler are `Send`, so the compiler refuses a guard that lives across
/// an await.
#[derive(Debug, Default)]
pub struct SpinLock<T>(spin::mutex::SpinMutex<T>);

impl<T> SpinLock<T> {
    /// An unlocked value.
    pub const fn new(value: T) -> Self {
        Self(spin::mutex::SpinMutex::new(value))
    }

    /// Waits, spinning, until the lock is free.
    pub fn lock(&self) -> SpinGuard<'_, T> {
        SpinGuard { guard: self.0.lock(), not_send: PhantomData }
    }

    /// The value without locking: the borrow proves that nobody else can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The value, by giving up the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

/// Access to the value of a [`SpinLock`] until dropped.
#[derive(Debug)]
pub struct SpinGuard<'a, T> {
    guard: spin::mutex::SpinMutexGuard<'a, T>,
    not_send: PhantomData<*const ()>,
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
