//! The stops of a traced thread, ptrace(2). Their beginning and end is decided in `kernel/core`'s
//! `signal_state`; here the thread waits in it, with its registers where its tracer finds them.

use alloc::sync::Arc;
use core::task::Poll;
use heddle_kernel_core::signal::{Detail, Information, Signal};
use heddle_kernel_core::signal_state::{
    Delivery, ExitStatus, NotStopped, Resume, Resumed, StopKind, TraceEvent, TraceOptions, TraceStop,
};
use linux_raw_sys::general as linux;

use crate::arch::{UserContext, debug};
use crate::error::Errno;
use crate::process::table::PidTable;
use crate::process::{Process, Thread, rseq};
use crate::signal::{PendingWork, SignalState, fault, send_to_member, send_to_process, send_to_thread, stop};
use crate::wait::queue::Events;

/// The messages of stops for system calls.
const MESSAGE_ENTRY: u64 = linux_raw_sys::ptrace::PTRACE_EVENTMSG_SYSCALL_ENTRY as u64;
const MESSAGE_EXIT: u64 = linux_raw_sys::ptrace::PTRACE_EVENTMSG_SYSCALL_EXIT as u64;

/// The restart code that the registers show: that of the call that has just ended with one, unless a tracer has changed
/// it.
#[must_use]
pub(super) fn interruption(context: &UserContext) -> Option<Errno> {
    const CODES: [Errno; 4] =
        [Errno::ERESTARTSYS, Errno::ERESTARTNOINTR, Errno::ERESTARTNOHAND, Errno::ERESTART_RESTARTBLOCK];
    CODES.into_iter().find(|code| context.in_syscall() && context.result() == code.to_result())
}

fn options_of(thread: &Thread) -> (Resume, TraceOptions) {
    thread.with_tracee(|tracee| {
        tracee.map_or((Resume::Run, TraceOptions::empty()), |tracee| {
            (tracee.trace.resume, tracee.trace.options)
        })
    })
}

/// Waits in a stop, if the thread is still traced; returns the signal to go on with. `None`: it did not stop.
async fn wait(
    thread: &Arc<Thread>,
    context: &mut UserContext,
    stop: TraceStop,
    message: u64,
) -> Option<Option<Signal>> {
    let completes_stop = enter(thread, context, |state| state.enter_trace_stop(thread, stop, message))?;
    stay(thread, context, &stop, completes_stop).await
}

/// Enters a stop by `make`, with the registers where the tracer finds them. `None`: the thread is not to stop.
fn enter<T>(
    thread: &Arc<Thread>,
    context: &mut UserContext,
    make: impl FnOnce(&mut SignalState) -> Result<T, NotStopped>,
) -> Option<T> {
    rseq::leaves_program(thread);
    let mut state = thread.process.signal_state();
    thread.with_tracee(|tracee| {
        let Some(tracee) = tracee else { return };
        if core::mem::take(&mut tracee.is_step_forced) {
            debug::end_step(context);
        }
        tracee.context = context.clone();
    });
    make(&mut state).ok()
}

/// Waits in a stop that the thread has entered.
async fn stay(
    thread: &Arc<Thread>,
    context: &mut UserContext,
    stop: &TraceStop,
    completes_stop: bool,
) -> Option<Option<Signal>> {
    if completes_stop {
        stop::notify_parent(&thread.process, None);
    }
    notify_tracer(thread, stop);
    let signal = core::future::poll_fn(|_| match thread.process.signal_state().leave_trace_stop(thread) {
        Resumed::Not => Poll::Pending,
        Resumed::With(signal) => Poll::Ready(signal),
    })
    .await;
    if let Some(mut left) = thread.take_left_tracee() {
        *context = left.context.clone();
        return Some(left.trace.take_signal());
    }
    thread.with_tracee(|tracee| {
        if let Some(tracee) = tracee {
            *context = tracee.context.clone();
        }
    });
    Some(signal)
}

/// Tells the tracer that the thread has stopped.
fn notify_tracer(thread: &Arc<Thread>, stop: &TraceStop) {
    let Some(tracer) = thread.tracer() else { return };
    let code = if stop.kind == StopKind::Trap { linux::CLD_STOPPED } else { linux::CLD_TRAPPED };
    let status = stop.code & 0x7f;
    let (pid, uid) = (thread.tid(), thread.credentials().uid);
    tell_change(&tracer.process, &ProcessChange { pid, uid, code, status, process: &thread.process }, None);
}

/// A change that `SIGCHLD` tells of.
pub(super) struct ProcessChange<'a> {
    /// The number of what has changed, and its user.
    pub pid: i32,
    pub uid: u32,
    pub code: u32,
    pub status: i32,
    /// Its process.
    pub process: &'a Process,
}

