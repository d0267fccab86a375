//! Results of calls whose effects are done, and whose pages were missing when they were to be stored: another thread's
//! fork may protect a page between the check that a call makes first and its end. Such a call must not start again.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::error::Errno;
use crate::memory::{Space, fallible, values as user};
use crate::sync::SpinLock;

/// Values to store in user memory before the caller learns that its call is over.
#[derive(Default)]
pub struct DeferredCopyOut {
    results: SpinLock<Vec<(usize, Vec<u8>)>>,
    is_there: AtomicBool,
}

impl DeferredCopyOut {
    /// Keeps a result for [`Self::store`].
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn put(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        let bytes = fallible::try_to_vec(bytes)?;
        fallible::try_push(&mut self.results.lock(), (address, bytes))?;
        self.is_there.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.is_there.load(Ordering::Relaxed)
    }

    /// Stores them all.
    ///
    /// # Errors
    /// `EFAULT`: a page is gone for good; as in Linux the call fails then, although it had its effects. `ENOMEM`:
    /// `is_dying` says that nobody will see them.
    pub async fn store(&self, space: &Space, is_dying: impl Fn() -> bool) -> Result<(), Errno> {
        self.is_there.store(false, Ordering::Relaxed);
        let results = core::mem::take(&mut *self.results.lock());
        for (address, bytes) in &results {
            user::resolve_for(space, &is_dying, |space| space.write_bytes(*address, bytes)).await?;
        }
        Ok(())
    }
}
