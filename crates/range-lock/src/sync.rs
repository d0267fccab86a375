//! The atomics the crate runs on: `core`'s, or loom's when the models are built.

#[cfg(not(heddle_loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(heddle_loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

#[cfg(not(heddle_loom))]
pub(crate) use atomic_waker::AtomicWaker;
#[cfg(heddle_loom)]
pub(crate) use waker_cell::AtomicWaker;

#[cfg(heddle_loom)]
mod waker_cell {
    use core::task::Waker;

    /// loom's waker cell under the names of the `atomic-waker` crate.
    pub(crate) struct AtomicWaker(loom::future::AtomicWaker);

    impl AtomicWaker {
        pub(crate) fn new() -> Self {
            Self(loom::future::AtomicWaker::new())
        }

        pub(crate) fn register(&self, waker: &Waker) {
            self.0.register_by_ref(waker);
        }

        pub(crate) fn take(&self) -> Option<Waker> {
            self.0.take_waker()
        }
    }
}

/// Declares a constructor `const`, except under loom, whose atomics cannot be built at compile time.
macro_rules! const_fn {
    ($(#[$attr:meta])* $vis:vis fn $($rest:tt)*) => {
        #[cfg(not(heddle_loom))]
        $(#[$attr])* $vis const fn $($rest)*
        #[cfg(heddle_loom)]
        $(#[$attr])* $vis fn $($rest)*
    };
}
pub(crate) use const_fn;
