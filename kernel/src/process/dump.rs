//! Core dumps as far as a process is concerned: how they are named, what is in them, and the threads that wait while
//! one is written. `syscall/process/core_dump` writes them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use heddle_kernel_core::core_dump::{DumpFacts, Pattern};

use crate::arch::UserContext;
use crate::call::caller::Caller;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::Thread;
use crate::sync::SpinLock;
use crate::wait::engine;
use crate::wait::node::WaitKind;

static PATTERN: SpinLock<Pattern> = SpinLock::new(Pattern::initial());

/// The smallest limit under which a dump is begun, as in Linux.
pub const SIZE_MIN: u64 = 4096;

/// `/proc/sys/kernel/core_pattern`, and `core_uses_pid`.
#[must_use]
pub fn pattern() -> Pattern {
    *PATTERN.lock()
}

/// Sets the pattern.
///
/// # Errors
/// `EINVAL`: dumps are not piped to programs.
pub fn set_pattern(line: &[u8]) -> Result<(), Errno> {
    if PATTERN.lock().set(line) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Sets whether the number of the process is added to names without one.
pub fn set_adds_pid(adds_pid: bool) {
    PATTERN.lock().adds_pid = adds_pid;
}

/// The name of a dump.
///
/// # Errors
/// `ENOMEM`; `ENOENT`: the pattern gives none.
pub fn file_name(facts: &DumpFacts<'_>) -> Result<Vec<u8>, Errno> {
    let name = pattern().expand(facts).map_err(|_| Errno::ENOMEM)?;
    name.ok_or(Errno::ENOENT)
}

/// The part of a thread that is about to end in a dump of its process: it waits until that is written, with its
/// registers where the writer finds them. Without memory for that it is not in the dump.
pub async fn wait(thread: &Arc<Thread>, context: &UserContext) {
    let Ok(kept) = fallible::try_box(context.clone()) else { return };
    let process = &thread.process;
    thread.keep_context(kept);
    if !process.signal_state().park(thread) {
        return;
    }
    process.wake_thread_watchers();
    let caller = Caller::Thread(thread.clone());
    let waited = engine::answer(&caller, WaitKind::Uninterruptible, |watch| {
        process.watch_threads(watch)?;
        Ok((!process.signal_state().is_dumping()).then_some(()))
    });
    if waited.await.is_err() {
        process.signal_state().unpark();
    }
}

/// Waits until all other threads of the process wait for the end of a dump.
///
/// # Errors
/// `ENOMEM`; the process is to end without a dump.
pub async fn wait_for_others(thread: &Arc<Thread>) -> Result<(), Errno> {
    let process = &thread.process;
    let caller = Caller::Thread(thread.clone());
    engine::answer(&caller, WaitKind::Killable, |watch| {
        process.watch_threads(watch)?;
        Ok(process.signal_state().are_others_parked().then_some(()))
    })
    .await
}
