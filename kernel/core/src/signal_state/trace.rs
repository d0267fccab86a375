//! A thread that another traces, ptrace(2): what it stops for, what its tracer is told, and how it goes on.
//!
//! A traced thread has a [`Trace`]. It *enters* a stop by itself, on its way back to user mode or inside a call, and
//! waits there until its tracer *resumes* it, it is *released*, or it is to die. A request of the tracer
//! ([`GroupState::interrupt`]), a stop of the group and `SIGCONT` are noted as [`Note::TRAP`], and the thread looks at
//! it next.

use alloc::sync::Arc;

use bitflags::bitflags;
use linux_raw_sys::general as linux;
use linux_raw_sys::ptrace;

use crate::signal::{Detail, Information, Signal};
use crate::signal_state::{ExitStatus, GroupState, Member, Note};

bitflags! {
    /// The options of `PTRACE_SETOPTIONS`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TraceOptions: u32 {
        /// Stops for system calls are told from others.
        const SYSGOOD = ptrace::PTRACE_O_TRACESYSGOOD;
        /// A stop when the thread forks; the child is traced.
        const FORK = ptrace::PTRACE_O_TRACEFORK;
        /// The same for `vfork`.
        const VFORK = ptrace::PTRACE_O_TRACEVFORK;
        /// The same for any other `clone`.
        const CLONE = ptrace::PTRACE_O_TRACECLONE;
        /// A stop after `execve`.
        const EXEC = ptrace::PTRACE_O_TRACEEXEC;
        /// A stop when the child of a `vfork` has left the space.
        const VFORK_DONE = ptrace::PTRACE_O_TRACEVFORKDONE;
        /// A stop before the thread ends.
        const EXIT = ptrace::PTRACE_O_TRACEEXIT;
        /// A stop for a call that a filter of seccomp(2) leaves to the tracer.
        const SECCOMP = ptrace::PTRACE_O_TRACESECCOMP;
        /// The end of the tracer is the thread's.
        const EXIT_KILL = ptrace::PTRACE_O_EXITKILL;
    }
}

/// An event of [`TraceOptions`], by its number in a wait status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the options say what they are")]
pub enum TraceEvent {
    Fork = ptrace::PTRACE_EVENT_FORK as isize,
    Vfork = ptrace::PTRACE_EVENT_VFORK as isize,
    Clone = ptrace::PTRACE_EVENT_CLONE as isize,
    Exec = ptrace::PTRACE_EVENT_EXEC as isize,
    VforkDone = ptrace::PTRACE_EVENT_VFORK_DONE as isize,
    Exit = ptrace::PTRACE_EVENT_EXIT as isize,
    Seccomp = ptrace::PTRACE_EVENT_SECCOMP as isize,
}

impl TraceEvent {
    /// The option that asks for it.
    #[must_use]
    pub const fn option(self) -> TraceOptions {
        match self {
            Self::Fork => TraceOptions::FORK,
            Self::Vfork => TraceOptions::VFORK,
            Self::Clone => TraceOptions::CLONE,
            Self::Exec => TraceOptions::EXEC,
            Self::VforkDone => TraceOptions::VFORK_DONE,
            Self::Exit => TraceOptions::EXIT,
            Self::Seccomp => TraceOptions::SECCOMP,
        }
    }
}

/// The event of a stop that the tracer asked for, or that the group makes: in the status of a thread that was seized.
const EVENT_STOP: i32 = ptrace::PTRACE_EVENT_STOP as i32;
const SIGTRAP: i32 = linux::SIGTRAP as i32;
/// The mark of a stop for a system call.
const CALL_MARK: i32 = 0x80;

/// The reason for a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopKind {
    /// A signal is to be delivered.
    Signal,
    /// The group stops, or the tracer asked for it.
    Trap,
    /// A system call begins.
    CallEntry,
    /// A system call has ended.
    CallExit,
    /// Something that an option asks for, or a step into a handler.
    Event,
    /// The thread ends.
    End,
}

/// A stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceStop {
    /// Why.
    pub kind: StopKind,
    /// The upper part of the wait status: the signal, and the event above it.
    pub code: i32,
    /// The answer to `PTRACE_GETSIGINFO`; a stop of the group has none.
    pub information: Option<Information>,
}