/// Sends `SIGCHLD` for a change of a child or a traced thread unless it is not wanted, and wakes who waits.
/// `table` is that of numbers, if the caller has locked it.
pub(super) fn tell_change(watcher: &Arc<Process>, change: &ProcessChange<'_>, table: Option<&PidTable>) {
    let &ProcessChange { pid, uid, code, status, process } = change;
    let wants = {
        let actions = watcher.actions();
        let actions = actions.lock();
        let action = actions.get(Signal::CHLD);
        action.handler != heddle_kernel_core::signal::Action::IGNORE && !action.flags.has(linux::SA_NOCLDSTOP)
    };
    if wants {
        let (user, system) = process.cpu_times();
        let (utime, stime) = (crate::time::clock_ticks(user), crate::time::clock_ticks(system));
        let detail = Detail::Child { pid, uid, status, utime, stime };
        let information = Information { signal: Signal::CHLD, code: code as i32, errno: 0, detail };
        // Only realtime signals can be refused.
        let _ = match table {
            Some(table) => send_to_member(table, watcher, information),
            None => send_to_process(watcher, information),
        };
    }
    watcher.wake_parent(Events::IN);
}

/// Sends the signal that a tracer has given to a stop of another kind.
fn inject(thread: &Arc<Thread>, signal: Option<Option<Signal>>) {
    if let Some(Some(signal)) = signal {
        // Only a queued realtime signal can be refused.
        let _ = send_to_thread(thread, Information::kernel(signal));
    }
}

/// The beginning of a traced thread's call. `false`: it is not carried out, and the registers have its result.
pub async fn call_begins(thread: &Arc<Thread>, context: &mut UserContext) -> bool {
    thread.add_work(PendingWork::CALL);
    let (resume, options) = options_of(thread);
    let is_stop = !matches!(resume, Resume::Run | Resume::Step);
    context.set_result(Errno::ENOSYS.to_result());
    if is_stop {
        let uid = thread.credentials().uid;
        let stop = TraceStop::of_call(true, options, thread.tid(), uid);
        let signal = wait(thread, context, stop, MESSAGE_ENTRY).await;
        inject(thread, signal);
        if thread.work().contains(PendingWork::DIE) {
            return false;
        }
    }
    thread.with_tracee(|tracee| {
        if let Some(tracee) = tracee {
            tracee.context = context.clone();
            tracee.is_changed = false;
        }
    });
    context.in_syscall() && !resume.is_emulated()
}

/// Stops a traced thread whose filter leaves a call to the tracer, which may change the call. `false`: there is no such
/// tracer, or it does not want the call to be carried out.
pub(super) async fn filtered(thread: &Arc<Thread>, context: &mut UserContext, message: u64) -> bool {
    if !options_of(thread).1.contains(TraceOptions::SECCOMP) {
        context.set_result(Errno::ENOSYS.to_result());
        return false;
    }
    let stop = TraceStop::of_event(TraceEvent::Seccomp, thread.tid(), thread.credentials().uid);
    let _ = wait(thread, context, stop, message).await;
    thread.with_tracee(|tracee| {
        if let Some(tracee) = tracee {
            tracee.context = context.clone();
            tracee.is_changed = false;
        }
    });
    !thread.work().contains(PendingWork::DIE) && context.in_syscall() && context.syscall_number() as i32 >= 0
}

/// The end of a traced thread's call. Returns the restart code with which it goes on.
pub(super) async fn call_ends(thread: &Arc<Thread>, context: &mut UserContext) -> Option<Errno> {
    thread.remove_work(PendingWork::CALL);
    thread.with_tracee(|tracee| {
        let Some(tracee) = tracee.filter(|tracee| tracee.is_changed) else { return };
        tracee.is_changed = false;
        let result = context.result();
        *context = tracee.context.clone();
        context.set_result(result);
    });
    if thread.work().contains(PendingWork::EXECUTED) {
        thread.remove_work(PendingWork::EXECUTED);
        context.set_syscall(linux::__NR_execve as usize);
        has_executed(thread, context).await;
    }
    let (resume, options) = options_of(thread);
    if resume.is_step() {
        fault::post(thread, linux::SIGTRAP as i32, linux::TRAP_BRKPT as i32, context.ip(), context);
    } else if resume == Resume::ToCall {
        let uid = thread.credentials().uid;
        let stop = TraceStop::of_call(false, options, thread.tid(), uid);
        let signal = wait(thread, context, stop, MESSAGE_EXIT).await;
        inject(thread, signal);
    }
    interruption(context)
}

async fn has_executed(thread: &Arc<Thread>, context: &mut UserContext) {
    let (before, is_seized, wants) = thread.with_tracee(|tracee| {
        tracee.map_or((0, true, false), |tracee| {
            let wants = tracee.trace.options.contains(TraceOptions::EXEC);
            (tracee.trace.message, tracee.trace.is_seized, wants)
        })
    });
    let uid = thread.credentials().uid;
    if wants {
        let stop = TraceStop::of_event(TraceEvent::Exec, thread.tid(), uid);
        let _ = wait(thread, context, stop, before).await;
    } else if !is_seized {
        // Only a queued realtime signal can be refused.
        let _ = send_to_thread(thread, Information::user(Signal::TRAP, thread.process.pid, uid));
    }
}

