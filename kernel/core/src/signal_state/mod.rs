//! Signals and job control of a thread group: the decisions, without a machine.
//!
//! [`GroupState`] is what Linux keeps under `siglock`: its threads, the signals that are pending for all of them, the
//! stop and the end. It decides which thread takes a signal, finds another one when that thread blocks the signal or
//! ends, and lets a `SIGCONT` win against a stop whose signal was dequeued before. A thread is a [`Member`], told by
//! notes that it looks at before it returns to user mode.
//!
//! Two properties hold whenever the lock is free, and `models.rs` checks them under loom: a pending signal that some
//! living thread does not block is noted at such a thread, which is awake; and after a `SIGCONT` no thread is stopped
//! by a stop signal that was sent before it.

mod dump;
mod member;
#[cfg(all(test, heddle_loom))]
mod models;
mod orphan;
mod status;
mod stop;
#[cfg(all(test, not(heddle_loom)))]
mod tests;
mod trace;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fallible::insert_reserved;
use crate::signal::{Action, Actions, DefaultAction, Information, Overflow, Pending, Signal, SignalSet};

pub use member::{Member, Note};
pub use orphan::{Link, is_orphaned};
pub use status::{ChildChange, ExitStatus};
pub use stop::StopToken;
pub use trace::{NotStopped, Resume, Resumed, StopKind, Trace, TraceEvent, TraceOptions, TraceStop};

/// The state of a thread group for signals, stops and its end. The caller has locked it.
pub struct GroupState<M> {
    /// The threads that have not ended, in the order of their numbers.
    threads: Vec<Arc<M>>,
    /// Signals for the group as a whole.
    pending: Pending,
    /// The group is ending, with this status; set once.
    ending: Option<ExitStatus>,
    /// The group has ended: no thread is left.
    ended: Option<ExitStatus>,
    /// The signal that stops or has stopped the group.
    stop: Option<Signal>,
    /// How often something has ended stops: see [`StopToken`].
    continues: u64,
    /// The change that the parent has not been told yet.
    change: ChildChange,
    /// The number of the thread that runs `execve` and ends all others.
    exec: Option<i32>,
    /// How many of the threads are giving up what they have.
    leaving: usize,
    /// Signals that leave a core dump are taken by a thread.
    dumps: bool,
    /// The first process of a PID namespace: it gets no signal that it has no handler for, but those that end or stop
    /// it from outside.
    is_init: bool,
    /// The number of the thread that writes a core dump, and how many others wait for that before they end.
    dumper: Option<i32>,
    parked: usize,
}

/// The result of sending a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Sent {
    /// A queued realtime signal may find no room.
    pub result: Result<(), Overflow>,
    /// The group was stopped and continues: its parent is to be told.
    pub has_continued: bool,
}

/// A signal that a thread is to act on.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// The signal.
    pub information: Information,
    /// The action to take.
    pub action: Action,
    /// For a signal that stops: the token for [`GroupState::begin_stop`].
    pub token: StopToken,
    /// The thread's tracer is asked first; the action has not been taken.
    pub is_traced: bool,
}

/// No thread can be added: the group ends, or becomes one thread in `execve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl<M> Default for GroupState<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> GroupState<M> {
    /// No threads, nothing pending.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            threads: Vec::new(),
            pending: Pending::new(),
            ending: None,
            ended: None,
            stop: None,
            continues: 0,
            change: ChildChange::None,
            exec: None,
            leaving: 0,
            dumps: false,
            is_init: false,
            dumper: None,
            parked: 0,
        }
    }

    /// The threads that have not ended, in the order of their numbers.
    #[must_use]
    pub fn threads(&self) -> &[Arc<M>] {
        &self.threads
    }

    /// The signals that are pending for the group.
    #[must_use]
    pub const fn pending(&self) -> SignalSet {
        self.pending.set()
    }

    /// How many instances of signals are queued for the group as a whole.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.pending.queued()
    }

    /// An instance of a signal that is queued for the group as a whole, the oldest first.
    #[must_use]
    pub fn queued_signal(&self, index: usize) -> Option<Information> {
        self.pending.get(index).copied()
    }

    /// How the group is ending, if it is.
    #[must_use]
    pub const fn ending(&self) -> Option<ExitStatus> {
        self.ending
    }

    /// How the group has ended, if it has.
    #[must_use]
    pub const fn ended(&self) -> Option<ExitStatus> {
        self.ended
    }

    /// The change that the parent has not been told yet.
    #[must_use]
    pub const fn change(&self) -> ChildChange {
        self.change
    }

    /// The parent has been told.
    pub const fn report_change(&mut self) {
        self.change = ChildChange::None;
    }

    /// Whether a thread runs `execve` and ends all others.
    #[must_use]
    pub const fn is_in_exec(&self) -> bool {
        self.exec.is_some()
    }

    /// The group is the first process of a PID namespace.
    pub const fn set_init(&mut self) {
        self.is_init = true;
    }

    /// Whether the first process of a namespace takes no notice of the signal.
    const fn is_spared(&self, signal: Signal, action: &Action) -> bool {
        self.is_init && !action.has_handler() && !SignalSet::UNBLOCKABLE.contains(signal)
    }

    /// `execve` has ended the other threads, or was interrupted.
    pub const fn end_exec(&mut self) {
        self.exec = None;
    }

    /// The last thread has gone. Returns what was pending, to be dropped without the lock.
    #[must_use]
    pub fn finish(&mut self) -> Pending {
        self.ended = self.ending;
        self.stop = None;
        core::mem::take(&mut self.pending)
    }
}

