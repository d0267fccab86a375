//! Sending signals.

use alloc::sync::Arc;
use heddle_kernel_core::signal::{Information, Signal, SignalSet};

use crate::error::Errno;
use crate::process::table::PidTable;
use crate::process::{Credentials, Process, Resource, Thread, table, timers, user_namespace};
use crate::wait::queue::Events;

/// The permission to send a signal, checked per process for kill(2).
pub struct Permission<'a> {
    /// The sender's process.
    pub sender: &'a Process,
    /// The sender's credentials.
    pub credentials: &'a Credentials,
}

impl Permission<'_> {
    /// Whether `signal` may be sent to `target`: same user, `CAP_KILL`, or `SIGCONT` within the session.
    pub fn allows(&self, target: &Process, signal: Option<Signal>) -> bool {
        let (ours, kill) = (self.credentials, linux_raw_sys::general::CAP_KILL);
        if ours.is_capable(kill) {
            return true;
        }
        let Some(theirs) = target.credentials() else {
            let uid = target.uid();
            return [ours.uid, ours.euid].contains(&uid);
        };
        if ours.is_capable_in(&theirs.users, kill) {
            return true;
        }
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
    send(process, None, None, information, None)
}

/// As [`send_to_process`], with the table of numbers locked.
///
/// # Errors
/// `EAGAIN`: a queued realtime signal found no room.
pub fn send_to_member(
    table: &PidTable,
    process: &Arc<Process>,
    information: Information,
) -> Result<(), Errno> {
    send(process, None, None, information, Some(table))
}

/// Sends a signal to the process of a thread, which takes it if it can.
///
/// # Errors
/// `EAGAIN`: a queued realtime signal found no room.
pub fn send_to_process_by(thread: &Arc<Thread>, information: Information) -> Result<(), Errno> {
    send(&thread.process, None, Some(thread), information, None)
}

/// Sends a signal to one thread.
///
/// # Errors
/// `EAGAIN`: a queued realtime signal found no room.
pub fn send_to_thread(thread: &Arc<Thread>, information: Information) -> Result<(), Errno> {
    send(&thread.process, Some(thread), None, information, None)
}

/// Sends a signal to every process of a group.
///
/// # Errors
/// `ESRCH`: the group has no process.
pub fn send_to_group(group: i32, information: Information) -> Result<(), Errno> {
    let table = table::lock();
    let members = table.group(group).ok_or(Errno::ESRCH)?;
    members.for_each(&table, |process| {
        // A realtime signal without room is lost here, as in Linux.
        let _ = send_to_member(&table, process, information);
    });
    drop(table);
    Ok(())
}

/// `table` is that of numbers, if the caller has locked it.
fn send(
    process: &Arc<Process>,
    target: Option<&Arc<Thread>>,
    preferred: Option<&Arc<Thread>>,
    mut information: Information,
    table: Option<&PidTable>,
) -> Result<(), Errno> {
    if user_namespace::is_in_use()
        && let Some(theirs) = process.credentials()
    {
        information.detail = information.detail.with_user(|user| theirs.shown_user(user));
    }
    if process.pids.is_some() {
        information.detail = information.detail.with_process(|pid| match table {
            Some(table) => table.shown(pid, &process.pids),
            None => process.shown(pid),
        });
    }
    let limit = usize::try_from(process.limit(Resource::PendingSignals).soft).unwrap_or(usize::MAX);
    let action = *process.actions().lock().get(information.signal);
    let sent = process.signal_state().send(target, preferred, information, &action, limit);
    process.wake_signal_watchers(Events::IN);
    if sent.has_continued {
        crate::signal::stop::notify_parent(process, table);
    }
    sent.result.map_err(|_| Errno::EAGAIN)
}

/// Takes a pending signal out of `wanted`: the thread's own first, then its process's.
#[must_use]
pub fn take_pending(thread: &Arc<Thread>, wanted: SignalSet) -> Option<Information> {
    let taken = thread.process.signal_state().take(thread, wanted);
    taken.map(|information| timers::delivered(&thread.process, information))
}

/// Makes a signal pending again that was taken and could not be reported. It stays with the thread that took it.
pub fn requeue(thread: &Thread, information: Information) {
    thread.requeue(information);
}

/// The signals that are pending for a thread itself, and those for its process.
#[must_use]
pub fn pending(thread: &Thread) -> (SignalSet, SignalSet) {
    let state = thread.process.signal_state();
    (thread.pending_signals(), state.pending())
}

/// How many instances of signals are queued for a process and its threads.
#[must_use]
pub fn queued_count(process: &Process) -> usize {
    let state = process.signal_state();
    state.queued() + state.threads().iter().map(|thread| thread.queued_signals()).sum::<usize>()
}

/// Forgets a pending signal that has become an ignored one.
pub fn discard(process: &Process, signal: Signal) {
    process.signal_state().forget(SignalSet::of(&[signal]));
}
