//! What the threads of executors sleep in and look at, where that is not plain Linux: a runtime whose kernel tells of
//! finished system calls, say.

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::sync::OnceLock;

/// Where executors run.
pub trait Host: Sync {
    /// Called by every executor thread before each turn, with the bitmap of the levels that are ready on its core. May
    /// wake coroutines, and may let something else run before it returns.
    fn before_turn(&self, ready: u64);

    /// Sleeps until `word` is no longer `calm` and has been woken (by Linux's private futex call), until there is
    /// something for [`Host::before_turn`] to look at, or until `limit` is over. May return early.
    fn sleep(&self, word: &AtomicU32, calm: u32, limit: Option<Duration>);
}

static HOST: OnceLock<&'static dyn Host> = OnceLock::new();

/// Installs the process's host, before its first executor runs. `false` if there is one already.
pub fn install(host: &'static dyn Host) -> bool {
    HOST.set(host).is_ok()
}

/// The host, if one is installed.
#[inline(always)]
pub(crate) fn host() -> Option<&'static dyn Host> {
    HOST.get().copied()
}
