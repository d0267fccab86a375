//! Handles of an executor.

use crate::builder::{Builder, SpawnError};
use crate::handle::JoinHandle;
use crate::machine::{Shared, place_on, spawn_by};
use crate::threads;
use alloc::sync::Arc;
use core::fmt;
use core::future::Future;
use core::ptr;
use std::sync::{PoisonError, RwLock};

/// Spawns on an [`Executor`](super::Executor) from wherever it is sent to, and keeps nothing alive: when the executor
/// has ended, it spawns nothing any more.
#[derive(Clone)]
pub struct Handle {
    shared: &'static Shared,
    pub(super) is_alive: Arc<RwLock<bool>>,
}

impl Handle {
    pub(super) fn new(shared: &'static Shared) -> Handle {
        Handle { shared, is_alive: Arc::new(RwLock::new(true)) }
    }

    /// The executor ends: waits for those who spawn at the moment, and refuses whoever comes later.
    pub(super) fn end(&self) {
        *self.is_alive.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Spawns `future` at the default priority.
    ///
    /// # Panics
    /// If the executor has ended, or if there is no memory; see [`Handle::try_spawn`].
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.try_spawn(Builder::new(), future).expect("spawn")
    }

    /// Spawns `future` as `builder` says.
    ///
    /// # Errors
    /// There is no memory, or the executor has ended.
    pub fn try_spawn<F>(&self, builder: Builder, future: F) -> Result<JoinHandle<F::Output>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let here = threads::here().filter(|entry| ptr::eq(entry.shared(), self.shared));
        spawn_by(builder, future, false, |task| {
            // Nothing of the user's runs under it.
            let is_alive = self.is_alive.read().unwrap_or_else(PoisonError::into_inner);
            if *is_alive { place_on(self.shared, here, builder, task) } else { Err(SpawnError::NoExecutor) }
        })
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
