//! The engine's locks: spinlocks, or, in the models of `tests/schedules.rs`, locks at which shuttle changes threads and
//! which it watches for circles.

#[cfg(not(all(test, heddle_shuttle)))]
pub(crate) use spin::mutex::{SpinMutex, SpinMutexGuard};

#[cfg(all(test, heddle_shuttle))]
pub(crate) use watched::{SpinMutex, SpinMutexGuard};

#[cfg(all(test, heddle_shuttle))]
mod watched {
    use shuttle::sync::{Mutex, MutexGuard};

    pub(crate) type SpinMutexGuard<'a, T> = MutexGuard<'a, T>;

    /// As `spin`'s, with as much of its interface as the engine uses.
    #[derive(Debug, Default)]
    pub(crate) struct SpinMutex<T>(Mutex<T>);

    impl<T> SpinMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> SpinMutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}