impl TraceStop {
    /// Before the delivery of a signal.
    #[must_use]
    pub const fn of_signal(information: Information) -> Self {
        Self { kind: StopKind::Signal, code: information.signal.number(), information: Some(information) }
    }

    /// One that the thread makes by itself: `pid` and `uid` are its own.
    const fn own(kind: StopKind, code: i32, pid: i32, uid: u32) -> Self {
        let detail = Detail::Sender { pid, uid };
        let information = Information { signal: Signal::TRAP, code, errno: 0, detail };
        Self { kind, code, information: Some(information) }
    }

    /// For an event.
    #[must_use]
    pub const fn of_event(event: TraceEvent, pid: i32, uid: u32) -> Self {
        let kind = if matches!(event, TraceEvent::Exit) { StopKind::End } else { StopKind::Event };
        Self::own(kind, SIGTRAP | (event as i32) << 8, pid, uid)
    }

    /// After a step into a handler.
    #[must_use]
    pub const fn of_step(pid: i32, uid: u32) -> Self {
        Self::own(StopKind::Event, SIGTRAP, pid, uid)
    }

    /// Before (`is_entry`) or after a system call.
    #[must_use]
    pub const fn of_call(is_entry: bool, options: TraceOptions, pid: i32, uid: u32) -> Self {
        let mark = if options.contains(TraceOptions::SYSGOOD) { CALL_MARK } else { 0 };
        let kind = if is_entry { StopKind::CallEntry } else { StopKind::CallExit };
        Self::own(kind, SIGTRAP | mark, pid, uid)
    }
}

/// How a thread goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// Until something happens.
    #[default]
    Run,
    /// Until a system call begins or ends.
    ToCall,
    /// One instruction.
    Step,
    /// Until a system call begins, which is not carried out.
    Emulate,
    /// One instruction, or until a system call begins, which is not carried out.
    EmulateStep,
}

impl Resume {
    /// One instruction.
    #[must_use]
    pub const fn is_step(self) -> bool {
        matches!(self, Self::Step | Self::EmulateStep)
    }

    /// System calls are not carried out.
    #[must_use]
    pub const fn is_emulated(self) -> bool {
        matches!(self, Self::Emulate | Self::EmulateStep)
    }
}

/// The thread is in no stop, or enters none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotStopped;

/// The future of a thread in a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// It stays.
    Not,
    /// It goes on, with this signal if any.
    With(Option<Signal>),
}

/// The tracing of one thread.
#[derive(Debug, Default)]
pub struct Trace {
    /// The reasons for which it stops.
    pub options: TraceOptions,
    /// It was seized: stops of the group are told from signals, and it can be asked to stop.
    pub is_seized: bool,
    /// The message of the last event.
    pub message: u64,
    /// How it goes on, or went on last.
    pub resume: Resume,
    stop: Option<TraceStop>,
    /// A wait has told of the stop.
    is_reported: bool,
    /// It stays in the stop of its group, and tells when that ends.
    is_listening: bool,
    /// The signal that it goes on with.
    signal: Option<Signal>,
    /// The siginfo of the last stop when the thread went on.
    information: Option<Information>,
    /// It has ended, and the tracer has not waited for it.
    ended: Option<ExitStatus>,
    /// `SIGKILL` came while it waited before its end.
    is_killed: bool,
}

impl Trace {
    /// Tracing by these rules.
    #[must_use]
    pub fn new(options: TraceOptions, is_seized: bool) -> Self {
        Self { options, is_seized, ..Self::default() }
    }

    /// The stop in which the tracer may work on the thread.
    #[must_use]
    pub fn stop(&self) -> Option<&TraceStop> {
        self.stop.as_ref().filter(|_| !self.is_listening)
    }

    /// Replaces what is known of the signal of the stop; whether there is any.
    #[must_use]
    pub fn set_information(&mut self, information: Information) -> bool {
        match self.stop.as_mut().and_then(|stop| stop.information.as_mut()) {
            Some(place) => {
                *place = information;
                true
            }
            None => false,
        }
    }