impl<M: Member> GroupState<M> {
    fn position(&self, id: i32) -> Result<usize, usize> {
        self.threads.binary_search_by_key(&id, |thread| thread.id())
    }

    /// The thread with the smallest number from `from` on.
    #[must_use]
    pub fn next_from(&self, from: i32) -> Option<&Arc<M>> {
        let (Ok(position) | Err(position)) = self.position(from);
        self.threads.get(position)
    }

    /// The thread of this number, or else any: the thread that represents the group.
    #[must_use]
    pub fn main(&self, id: i32) -> Option<&Arc<M>> {
        match self.position(id) {
            Ok(position) => self.threads.get(position),
            Err(_) => self.threads.first(),
        }
    }

    /// Makes room for one more thread. `false`: there is no memory.
    #[must_use]
    pub fn reserve(&mut self) -> bool {
        self.threads.try_reserve(1).is_ok()
    }

    /// Adds a thread; there is room by [`GroupState::reserve`]. One that comes while the group stops takes part.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn add(&mut self, thread: Arc<M>) -> Result<(), Closed> {
        if self.ending.is_some() || self.exec.is_some() {
            return Err(Closed);
        }
        if self.stop.is_some() {
            thread.add(Note::STOP);
        }
        let (Ok(position) | Err(position)) = self.position(thread.id());
        insert_reserved(&mut self.threads, position, thread);
        Ok(())
    }

    /// Takes a thread out; the caller drops it without the lock. The last one settles how the group ends: with
    /// `status`, unless that has been decided.
    #[must_use]
    pub fn remove(&mut self, thread: &Arc<M>, status: ExitStatus) -> (Option<Arc<M>>, bool) {
        if thread.notes().contains(Note::LEAVING) {
            self.leaving -= 1;
        }
        let taken = self.take_out(thread);
        let is_last = self.threads.is_empty();
        if is_last {
            self.ending.get_or_insert(status);
        }
        (taken, is_last)
    }

    /// Takes out a thread that never ran.
    #[must_use]
    pub fn take_out(&mut self, thread: &Arc<M>) -> Option<Arc<M>> {
        let position = self.threads.iter().position(|each| Arc::ptr_eq(each, thread))?;
        Some(self.threads.remove(position))
    }

    /// The thread begins to end: it takes no more signals, so others get those that it could have taken. Returns
    /// whether all others have begun before.
    pub fn begin_leave(&mut self, thread: &Arc<M>) -> bool {
        thread.add(Note::LEAVING);
        self.leaving += 1;
        self.retarget(thread, SignalSet::ALL.difference(thread.blocked()));
        self.leaving == self.threads.len()
    }

    /// Begins the end of the group: the first status counts, every thread is told.
    pub fn begin_exit(&mut self, status: ExitStatus) {
        self.ending.get_or_insert(status);
        self.stop = None;
        for thread in &self.threads {
            thread.add(Note::DIE);
            thread.kick();
        }
    }

    /// The thread runs `execve`: every other one is told to end. Returns whether there is any.
    ///
    /// # Errors
    /// [`Closed`]: another thread is at this already, or the group ends.
    pub fn begin_exec(&mut self, survivor: &Arc<M>) -> Result<bool, Closed> {
        if self.exec.is_some() || self.ending.is_some() {
            return Err(Closed);
        }
        if self.threads.len() == 1 {
            return Ok(false);
        }
        self.exec = Some(survivor.id());
        for thread in self.threads.iter().filter(|thread| !Arc::ptr_eq(thread, survivor)) {
            thread.add(Note::DIE);
            thread.kick();
        }
        Ok(true)
    }

    /// Sends a signal to one thread, or to the group: then `preferred` takes it if it can. `action` is the group's
    /// for the signal, `limit` the most realtime signals that may be queued.
    pub fn send(
        &mut self,
        target: Option<&Arc<M>>,
        preferred: Option<&Arc<M>>,
        information: Information,
        action: &Action,
        limit: usize,
    ) -> Sent {
        let signal = information.signal;
        let mut sent = Sent { result: Ok(()), has_continued: false };
        if self.ended.is_some() || self.ending.is_some() && signal != Signal::KILL {
            return sent;
        }
        if signal == Signal::CONT || signal == Signal::KILL {
            sent.has_continued = self.resume(signal == Signal::CONT);
        } else if SignalSet::STOPS.contains(signal) {
            self.forget(SignalSet::of(&[Signal::CONT]));
        }
        let Some(looked_at) = target.or(self.threads.first()) else { return sent };
        let held_back = looked_at.blocked().union(looked_at.awaited());
        let is_protected = self.is_spared(signal, action)
            || self.is_init && SignalSet::UNBLOCKABLE.contains(signal) && !information.is_from_outside();
        let is_ignored = is_protected || action.ignores(signal);
        if is_ignored && !held_back.contains(signal) && !is_traced(looked_at, signal) {
            return sent;
        }
        if signal == Signal::KILL {
            self.kill_traced();
        }
        sent.result = match target {
            Some(thread) => thread.with_pending(|pending| pending.push(information, limit)),
            None => self.pending.push(information, limit),
        };
        if sent.result.is_ok() {
            self.notify(target, preferred, signal, action);
        }
        sent
    }

    /// Finds a thread that takes the signal and tells it; a fatal signal ends the group at once.
    fn notify(
        &mut self,
        target: Option<&Arc<M>>,
        preferred: Option<&Arc<M>>,
        signal: Signal,
        action: &Action,
    ) {
        let chosen = match target {
            Some(thread) => Some(thread).filter(|thread| takes(thread, signal)),
            None => preferred.filter(|thread| takes(thread, signal)).or_else(|| self.choose(signal)),
        };
        let Some(thread) = chosen.cloned() else { return };
        let default = DefaultAction::of(signal);
        let is_fatal = !action.has_handler()
            && (default == DefaultAction::Terminate || default == DefaultAction::Core && !self.dumps);
        if is_fatal && !thread.awaited().contains(signal) && !is_traced(&thread, signal) {
            self.begin_exit(ExitStatus::Signaled { signal, core: false });
            return;
        }
        thread.add(Note::SIGNAL);
        thread.kick();
    }

    /// A thread that takes the signal, if there is one: best one that has nothing to deliver yet.
    fn choose(&self, signal: Signal) -> Option<&Arc<M>> {
        let mut able = self.threads.iter().filter(|thread| takes(thread, signal)).peekable();
        let first = able.peek().copied();
        able.find(|thread| !thread.notes().contains(Note::SIGNAL)).or(first)
    }

    /// A thread takes none of `signals` any more: finds others for those that are pending for the group.
    fn retarget(&self, thread: &Arc<M>, signals: SignalSet) {
        let mut left = self.pending.set().intersection(signals);
        for other in self.threads.iter().filter(|other| !Arc::ptr_eq(other, thread)) {
            if left.is_empty() {
                return;
            }
            let taken = left.difference(other.blocked());
            if taken.is_empty() || is_ending(other) {
                continue;
            }
            left = left.difference(taken);
            other.add(Note::SIGNAL);
            other.kick();
        }
    }

    /// Changes the signals that a thread holds back. Only the thread itself does. Signals of the group that it could
    /// have taken before find another thread.
    pub fn set_blocked(&self, thread: &Arc<M>, blocked: SignalSet) {
        let blocked = blocked.difference(SignalSet::UNBLOCKABLE);
        let before = thread.blocked();
        thread.set_blocked(blocked);
        self.retarget(thread, blocked.difference(before));
        self.recheck(thread);
    }

    /// Sets or clears a thread's note that a signal is to be delivered.
    fn recheck(&self, thread: &Arc<M>) {
        let wanted = SignalSet::ALL.difference(thread.blocked());
        if self.pending.has(wanted) || thread.with_pending(|pending| pending.has(wanted)) {
            thread.add(Note::SIGNAL);
        } else {
            thread.remove(Note::SIGNAL);
        }
    }

    /// Takes the next signal that the thread has to act on; ignored ones are dropped first. `None` clears the note
    /// that there is one.
    #[must_use]
    pub fn deliver(&mut self, thread: &Arc<M>, actions: &mut Actions) -> Option<Delivery> {
        let wanted = SignalSet::ALL.difference(thread.blocked());
        loop {
            let Some(information) = self.take(thread, wanted) else {
                thread.remove(Note::SIGNAL);
                return None;
            };
            let token = self.stop_token();
            if is_traced(thread, information.signal) {
                let action = *actions.get(information.signal);
                return Some(Delivery { information, action, token, is_traced: true });
            }
            let action = actions.take(information.signal);
            if !action.ignores(information.signal) && !self.is_spared(information.signal, &action) {
                return Some(Delivery { information, action, token, is_traced: false });
            }
        }
    }

    /// Goes on with the delivery of a signal that the thread's tracer has let pass. `None`: it is ignored, or held
    /// back and pending again.
    #[must_use]
    pub fn deliver_traced(
        &mut self,
        thread: &Arc<M>,
        information: Information,
        token: StopToken,
        actions: &mut Actions,
    ) -> Option<Delivery> {
        if thread.blocked().contains(information.signal) {
            // Without memory for what is known of it, the signal itself stays.
            let _ = thread.with_pending(|pending| pending.push(information, usize::MAX));
            return None;
        }
        let action = actions.take(information.signal);
        if action.ignores(information.signal) || self.is_spared(information.signal, &action) {
            return None;
        }
        Some(Delivery { information, action, token, is_traced: false })
    }

    /// Takes a pending signal out of `wanted`: the thread's own first, then the group's.
    #[must_use]
    pub fn take(&mut self, thread: &Arc<M>, wanted: SignalSet) -> Option<Information> {
        let own = thread.with_pending(|pending| pending.take(wanted));
        own.or_else(|| self.pending.take(wanted))
    }

    /// Sends a signal that cannot be held back: if it is blocked or ignored, or `is_fatal` is set, the default action
    /// is taken, which ends the group.
    pub fn force(
        &mut self,
        thread: &Arc<M>,
        information: Information,
        is_fatal: bool,
        actions: &mut Actions,
    ) {
        let signal = information.signal;
        if is_fatal || thread.blocked().contains(signal) || actions.get(signal).ignores(signal) {
            actions.set(signal, Action::default_action());
            if is_traced(thread, signal) || self.dumps {
                thread.set_blocked(thread.blocked().without(signal));
            }
        }
        // No tracer takes back what is meant to end the group.
        let is_seen = is_traced(thread, signal) && !is_fatal;
        if !actions.get(signal).has_handler() && !is_seen {
            self.is_init = false;
        }
        let is_dumped = self.dumps && DefaultAction::of(signal) == DefaultAction::Core;
        if !actions.get(signal).has_handler() && !is_seen && !is_dumped {
            return self.begin_exit(ExitStatus::Signaled { signal, core: false });
        }
        // A lost siginfo for lack of memory still delivers the signal.
        let _ = thread.with_pending(|pending| pending.push(information, usize::MAX));
        thread.add(Note::SIGNAL);
    }

    /// Forgets pending signals of the group and all its threads.
    pub fn forget(&mut self, signals: SignalSet) {
        self.pending.remove(signals);
        for thread in &self.threads {
            thread.with_pending(|pending| pending.remove(signals));
        }
    }
}

impl<M: Member> GroupState<M> {
    /// `SIGKILL` ends the stops of threads that wait before their end.
    fn kill_traced(&self) {
        for thread in self.threads.iter().filter(|thread| thread.notes().contains(Note::TRACED)) {
            thread.with_trace(|trace| trace.into_iter().for_each(Trace::kill));
        }
    }
}

/// Whether a thread's tracer is asked before the signal is delivered.
fn is_traced<M: Member>(thread: &Arc<M>, signal: Signal) -> bool {
    signal != Signal::KILL && thread.notes().contains(Note::TRACED)
}

/// Whether a thread has begun to end, or is about to.
fn is_ending<M: Member>(thread: &Arc<M>) -> bool {
    thread.notes().intersects(Note::LEAVING | Note::DIE)
}

/// Whether a thread acts on the signal.
fn takes<M: Member>(thread: &Arc<M>, signal: Signal) -> bool {
    !is_ending(thread) && (signal == Signal::KILL || !thread.blocked().contains(signal))
}
