//! Stopping and continuing.

use alloc::sync::Arc;

use crate::signal::{Signal, SignalSet};
use crate::signal_state::{ChildChange, GroupState, Member, Note};

/// When a stop signal was dequeued. The lock is released before the stop begins, since whether its group is orphaned is
/// looked up elsewhere; a `SIGCONT` that comes in between makes the token void, and the stop doesn't begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopToken(u64);

impl<M> GroupState<M> {
    pub(super) const fn stop_token(&self) -> StopToken {
        StopToken(self.continues)
    }

    /// Whether the group stops or has stopped.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }
}

impl<M: Member> GroupState<M> {
    /// Begins a stop, unless something has ended it since its signal was dequeued: every thread is told, and the last
    /// one to stop tells the parent.
    pub fn begin_stop(&mut self, token: StopToken, signal: Signal) {
        if self.ending.is_some() || token != self.stop_token() {
            return;
        }
        self.stop = Some(signal);
        for thread in &self.threads {
            thread.add(Note::STOP);
            self.notify_trace(thread);
            thread.kick();
        }
    }

    /// Ends a stop and forgets signals that would stop the group again. Returns whether the parent is to be told.
    pub(super) fn resume(&mut self, is_continue: bool) -> bool {
        self.forget(SignalSet::STOPS);
        self.continues += 1;
        if self.stop.take().is_none() {
            return false;
        }
        let was_stopped = self.are_all_stopped();
        for thread in &self.threads {
            thread.remove(Note::STOP);
            self.notify_trace(thread);
            thread.kick();
        }
        if was_stopped {
            self.change = if is_continue { ChildChange::Continued } else { ChildChange::None };
        }
        was_stopped && is_continue
    }

    /// A thread that is about to end takes no part in a stop any more.
    fn are_all_stopped(&self) -> bool {
        self.threads.iter().all(|thread| thread.notes().intersects(Note::STOPPED | Note::LEAVING))
    }

    /// The thread's part of a stop begins. `None`: there is none any more. Otherwise whether the parent is to be told,
    /// because all threads have stopped now.
    pub fn enter_stop(&mut self, thread: &Arc<M>) -> Option<bool> {
        if !should_stay_stopped(thread) {
            return None;
        }
        thread.add(Note::STOPPED);
        Some(self.complete_stop())
    }

    /// Counts a stop as complete if all threads have stopped; whether the parent is to be told of it.
    #[must_use]
    pub fn complete_stop(&mut self) -> bool {
        let Some(signal) = self.stop else { return false };
        let is_told = matches!(self.change, ChildChange::Stopped(_));
        let are_there = self.threads.iter().any(|thread| thread.notes().contains(Note::STOPPED));
        if is_told || !are_there || !self.are_all_stopped() {
            return false;
        }
        self.change = ChildChange::Stopped(signal);
        true
    }
}

/// Whether a thread that stops, or has stopped, is to stay so.
pub(super) fn should_stay_stopped<M: Member>(thread: &Arc<M>) -> bool {
    let notes = thread.notes();
    notes.contains(Note::STOP) && !notes.contains(Note::DIE)
}
