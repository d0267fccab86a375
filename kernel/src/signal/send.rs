//! Sending signals.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use heddle_kernel_core::signal::{DefaultAction, Information, Signal, SignalSet};

use crate::error::Errno;
use crate::process::{Credentials, ExitStatus, Process, Resource, Thread, table};
use crate::signal::{PendingWork, SignalState};
use crate::wait::queue::Events;

/// Who may send, checked per process for kill(2).
pub struct Permission<'a> {
    /// The sender's process.
    pub sender: &'a Process,
    /// The sender's credentials.
    pub credentials: &'a Credentials,
}

impl Permission<'_> {
    /// Whether `signal` may be sent to `target`: same user, `CAP_KILL`, or `SIGCONT` within the session.
    pub fn allows(&self, target: &Process, signal: Option<Signal>) -> bool {
        if self.credentials.is_capable(linux_raw_sys::general::CAP_KILL) {
            return true;
        }
        let ours = self.credentials;
        let Some(theirs) = target.credentials() else {
            let uid = target.uid.load(Ordering::Relaxed);
            return [ours.uid, ours.euid].contains(&uid);
        };
        let is_same_user =
            [ours.uid, ours.euid].iter().any(|&user| user == theirs.uid || user == theirs.suid);
        is_same_user || signal == Some(Signal::CONT) && target.session().id == self.sender.session().id
    }
}

/// Sends a signal to a process as a whole.
///
/// # Errors
/// `EAGAIN`: a queued realtime signal found no room.
pub fn send_to_process(process: &Arc<Process>, information: Information) -> Result<(), Errno> {
    send(process, None, information)
}

/// Sends a signal to one thread.
///
/// # Errors
/// `EAGAIN`: a queued realtime signal found no room.
pub fn send_to_thread(thread: &Arc<Thread>, information: Information) -> Result<(), Errno> {
    send(&thread.process, Some(thread), information)
}

/// Sends a signal to every process of a group.
///
/// # Errors
/// `ESRCH`: the group has no process.
pub fn send_to_group(group: i32, information: Information) -> Result<(), Errno> {
    let table = table::lock();
    let mut found = false;
    for process in table.processes().filter(|process| process.group.lock().id == group) {
        found = true;
        // A realtime signal without room is lost here, as in Linux.
        let _ = send_to_process(process, information);
    }
    if found { Ok(()) } else { Err(Errno::ESRCH) }
}

fn send(process: &Arc<Process>, target: Option<&Arc<Thread>>, information: Information) -> Result<(), Errno> {
    let signal = information.signal;
    let limit = usize::try_from(process.limit(Resource::PendingSignals).soft).unwrap_or(usize::MAX);
    let action = *process.actions().lock().get(signal);
    let mut went_on = false;
    let mut state = process.state.lock();
    if state.ended.is_some() || state.ending.is_some() && signal != Signal::KILL {
        return Ok(());
    }
    if signal == Signal::CONT || signal == Signal::KILL {
        went_on = crate::signal::stop::resume(&mut state, signal == Signal::CONT);
    } else if SignalSet::STOPS.contains(signal) {
        forget(&mut state, SignalSet::of(&[Signal::CONT]));
    }
    let blocked = match target.or(state.threads.first()) {
        Some(thread) => thread.blocked().union(thread.awaited()),
        None => return Ok(()),
    };
    let result = if action.ignores(signal) && !blocked.contains(signal) {
        Ok(())
    } else {
        let pushed = match target {
            Some(thread) => thread.pending.lock().push(information, limit),
            None => state.pending.push(information, limit),
        };
        pushed.map_err(|_| Errno::EAGAIN).map(|()| {
            let is_fatal = !action.has_handler()
                && matches!(DefaultAction::of(signal), DefaultAction::Terminate | DefaultAction::Core);
            notify(&mut state, target, signal, is_fatal);
        })
    };
    drop(state);
    process.signal_events.wake(Events::IN);
    if went_on {
        crate::signal::stop::notify_parent(process);
    }
    result
}

/// Takes a pending signal out of `wanted`: the thread's own first, then its process's.
pub fn take_pending(thread: &Thread, wanted: SignalSet) -> Option<Information> {
    let taken = {
        let mut state = thread.process.state.lock();
        let own = thread.pending.lock().take(wanted);
        own.or_else(|| state.pending.take(wanted))
    };
    taken.map(|information| crate::process::timers::delivered(&thread.process, information))
}

/// Makes a signal pending again that was taken and could not be reported. It stays with the thread that took it.
pub fn requeue(thread: &Thread, information: Information) {
    // Without memory for what is known of it, the signal itself stays.
    let _ = thread.pending.lock().push(information, usize::MAX);
}

/// The signals that are pending for a thread itself, and those for its process.
#[must_use]
pub fn pending(thread: &Thread) -> (SignalSet, SignalSet) {
    let state = thread.process.state.lock();
    let own = thread.pending.lock().set();
    (own, state.pending.set())
}

/// Finds a thread that takes the signal and tells it; a fatal signal ends the process at once.
fn notify(state: &mut SignalState, target: Option<&Arc<Thread>>, signal: Signal, is_fatal: bool) {
    let takes = |thread: &Arc<Thread>| signal == Signal::KILL || !thread.blocked().contains(signal);
    let chosen = match target {
        Some(thread) => Some(thread.clone()).filter(takes),
        None => state.threads.iter().find(|thread| takes(thread)).cloned(),
    };
    let Some(thread) = chosen else { return };
    if is_fatal && !thread.awaited().contains(signal) {
        let core = DefaultAction::of(signal) == DefaultAction::Core;
        start_group_exit(state, ExitStatus::Signaled { signal, core });
        return;
    }
    thread.add_work(PendingWork::SIGNAL);
    thread.kick();
}

/// Begins the end of a process: the first status counts, every thread is told.
pub fn start_group_exit(state: &mut SignalState, status: ExitStatus) {
    state.ending.get_or_insert(status);
    state.stop = None;
    for thread in &state.threads {
        thread.add_work(PendingWork::DIE);
        thread.kick();
    }
}

/// Tells every thread but `survivor` to end.
pub fn kill_other_threads(state: &SignalState, survivor: &Arc<Thread>) {
    for thread in state.threads.iter().filter(|thread| !Arc::ptr_eq(thread, survivor)) {
        thread.add_work(PendingWork::DIE);
        thread.kick();
    }
}

/// Sets or clears a thread's note that a signal is to be delivered, after its mask has changed.
pub fn recheck(thread: &Thread) {
    let state = thread.process.state.lock();
    let wanted = SignalSet::ALL.difference(thread.blocked());
    if state.pending.has(wanted) || thread.pending.lock().has(wanted) {
        thread.add_work(PendingWork::SIGNAL);
    } else {
        thread.remove_work(PendingWork::SIGNAL);
    }
}

/// Forgets pending signals of the process and all its threads.
pub(super) fn forget(state: &mut SignalState, signals: SignalSet) {
    state.pending.remove(signals);
    for thread in &state.threads {
        thread.pending.lock().remove(signals);
    }
}

/// Forgets a pending signal that has become an ignored one.
pub fn discard(process: &Process, signal: Signal) {
    forget(&mut process.state.lock(), SignalSet::of(&[signal]));
}
