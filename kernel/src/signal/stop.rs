//! Stopping and going on: job control.

use alloc::sync::Arc;
use core::task::Poll;
use heddle_kernel_core::signal::Signal;
use linux_raw_sys::general as linux;

use crate::process::control_group::freeze::FrozenThread;
use crate::process::table::PidTable;
use crate::process::{Process, Thread};
use crate::signal::trace::ProcessChange;
use crate::signal::{ChildChange, PendingWork, trace};

/// The thread's part of a stop: waits until the process goes on or the thread is to die.
pub(super) async fn wait(thread: &Arc<Thread>) {
    let is_last = thread.process.signal_state().enter_stop(thread);
    let Some(is_last) = is_last else { return };
    if is_last {
        notify_parent(&thread.process, None);
    }
    let mut frozen = FrozenThread::default();
    core::future::poll_fn(|_| {
        // It stands still already, which is all that its control group wants.
        frozen.update(thread);
        let work = thread.work();
        if !work.contains(PendingWork::STOP) || work.intersects(PendingWork::DIE | PendingWork::TRAP) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    thread.remove_work(PendingWork::STOPPED);
}

/// A thread that ended while its process stops may have been the one that others waited for.
pub fn thread_left(process: &Arc<Process>) {
    let is_complete = process.signal_state().complete_stop();
    if is_complete {
        notify_parent(process, None);
    }
}

/// Tells the parent that its child has stopped or gone on: `SIGCHLD` unless it doesn't want it, and whoever waits.
/// `table` is that of numbers, if the caller has locked it.
pub fn notify_parent(process: &Arc<Process>, table: Option<&PidTable>) {
    let Some(parent) = process.parent() else { return };
    let (code, status) = match process.signal_state().change() {
        ChildChange::Stopped(signal) => (linux::CLD_STOPPED, signal.number()),
        ChildChange::Continued => (linux::CLD_CONTINUED, Signal::CONT.number()),
        ChildChange::None => return,
    };
    let uid = process.credentials().map_or(0, |credentials| credentials.uid);
    trace::tell_change(&parent, &ProcessChange { pid: process.pid, uid, code, status, process }, table);
}
