//! The kernel's spinlock.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// A spinlock around a value.
///
/// Its guard is `!Send`, and futures of the scheduler are `Send`, so the compiler refuses a guard that lives across
/// an await. In the checking build every lock is also reported to [`crate::sync::order`].
#[derive(Debug)]
pub struct SpinLock<T> {
    #[cfg(feature = "checking")]
    class: heddle_kernel_core::lock_order::LockClass,
    value: spin::mutex::SpinMutex<T>,
}

impl<T> SpinLock<T> {
    /// An unlocked value. Locks that are made at one place are one class: see [`SpinLock::lock_below`].
    #[cfg_attr(feature = "checking", track_caller)]
    pub const fn new(value: T) -> Self {
        Self {
            #[cfg(feature = "checking")]
            class: heddle_kernel_core::lock_order::LockClass::new(),
            value: spin::mutex::SpinMutex::new(value),
        }
    }

    /// Waits, spinning, until the lock is free.
    #[cfg_attr(feature = "checking", track_caller)]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        self.lock_below(0)
    }

    /// As [`SpinLock::lock`], while locks of the same class with smaller levels are held: `level` is how deep this one
    /// is below the first, in an order that everybody keeps to.
    #[cfg_attr(feature = "checking", track_caller)]
    pub fn lock_below(&self, level: u8) -> SpinGuard<'_, T> {
        #[cfg(feature = "checking")]
        crate::sync::order::taking(&self.class, level, core::ptr::from_ref(self).addr());
        #[cfg(not(feature = "checking"))]
        let _ = level;
        SpinGuard {
            #[cfg(feature = "checking")]
            _note: Note(core::ptr::from_ref(self).addr()),
            guard: self.value.lock(),
            not_send: PhantomData,
        }
    }

    /// The value without locking: the borrow proves that nobody else can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value, by giving up the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: Default> Default for SpinLock<T> {
    #[cfg_attr(feature = "checking", track_caller)]
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Tells [`crate::sync::order`] of a guard's end, which is before the lock's.
#[cfg(feature = "checking")]
#[derive(Debug)]
struct Note(usize);

#[cfg(feature = "checking")]
impl Drop for Note {
    fn drop(&mut self) {
        crate::sync::order::giving(self.0);
    }
}

/// Access to the value of a [`SpinLock`] until dropped.
#[derive(Debug)]
pub struct SpinGuard<'a, T> {
    #[cfg(feature = "checking")]
    _note: Note,
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

/// A guard that could be sent would let a coroutine be left while it holds one: this does not compile then, because
/// both implementations would fit.
const _: () = {
    trait Ambiguous<A> {
        fn check() {}
    }
    impl<T: ?Sized> Ambiguous<()> for T {}
    struct Sendable;
    impl<T: ?Sized + Send> Ambiguous<Sendable> for T {}
    let _ = <SpinGuard<'static, ()> as Ambiguous<_>>::check;
};
