//! The atomics and locks that the crate runs on: the machine's, or loom's in its models.

#[cfg(not(heddle_loom))]
pub(crate) use core::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(heddle_loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    thread::yield_now as spin_loop,
};

/// The fence that a sequentially consistent store implies for the loads behind it. loom takes such stores for releases
/// only, so models need an explicit fence.
#[inline]
pub(crate) fn implied_fence() {
    #[cfg(heddle_loom)]
    fence(Ordering::SeqCst);
}

#[cfg(not(heddle_loom))]
pub(crate) use spin::mutex::SpinMutex as Mutex;

#[cfg(heddle_loom)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(heddle_loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("models don't panic with a lock held")
    }
}
