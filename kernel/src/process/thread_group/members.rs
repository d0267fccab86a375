//! The threads of a process, and the signals and the end that they share.

use alloc::sync::Arc;
use heddle_kernel_core::signal::{Actions, SignalSet};

use crate::error::Errno;
use crate::process::{Credentials, ExitStatus, Process, Thread};
use crate::signal::SignalState;
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::queue::{Events, WaitQueue, Watch};

pub(super) struct Members {
    state: SpinLock<SignalState>,
    actions: SpinLock<Arc<SpinLock<Actions>>>,
    /// Notified when a thread has ended: `execve` waits for the others; also for the steps of a core dump.
    thread_events: WaitQueue,
    /// Notified when a signal has come, held back or not: `signalfd`.
    signal_events: WaitQueue,
}

impl Members {
    pub(super) const fn new(actions: Arc<SpinLock<Actions>>) -> Self {
        Self {
            state: SpinLock::new(SignalState::new()),
            actions: SpinLock::new(actions),
            thread_events: WaitQueue::new(),
            signal_events: WaitQueue::new(),
        }
    }
}

impl Process {
    /// Locks what signals, stops and endings are about.
    pub fn signal_state(&self) -> SpinGuard<'_, SignalState> {
        self.members.state.lock()
    }

    /// The actions of signals.
    #[must_use]
    pub fn actions(&self) -> Arc<SpinLock<Actions>> {
        self.members.actions.lock().clone()
    }

    /// Replaces the actions of signals; the ones before are dropped.
    pub(in crate::process) fn set_actions(&self, actions: Arc<SpinLock<Actions>>) {
        let before = core::mem::replace(&mut *self.members.actions.lock(), actions);
        drop(before);
    }

    /// The signals that are pending for the process as a whole.
    #[must_use]
    pub fn pending_signals(&self) -> SignalSet {
        self.signal_state().pending()
    }

    /// The number of threads that have not ended.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.signal_state().threads().len()
    }

    /// The thread with the smallest number from `from` on, to walk the threads without holding a lock.
    #[must_use]
    pub fn next_thread(&self, from: i32) -> Option<Arc<Thread>> {
        self.signal_state().next_from(from).cloned()
    }

    /// The threads in the order of their numbers; no lock is held between two of them.
    pub fn threads(&self) -> impl Iterator<Item = Arc<Thread>> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let thread = self.next_thread(from)?;
            from = thread.tid().saturating_add(1);
            Some(thread)
        })
    }

    /// The thread that stands for the process: its first, or any other when that has ended. `None` for a zombie.
    #[must_use]
    pub fn main_thread(&self) -> Option<Arc<Thread>> {
        self.signal_state().main(self.pid).cloned()
    }

    /// The credentials that the process acts with; `None` for a zombie.
    #[must_use]
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.main_thread().map(|thread| thread.credentials())
    }

    /// How the process ended, once its last thread has.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.signal_state().ended()
    }

    /// Has a watch told when a thread has ended.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(in crate::process) fn watch_threads(&self, watch: &Watch) -> Result<(), Errno> {
        self.members.thread_events.watch(watch, Events::all())
    }

    /// A thread has ended, or waits before its end.
    pub fn wake_thread_watchers(&self) {
        self.members.thread_events.wake(Events::all());
    }

    /// Has a watch told when a signal has come.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch_signals(&self, watch: &Watch, events: Events) -> Result<(), Errno> {
        self.members.signal_events.watch(watch, events)
    }

    /// A signal has come.
    pub fn wake_signal_watchers(&self, events: Events) {
        self.members.signal_events.wake(events);
    }

    pub(super) fn clear_signal_watches(&self) {
        self.members.signal_events.clear();
    }
}
