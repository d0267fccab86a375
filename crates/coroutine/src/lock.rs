//! The short lock inside of the waiting types: the system's under `std`, a spinning one elsewhere.
//!
//! It is held for a few steps over a list and never across an await. Without `std` the types that use it must not be
//! used by interrupt handlers; those wake by id.

#[cfg(feature = "std")]
pub(crate) struct Lock<T>(std::sync::Mutex<T>);
#[cfg(not(feature = "std"))]
pub(crate) struct Lock<T>(spin::Mutex<T>);

#[cfg(feature = "std")]
impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock(std::sync::Mutex::new(value))
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // Nothing that runs inside can panic halfway through a change, but for the allocator.
        f(&mut self.guard())
    }

    pub fn guard(&self) -> std::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(not(feature = "std"))]
impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock(spin::Mutex::new(value))
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.lock())
    }
}
