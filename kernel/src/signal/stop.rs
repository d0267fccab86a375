//! Stopping and going on: job control.

use alloc::sync::Arc;
use core::task::Poll;
use heddle_kernel_core::signal::{Detail, Information, Signal};
use linux_raw_sys::general as linux;

use crate::process::{Process, Thread};
use crate::signal::{ChildChange, PendingWork};
use crate::wait::queue::Events;

/// The thread's part of a stop: waits until the process goes on or the thread is to die.
pub(super) async fn wait(thread: &Arc<Thread>) {
    let is_last = thread.process.signal_state().enter_stop(thread);
    let Some(is_last) = is_last else { return };
    if is_last {
        notify_parent(&thread.process);
    }
    core::future::poll_fn(|_| {
        let work = thread.work();
        if !work.contains(PendingWork::STOP) || work.contains(PendingWork::DIE) {
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
        notify_parent(process);
    }
}

/// Tells the parent that its child has stopped or gone on: `SIGCHLD` unless it doesn't want it, and whoever waits.
pub fn notify_parent(process: &Arc<Process>) {
    let Some(parent) = process.parent() else { return };
    let (code, status) = match process.signal_state().change() {
        ChildChange::Stopped(signal) => (linux::CLD_STOPPED, signal.number()),
        ChildChange::Continued => (linux::CLD_CONTINUED, Signal::CONT.number()),
        ChildChange::None => return,
    };
    let wants = {
        let actions = parent.actions();
        let actions = actions.lock();
        let action = actions.get(Signal::CHLD);
        action.has_handler() && !action.flags.has(linux::SA_NOCLDSTOP)
    };
    if wants {
        let uid = process.credentials().map_or(0, |credentials| credentials.uid);
        let (user, system) = process.cpu_times();
        let detail = Detail::Child {
            pid: process.pid,
            uid,
            status,
            utime: crate::time::clock_ticks(user),
            stime: crate::time::clock_ticks(system),
        };
        let information = Information { signal: Signal::CHLD, code: code as i32, errno: 0, detail };
        // Only realtime signals can be refused.
        let _ = crate::signal::send_to_process(&parent, information);
    }
    parent.wake_parent(Events::IN);
}