/// A traced thread runs another program from now on; its number was `before`.
pub fn executed(thread: &Thread, before: i32) {
    let shown = thread.tracer().map_or(before, |tracer| tracer.process.shown(before));
    let is_traced = thread.with_tracee(|tracee| {
        tracee
            .map(|tracee| {
                tracee.trace.message = shown as u64;
                tracee.debug = debug::DebugRegisters::default();
            })
            .is_some()
    });
    if is_traced {
        thread.remove_work(PendingWork::DEBUG);
        thread.add_work(PendingWork::EXECUTED);
    }
}

/// Stops for an event inside of a call, if the tracer wants to know of it.
pub async fn event(thread: &Arc<Thread>, event: TraceEvent, message: u64) {
    // A thread that has been traced since its call began is told of next time.
    let is_traced_call = thread.work().contains(PendingWork::CALL);
    let context = thread.with_tracee(|tracee| {
        let tracee =
            tracee.filter(|tracee| is_traced_call && tracee.trace.options.contains(event.option()))?;
        Some(tracee.context.clone())
    });
    let Some(mut context) = context else { return };
    let stop = TraceStop::of_event(event, thread.tid(), thread.credentials().uid);
    let _ = wait(thread, &mut context, stop, message).await;
}

/// Stops before the thread ends, if the tracer wants to know of it.
pub async fn ends(thread: &Arc<Thread>, context: &mut UserContext, status: ExitStatus) {
    let (_, options) = options_of(thread);
    if options.contains(TraceOptions::EXIT) {
        let stop = TraceStop::of_event(TraceEvent::Exit, thread.tid(), thread.credentials().uid);
        let _ = wait(thread, context, stop, status.to_wait_status() as u64).await;
    }
}

/// The stop that the group or the tracer wants of the thread.
pub(super) async fn trap(thread: &Arc<Thread>, context: &mut UserContext) {
    let uid = thread.credentials().uid;
    if let Some((stop, completes_stop)) = enter(thread, context, |state| state.enter_trap(thread, uid)) {
        let _ = stay(thread, context, &stop, completes_stop).await;
    }
}

/// Asks the tracer before a signal is delivered. `None`: it is not, or is pending again.
pub(super) async fn deliver(
    thread: &Arc<Thread>,
    context: &mut UserContext,
    delivery: Delivery,
) -> Option<Delivery> {
    let mut information = delivery.information;
    let tracer = thread.tracer();
    if let Some(signal) = wait(thread, context, TraceStop::of_signal(information), 0).await {
        let signal = signal?;
        let changed = thread.with_tracee(|tracee| tracee.and_then(|tracee| tracee.trace.last_information()));
        information = changed.unwrap_or(information);
        if information.signal != signal {
            let uid = tracer.as_ref().map_or(0, |tracer| tracer.credentials().uid);
            let pid = tracer.map_or(0, |tracer| tracer.process.pid);
            information = Information::user(signal, pid, uid);
        }
    }
    let actions = thread.process.actions();
    let mut state = thread.process.signal_state();
    state.deliver_traced(thread, information, delivery.token, &mut actions.lock())
}

/// A handler has been entered: a thread that steps stops at its first instruction.
pub(super) async fn step_into_handler(thread: &Arc<Thread>, context: &mut UserContext) {
    if options_of(thread).0.is_step() {
        let stop = TraceStop::of_step(thread.tid(), thread.credentials().uid);
        let _ = wait(thread, context, stop, 0).await;
    }
}

/// Makes the processor stop after the next instruction if the thread goes on by a step.
pub(super) fn arm(thread: &Thread, context: &mut UserContext) {
    thread.with_tracee(|tracee| {
        let Some(tracee) = tracee else { return };
        if tracee.trace.resume.is_step() {
            tracee.is_step_forced |= debug::begin_step(context);
        } else if core::mem::take(&mut tracee.is_step_forced) {
            debug::end_step(context);
        }
    });
}

/// Makes the processor watch what the thread's tracer asked for; `false`: there is nothing.
#[must_use]
pub fn watch(thread: &Thread) -> bool {
    if !thread.work().intersects(PendingWork::DEBUG.union(PendingWork::KEYS)) {
        return false;
    }
    thread.load_key_rights();
    if !thread.work().contains(PendingWork::DEBUG) {
        return false;
    }
    thread.with_tracee(|tracee| tracee.map(|tracee| tracee.debug.load()).is_some())
}

/// Notes the status of a debug trap.
pub fn debug_trap(thread: &Thread, status: u64) {
    thread.with_tracee(|tracee| {
        if let Some(tracee) = tracee {
            tracee.debug.note(status);
        }
    });
}
