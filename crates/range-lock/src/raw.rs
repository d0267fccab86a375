//! Acquisitions without lifetimes: for C, kernels and storage engines that keep them in their own records.
#![allow(unsafe_code)] // The caller vouches for what guards otherwise guarantee.

use core::fmt;
use core::ptr::NonNull;

use crate::epoch::Epoch;
use crate::error::TryLockError;
use crate::lock::RangeLock;
use crate::node::Node;
use crate::request::{Guard, Request};

/// A locked range in the shape of a pointer. Forgetting it keeps the range locked.
#[derive(PartialEq, Eq)]
pub struct RawGuard<T, P> {
    node: NonNull<Node<T, P>>,
}

impl<T, P> Clone for RawGuard<T, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, P> Copy for RawGuard<T, P> {}

impl<T, P> fmt::Debug for RawGuard<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawGuard").field(&self.node).finish()
    }
}

// SAFETY: a raw guard is an address; what may be done with it where is the caller's to vouch for.
unsafe impl<T: Send + Sync, P: Send + Sync> Send for RawGuard<T, P> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, P: Send + Sync> Sync for RawGuard<T, P> {}

impl<T, P> RawGuard<T, P> {
    /// The guard as an address; not null.
    pub fn into_ptr(self) -> NonNull<()> {
        self.node.cast()
    }

    /// The guard of an address.
    ///
    /// # Safety
    /// The address came from [`Self::into_ptr`] of a guard of the same types.
    pub unsafe fn from_ptr(address: NonNull<()>) -> Self {
        Self { node: address.cast() }
    }
}

impl<T: Ord + Copy, P: Copy, E: Epoch> Request<&RangeLock<T, P, E>> {
    /// Like [`Request::try_lock`], without a lifetime.
    pub fn try_lock_raw(self) -> Result<RawGuard<T, P>, TryLockError> {
        self.try_lock().map(Guard::into_raw)
    }
}

impl<'a, T: Ord + Copy, P: Copy, E: Epoch> Guard<'a, T, P, E> {
    /// Gives up the lifetime and the automatic release.
    pub fn into_raw(self) -> RawGuard<T, P> {
        RawGuard { node: self.into_parts().0 }
    }

    /// Takes a raw guard under a lifetime again.
    ///
    /// # Safety
    /// `raw` is a guard of `lock` that was not released, and no copy of it is used any more.
    pub unsafe fn from_raw(lock: &'a RangeLock<T, P, E>, raw: RawGuard<T, P>) -> Self {
        Self::from_parts(raw.node, lock)
    }
}

impl<T: Ord + Copy, P: Copy, E: Epoch> RangeLock<T, P, E> {
    /// Releases a raw guard.
    ///
    /// # Safety
    /// `raw` is a guard of this lock that was not released, and no copy of it is used any more.
    pub unsafe fn release_raw(&self, raw: RawGuard<T, P>) {
        // SAFETY: see the contract.
        unsafe { self.release(raw.node) }
    }
}
