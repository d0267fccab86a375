//! Which core a thread is running, and spawning there.

use crate::builder::{Builder, SpawnError};
use crate::core_entry::CoreEntry;
use crate::handle::{JoinHandle, LocalJoinHandle};
use crate::machine::{shared_work, spawn_by};
use crate::registry::{Global, why_no_slot};
use crate::sched::Id;
use core::cell::Cell;
use core::future::Future;

std::thread_local! {
    static HERE: Cell<Option<&'static CoreEntry>> = const { Cell::new(None) };
}

/// The core that the calling thread is running.
#[inline(always)]
pub(crate) fn here() -> Option<&'static CoreEntry> {
    HERE.get()
}

/// A number of the calling thread, which no other has as long as it lives; not 0.
pub(crate) fn token() -> usize {
    HERE.with(|here| core::ptr::from_ref(here).addr())
}

/// Runs `f` with the calling thread as the owner of `entry`.
#[inline(always)]
pub(crate) fn enter<R>(entry: &'static CoreEntry, f: impl FnOnce() -> R) -> R {
    struct Reset(Option<&'static CoreEntry>);
    impl Drop for Reset {
        fn drop(&mut self) {
            HERE.set(self.0);
            if self.0.is_none() {
                crate::reactor::hand_over();
            }
        }
    }
    let _reset = Reset(HERE.replace(Some(entry)));
    f()
}

/// The coroutine in which the caller runs.
#[inline]
pub fn current_id() -> Option<Id> {
    here()?.current()
}

/// Spawns `future` at the default priority on the executor on which the caller runs.
///
/// # Panics
/// Outside of an executor, or if there is no memory; see [`try_spawn`].
#[inline]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    try_spawn(Builder::new(), future).expect("spawn")
}

/// Spawns `future` as `builder` says on the executor on which the caller runs.
#[inline]
pub fn try_spawn<F>(builder: Builder, future: F) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let entry = here().ok_or(SpawnError::NoExecutor)?;
    spawn_by(builder, future, false, |task| {
        // A mask that excludes this core is honoured when the coroutine is picked.
        let id = entry.spawn(&Global, task, builder.rank);
        shared_work(entry);
        id.ok_or_else(why_no_slot)
    })
}

/// Spawns `future`, which need not be `Send`, on the [`LocalExecutor`](crate::LocalExecutor) on which the caller runs.
///
/// # Panics
/// Outside of such an executor, or if there is no memory; see [`try_spawn_local`].
#[inline]
pub fn spawn_local<F: Future + 'static>(future: F) -> LocalJoinHandle<F::Output> {
    try_spawn_local(Builder::new(), future).expect("spawn_local")
}

/// Like [`spawn_local`], as `builder` says.
#[inline]
pub fn try_spawn_local<F: Future + 'static>(
    builder: Builder,
    future: F,
) -> Result<LocalJoinHandle<F::Output>, SpawnError> {
    let entry = here().filter(|entry| entry.shared().is_null()).ok_or(SpawnError::NoExecutor)?;
    crate::local::spawn_into(entry, builder, future)
}
