//! The place where threads of executors sleep and look for events, if it is not plain Linux: a runtime whose kernel
//! tells of finished system calls, say.

use crate::sched::Id;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::OnceLock;

/// Where executors run. Its functions must not panic: a panic within `block_on` ends the process, elsewhere it leaves
/// the core as it is.
pub trait Host: Sync {
    /// Called by every executor thread before each turn. Looks for events, which may wake coroutines, and then has
    /// `settle` apply what others have left with the core: it returns the bitmap of the levels that are ready there,
    /// all of that included. May let something else run; then it does both again before it returns.
    fn before_turn(&self, settle: &dyn Fn() -> u64);

    /// Sleeps until `word` is no longer `calm` and has been woken (by Linux's private futex call), until there is
    /// something for [`Host::before_turn`] to look at, or until `limit` is over. May return early.
    fn sleep(&self, word: &AtomicU32, calm: u32, limit: Option<Duration>);

    /// The coroutine `id` is ready at `level` from now on. Called under a gate: must not call this crate.
    fn queued(&self, id: Id, level: u8) {
        let _ = (id, level);
    }

    /// The coroutine `id`, if it has not ended, has been woken, and is ready once its core has noticed. Called from any
    /// context, signal handlers included.
    fn posted(&self, id: Id) {
        let _ = id;
    }

    /// The coroutine `id`, if it has not ended, was spawned with this [kind](crate::Builder::kind), which is not 0.
    fn is_of_kind(&self, id: Id, kind: u32) {
        let _ = (id, kind);
    }

    /// The coroutine `id` begins a turn at `level`.
    fn turn_begins(&self, id: Id, level: u8) {
        let _ = (id, level);
    }

    /// Its turn ends, and it with it if it `has_ended`. It may be queued at once.
    fn turn_ends(&self, id: Id, has_ended: bool) {
        let _ = (id, has_ended);
    }

    /// The calling thread is about to fork: locks what its child is to find whole.
    fn before_fork(&self) {}

    /// The calling thread has forked, and is in the child or in the parent.
    fn after_fork(&self, is_child: bool) {
        let _ = is_child;
    }

    /// Whether [`Host::urgent`] is of use: executors of several threads then watch, during each turn, for what others
    /// make ready on them.
    fn is_watching(&self) -> bool {
        false
    }

    /// Something of `level` has been left with a core that runs something less urgent, or is about to, and no core is
    /// idle: makes the thread in [`Host::stand_by`] return, now or when it is next there. That thread may be the
    /// caller. Called from any context.
    fn urgent(&self, level: u8) {
        let _ = level;
    }

    /// Something of `level` has been left where the calling thread takes it from when its turn ends, or before the
    /// next.
    fn raise(&self, level: u8) {
        let _ = level;
    }

    /// The calling thread is that of the core in reserve: from now on [`Host::urgent`] reaches it.
    fn reserve(&self) {}

    /// Sleeps, as the thread of the core that an executor has in reserve
    /// ([`Executor::with_reserve`](crate::Executor::with_reserve)), until there may be something for it.
    fn stand_by(&self) -> Told {
        Told::Urgent
    }
}

/// Why the core in reserve is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Told {
    /// Something more urgent than what another core runs may be ready.
    Urgent,
    /// No other core's thread can run: whatever is ready is for the reserve.
    Spare,
}

static HOST: OnceLock<&'static dyn Host> = OnceLock::new();
/// 1: there is a host. Looked at several times a turn, so that those who have none pay for no more.
static IS_HOSTED: AtomicU32 = AtomicU32::new(0);

/// Installs the process's host, before its first executor runs. `false` if there is one already.
pub fn install(host: &'static dyn Host) -> bool {
    let installed = HOST.set(host).is_ok();
    IS_HOSTED.store(1, Ordering::Release);
    installed
}

/// The host, if one is installed.
#[inline(always)]
pub(crate) fn host() -> Option<&'static dyn Host> {
    if IS_HOSTED.load(Ordering::Relaxed) == 0 { None } else { installed() }
}

#[cold]
#[inline(never)]
fn installed() -> Option<&'static dyn Host> {
    HOST.get().copied()
}
