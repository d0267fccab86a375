//! When memory runs out for good: the largest program ends, and the others go on.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use heddle_kernel_core::signal::{Information, Signal};

use crate::memory::writeback;
use crate::process::{Process, Thread, table};
use crate::sched;
use crate::signal::send_to_process;

/// Takes pages that can be had again from the programs that have them mapped, and stores what was written to them.
/// False if another thread does so already: then there may be memory in a while.
pub async fn write_back() -> bool {
    static IS_EVICTING: AtomicBool = AtomicBool::new(false);
    if IS_EVICTING.swap(true, Ordering::AcqRel) {
        sched::yield_now().await;
        return false;
    }
    // Small, and one at a time: the emergency reserve has room for it.
    Box::pin(writeback::evict()).await;
    IS_EVICTING.store(false, Ordering::Release);
    true
}

/// Makes room for a thread that found no memory: kills the largest program unless one is dying already. The
/// thread gives way and tries again. Allocates nothing.
pub fn oom_kill() {
    if is_one_dying() {
        return;
    }
    let Some((process, pages)) = largest() else { return };
    let name = process.main_thread().map_or([0; Thread::NAME_BYTES], |thread| thread.name());
    let name = core::str::from_utf8(&name).unwrap_or("?").trim_end_matches('\0');
    ::log::warn!("out of memory: process {} ({name}) ends, with {pages} pages", process.pid);
    // SIGKILL always finds room.
    let _ = send_to_process(&process, Information::kernel(Signal::KILL));
}

/// Whether a process is ending but still has its memory.
fn is_one_dying() -> bool {
    let table = table::lock();
    let is_dying = |process: &Process| {
        let state = process.signal_state();
        state.ending().is_some() && !state.threads().is_empty()
    };
    let found = table.processes().any(|process| is_dying(process));
    drop(table);
    found
}

/// The process with the most pages in memory.
fn largest() -> Option<(Arc<Process>, usize)> {
    let mut next = 0;
    let mut largest: Option<(Arc<Process>, usize)> = None;
    while let Some(process) = table::next_process(next) {
        next = process.pid + 1;
        let space = process.main_thread().and_then(|thread| thread.try_space());
        let pages = space.map_or(0, |space| space.resident_pages());
        if pages > 0 && largest.as_ref().is_none_or(|(_, most)| pages > *most) {
            largest = Some((process, pages));
        }
    }
    largest
}
