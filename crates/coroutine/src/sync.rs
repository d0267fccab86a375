//! Atomics and fences: the model checker's under `--cfg heddle_loom`, the randomizing scheduler's if `heddle_shuttle`
//! is set with it, the processor's otherwise.

#[cfg(all(feature = "alloc", not(heddle_loom)))]
pub(crate) use core::sync::atomic::AtomicUsize;
#[cfg(not(heddle_loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(all(heddle_loom, not(heddle_shuttle)))]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(heddle_shuttle)]
pub(crate) use shuttle::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence,
};

/// Keeps the compiler from moving accesses across it: what a handler on the same core may rely on.
#[inline(always)]
pub(crate) fn compiler_fence() {
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Tells the processor, or the model checker, that the caller waits for another core.
#[inline(always)]
pub(crate) fn spin_hint() {
    #[cfg(not(heddle_loom))]
    core::hint::spin_loop();
    #[cfg(all(heddle_loom, not(heddle_shuttle)))]
    loom::thread::yield_now();
    #[cfg(heddle_shuttle)]
    shuttle::thread::yield_now();
}

/// Declares a function that is `const` except under the model checker, whose atomics have no `const` constructor.
macro_rules! maybe_const {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $body:block) => {
        #[cfg(not(heddle_loom))]
        $(#[$meta])* $vis const fn $name($($arg: $ty),*) -> $ret $body
        #[cfg(heddle_loom)]
        $(#[$meta])* $vis fn $name($($arg: $ty),*) -> $ret $body
    };
}
pub(crate) use maybe_const;

#[cfg(all(feature = "alloc", heddle_loom, not(heddle_shuttle)))]
pub(crate) use loom::cell::UnsafeCell;

/// `core`'s cell with the model checker's interface, which sees who reads and who writes.
#[cfg(all(feature = "alloc", any(not(heddle_loom), heddle_shuttle)))]
pub(crate) struct UnsafeCell<T: ?Sized>(core::cell::UnsafeCell<T>);

#[cfg(all(feature = "alloc", any(not(heddle_loom), heddle_shuttle)))]
impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }
}

#[cfg(all(feature = "alloc", any(not(heddle_loom), heddle_shuttle)))]
impl<T: ?Sized> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