    /// The code of a stop that no wait has told of yet; it has been told then, unless `keep` is set.
    pub fn report(&mut self, keep: bool) -> Option<i32> {
        if self.is_listening || self.is_reported {
            return None;
        }
        let stop = self.stop?;
        self.is_reported = !keep;
        Some(stop.code)
    }

    /// The siginfo of the last stop when the thread went on, with the tracer's changes.
    #[must_use]
    pub const fn last_information(&self) -> Option<Information> {
        self.information
    }

    /// The signal that the thread goes on with, once.
    pub const fn take_signal(&mut self) -> Option<Signal> {
        self.signal.take()
    }

    /// How the thread has ended, before the tracer has waited for it.
    #[must_use]
    pub const fn ended(&self) -> Option<ExitStatus> {
        self.ended
    }

    /// The thread has ended.
    pub const fn end(&mut self, status: ExitStatus) {
        self.ended = Some(status);
        self.stop = None;
    }

    /// `SIGKILL` ends even the stop before the end.
    pub(super) const fn kill(&mut self) {
        self.is_killed = true;
    }
}

impl<M: Member> GroupState<M> {
    /// The thread has a [`Trace`] from now on. If the group has stopped, it stops anew for its tracer.
    pub fn begin_trace(&self, thread: &Arc<M>) {
        thread.add(Note::TRACED);
        if thread.notes().contains(Note::STOPPED) {
            thread.add(Note::TRAP);
            thread.kick();
        }
    }

    /// The thread has no [`Trace`] any more. It goes on with its group, or stops with it.
    pub fn end_trace(&self, thread: &Arc<M>) {
        thread.remove(Note::TRACED | Note::TRAP | Note::TRACE_STOPPED);
        if self.is_stopping() && !thread.notes().intersects(Note::DIE | Note::LEAVING) {
            thread.add(Note::STOP);
        }
        thread.kick();
    }

    /// A thread that is made traced: it stops before its first instruction.
    pub fn trace_from_start(&self, thread: &Arc<M>, is_seized: bool) {
        thread.add(Note::TRACED);
        if is_seized {
            thread.add(Note::TRAP);
            return;
        }
        // Without memory for what is known of it, the signal itself stays.
        let _ =
            thread.with_pending(|pending| pending.push(Information::user(Signal::STOP, 0, 0), usize::MAX));
        thread.add(Note::SIGNAL);
    }

    /// The thread enters the stop that its group, or its tracer, wants of it now, if any: the stop, and whether it
    /// completes that of the group. To choose and to enter is one step. `SIGCONT` between the two would leave the
    /// thread in a stop that is over, without a note of the one that tells so.
    ///
    /// # Errors
    /// The thread goes on.
    pub fn enter_trap(&mut self, thread: &Arc<M>, uid: u32) -> Result<(TraceStop, bool), NotStopped> {
        let stop = self.trap(thread, uid).ok_or(NotStopped)?;
        let completes_stop = self.enter_trace_stop(thread, stop, 0)?;
        Ok((stop, completes_stop))
    }

    /// The stop that the group, or the tracer, wants of a traced thread now, if any.
    fn trap(&self, thread: &Arc<M>, uid: u32) -> Option<TraceStop> {
        let notes = thread.notes();
        if !notes.contains(Note::TRACED) || !notes.intersects(Note::TRAP | Note::STOP) {
            return None;
        }
        let is_seized = thread.with_trace(|trace| trace.is_some_and(|trace| trace.is_seized));
        match self.stop {
            signal if is_seized => {
                let code = signal.map_or(SIGTRAP, Signal::number) | EVENT_STOP << 8;
                Some(TraceStop::own(StopKind::Trap, code, thread.id(), uid))
            }
            Some(signal) => {
                Some(TraceStop { kind: StopKind::Trap, code: signal.number(), information: None })
            }
            None => {
                thread.remove(Note::TRAP);
                None
            }
        }
    }

