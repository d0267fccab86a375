//! When memory runs out for good: the largest program ends, and the others go on.

use alloc::sync::Arc;
use heddle_signal::{Information, Signal};

use super::signal::send_to_process;
use super::{Process, Thread, table};
use crate::syscall::wait::WaitKind;
use crate::time::Deadline;

/// How long a thread waits for the victim's memory before it tries again.
const PATIENCE_NS: u64 = 100_000_000;

/// Makes room for a thread that found no memory: kills the largest program unless one is dying already, and waits until
/// it has ended, or for a while.
pub(super) async fn relieve(thread: &Arc<Thread>) {
    let victim = match dying() {
        Some(process) => process,
        None => {
            let Some((process, pages)) = largest() else { return };
            let name = process.main_thread().map_or([0; Thread::NAME_BYTES], |thread| thread.name());
            let name = core::str::from_utf8(&name).unwrap_or("?").trim_end_matches('\0');
            ::log::warn!("out of memory: process {} ({name}) ends, with {pages} pages", process.pid);
            // SIGKILL always finds room.
            let _ = send_to_process(&process, Information::kernel(Signal::KILL));
            process
        }
    };
    let ended = async {
        // Without memory for a watch the deadline below ends the wait.
        let _ = crate::sync::until(&victim.ended, || victim.exit_status().is_some()).await;
    };
    let mut ended = core::pin::pin!(ended);
    let mut sleep = Deadline::after(Some(PATIENCE_NS)).sleep();
    let either = core::future::poll_fn(|context| {
        if ended.as_mut().poll(context).is_ready() {
            return core::task::Poll::Ready(());
        }
        core::pin::Pin::new(&mut sleep).poll(context)
    });
    // The thread may be one of the victim's: then this is where it learns of it.
    let _ = thread.wait(WaitKind::Killable, either).await;
}

/// A process that is ending but still has its memory.
fn dying() -> Option<Arc<Process>> {
    let table = table::lock();
    let is_dying = |process: &Process| {
        let state = process.state.lock();
        state.ending.is_some() && !state.threads.is_empty()
    };
    table.processes().find(|process| is_dying(process)).cloned()
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
