//! Stopping and going on: job control.

use alloc::sync::Arc;
use heddle_kernel_core::signal::{Detail, Information, Signal, SignalSet};
use linux_raw_sys::general as linux;

use crate::process::{Process, Thread};
use crate::signal::{ChildChange, PendingWork, SignalState};
use crate::wait::queue::Events;

/// Begins a stop: every thread is told, and the last one to stop tells the parent.
pub(super) fn begin(process: &Arc<Process>, signal: Signal) {
    let mut state = process.state.lock();
    if state.ending.is_some() {
        return;
    }
    state.stop = Some(signal);
    for thread in &state.threads {
        thread.add_work(PendingWork::STOP);
        thread.kick();
    }
}

/// Ends a stop and forgets signals that would stop the process again. Returns whether the parent is to be told.
pub(super) fn resume(state: &mut SignalState, is_continue: bool) -> bool {
    crate::signal::send::forget(state, SignalSet::STOPS);
    let Some(_) = state.stop.take() else { return false };
    let was_stopped = is_stopped(state);
    for thread in &state.threads {
        thread.remove_work(PendingWork::STOP);
        thread.kick();
    }
    if was_stopped && is_continue {
        state.change = ChildChange::Continued;
    } else if was_stopped {
        state.change = ChildChange::None;
    }
    was_stopped && is_continue
}

fn is_stopped(state: &SignalState) -> bool {
    state.threads.iter().all(|thread| thread.work().contains(PendingWork::STOPPED))
}

/// The thread's part of a stop: waits until the process goes on or the thread is to die.
pub(super) async fn wait(thread: &Arc<Thread>) {
    let process = &thread.process;
    let stopped_by = {
        let mut state = process.state.lock();
        if !thread.work().contains(PendingWork::STOP) || thread.work().contains(PendingWork::DIE) {
            return;
        }
        thread.add_work(PendingWork::STOPPED);
        let is_last = is_stopped(&state);
        if is_last {
            state.change = state.stop.map_or(ChildChange::None, ChildChange::Stopped);
        }
        is_last
    };
    if stopped_by {
        notify_parent(process);
    }
    core::future::poll_fn(|_| {
        let work = thread.work();
        if !work.contains(PendingWork::STOP) || work.contains(PendingWork::DIE) {
            core::task::Poll::Ready(())
        } else {
            core::task::Poll::Pending
        }
    })
    .await;
    thread.remove_work(PendingWork::STOPPED);
}

/// A thread that ended while its process stops may have been the one that others waited for.
pub fn thread_left(process: &Arc<Process>) {
    let is_complete = {
        let mut state = process.state.lock();
        let is_complete = state.stop.is_some()
            && !state.threads.is_empty()
            && !matches!(state.change, ChildChange::Stopped(_))
            && is_stopped(&state);
        if is_complete {
            state.change = state.stop.map_or(ChildChange::None, ChildChange::Stopped);
        }
        is_complete
    };
    if is_complete {
        notify_parent(process);
    }
}

/// Tells the parent that its child has stopped or gone on: `SIGCHLD` unless it doesn't want it, and whoever waits.
pub fn notify_parent(process: &Arc<Process>) {
    let Some(parent) = process.parent() else { return };
    let (code, status) = match process.state.lock().change {
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
    parent.child_events.wake(Events::IN);
}