    /// The thread enters a stop, if it is traced and not to die. `Err`: it does not. Otherwise whether the stop
    /// completes that of its group.
    ///
    /// # Errors
    /// The thread goes on.
    pub fn enter_trace_stop(
        &mut self,
        thread: &Arc<M>,
        stop: TraceStop,
        message: u64,
    ) -> Result<bool, NotStopped> {
        let is_dying = thread.notes().contains(Note::DIE) && stop.kind != StopKind::End;
        let is_traced = !is_dying
            && thread.with_trace(|trace| {
                let Some(trace) = trace else { return false };
                (trace.stop, trace.message) = (Some(stop), message);
                (trace.is_reported, trace.is_listening, trace.is_killed) = (false, false, false);
                trace.signal = None;
                true
            });
        if !is_traced {
            return Err(NotStopped);
        }
        thread.add(Note::TRACE_STOPPED);
        if stop.kind != StopKind::Trap {
            return Ok(false);
        }
        thread.remove(Note::TRAP);
        if !thread.notes().contains(Note::STOP) {
            return Ok(false);
        }
        thread.add(Note::STOPPED);
        Ok(self.complete_stop())
    }

    /// Whether the thread, which is in a stop, goes on.
    #[must_use]
    pub fn leave_trace_stop(&mut self, thread: &Arc<M>) -> Resumed {
        let is_dying = thread.notes().contains(Note::DIE);
        let resumed = thread.with_trace(|trace| {
            let Some(trace) = trace else { return Resumed::With(None) };
            match trace.stop {
                None => Resumed::With(trace.signal.take()),
                Some(stop) if is_dying && (stop.kind != StopKind::End || trace.is_killed) => {
                    trace.stop = None;
                    Resumed::With(None)
                }
                Some(_) => Resumed::Not,
            }
        });
        if resumed != Resumed::Not {
            thread.remove(Note::TRACE_STOPPED | Note::STOPPED);
        }
        resumed
    }

    /// The tracer lets a stopped thread go on. A thread that its group had stopped is not stopped by that again.
    ///
    /// # Errors
    /// It is not stopped.
    pub fn resume_traced(
        &mut self,
        thread: &Arc<M>,
        resume: Resume,
        signal: Option<Signal>,
    ) -> Result<(), NotStopped> {
        let kind = thread.with_trace(|trace| {
            let trace = trace?;
            let TraceStop { kind, information, .. } = *trace.stop()?;
            trace.information = information;
            (trace.stop, trace.resume, trace.signal) = (None, resume, signal);
            Some(kind)
        });
        let kind = kind.ok_or(NotStopped)?;
        thread.remove(Note::TRACE_STOPPED);
        if kind == StopKind::Trap && thread.notes().contains(Note::STOPPED) {
            thread.remove(Note::STOP);
        }
        thread.kick();
        Ok(())
    }

    /// `PTRACE_INTERRUPT`: the thread stops as soon as it can.
    pub fn interrupt(&self, thread: &Arc<M>) {
        thread.add(Note::TRAP);
        stop_listening(thread);
        thread.kick();
    }

    /// `PTRACE_LISTEN`: the thread stays stopped, and tells when its group goes on.
    ///
    /// # Errors
    /// It is not in a stop of its group.
    pub fn listen(&self, thread: &Arc<M>) -> Result<(), NotStopped> {
        let is_in_group_stop = thread.with_trace(|trace| {
            let Some(trace) = trace else { return false };
            let is_trap = trace.stop().is_some_and(|stop| stop.code >> 8 == EVENT_STOP);
            trace.is_listening |= is_trap;
            is_trap
        });
        if !is_in_group_stop {
            return Err(NotStopped);
        }
        // Something has come since.
        if thread.notes().contains(Note::TRAP) {
            stop_listening(thread);
            thread.kick();
        }
        Ok(())
    }

    /// The stop of the group begins or ends: a thread that was seized tells its tracer.
    pub(super) fn notify_trace(&self, thread: &Arc<M>) {
        let is_seized = thread.notes().contains(Note::TRACED)
            && thread.with_trace(|trace| trace.is_some_and(|trace| trace.is_seized));
        if is_seized {
            thread.add(Note::TRAP);
            stop_listening(thread);
        }
    }
}

/// A thread that listens leaves its stop, to make another.
fn stop_listening<M: Member>(thread: &Arc<M>) {
    let has_listened = thread.with_trace(|trace| {
        let Some(trace) = trace.filter(|trace| trace.is_listening) else { return false };
        (trace.is_listening, trace.stop) = (false, None);
        true
    });
    if has_listened {
        thread.remove(Note::TRACE_STOPPED);
    }
}
