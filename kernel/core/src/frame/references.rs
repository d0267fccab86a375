//! The references to a frame.

#[cfg(not(heddle_loom))]
use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(heddle_loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};

/// How many references to a frame there are.
#[derive(Debug)]
pub struct References(AtomicU32);

impl References {
    /// So many.
    #[cfg(not(heddle_loom))]
    #[must_use]
    pub const fn new(count: u32) -> Self {
        Self(AtomicU32::new(count))
    }

    /// The same for models.
    #[cfg(heddle_loom)]
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self(AtomicU32::new(count))
    }

    /// How many there are. Exact only for a caller that holds the only one; it sees what all former holders did.
    #[must_use]
    #[inline]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets the count of a frame that has no other users yet.
    #[inline]
    pub fn set(&self, count: u32) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// Adds a reference; the caller holds one already.
    #[inline]
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops a reference; `true` if it was the last, and the frame is the caller's to free.
    #[must_use]
    #[inline]
    pub fn subtract(&self) -> bool {
        // Release: what this owner did to the frame comes before its release. Acquire for the last one: it sees
        // what all others did.
        if self.0.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        fence(Ordering::Acquire);
        true
    }

    /// The word, which is something else while the frame is not counted.
    #[inline]
    pub(crate) fn word(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for References {
    fn default() -> Self {
        Self::new(0)
    }
}
