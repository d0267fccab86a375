//! Tracers and what they trace, ptrace(2): a thread traces threads of other processes, and its process waits for
//! them.
//!
//! A process lists the threads that its threads trace. The table's lock guards the links; below it come the list and
//! the signal state of the traced thread. A traced thread that has ended stays listed until a wait has told of it.

use alloc::sync::Arc;
use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::signal::{Action, Detail, Information, Signal};
use heddle_kernel_core::signal_state::{Resume, TraceOptions};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::process::access::{ViewerIds, may_access};
use crate::process::thread::Tracee;
use crate::process::user_namespace::is_same;
use crate::process::{ExitStatus, Process, Thread, exit, table};
use crate::signal;
use crate::signal::PendingWork;
use crate::wait::queue::Events;

/// Makes `tracer` trace `target`.
///
/// # Errors
/// `EPERM`: it is traced, has ended, or is of the tracer's process. `ENOMEM`.
fn link(
    tracer: &Arc<Thread>,
    target: &Arc<Thread>,
    options: TraceOptions,
    is_seized: bool,
) -> Result<(), Errno> {
    let tracee = Tracee::new(tracer, options, is_seized)?;
    let table = table::lock();
    if table.thread(target.tid()).is_none_or(|found| !Arc::ptr_eq(&found, target))
        || table.thread(tracer.tid()).is_none()
        || target.is_traced()
    {
        return Err(Errno::EPERM);
    }
    let mut tracees = tracer.process.tracees();
    tracees.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    push_reserved(&mut tracees, target.clone());
    drop(tracees);
    if target.tid() == target.process.pid {
        target.process.set_main_tracer(Some(&tracer.process));
    }
    let before = {
        let state = target.process.signal_state();
        let before = target.set_tracee(Some(tracee));
        state.begin_trace(target);
        before
    };
    drop(table);
    drop(before);
    Ok(())
}

/// `PTRACE_ATTACH` and `PTRACE_SEIZE`.
///
/// # Errors
/// `EPERM`, `ENOMEM`.
pub fn attach(
    tracer: &Arc<Thread>,
    target: &Arc<Thread>,
    options: TraceOptions,
    is_seized: bool,
) -> Result<(), Errno> {
    if Arc::ptr_eq(&tracer.process, &target.process) || !may_access(tracer, target, ViewerIds::Real) {
        return Err(Errno::EPERM);
    }
    link(tracer, target, options, is_seized)?;
    if !is_seized {
        // Only a queued realtime signal can be refused.
        let _ = signal::send_to_thread(target, Information::kernel(Signal::STOP));
    }
    Ok(())
}

/// `PTRACE_TRACEME`: the parent traces the calling thread.
///
/// # Errors
/// `EPERM`: it is traced, or its parent may not. `ENOMEM`.
pub fn attach_to_parent(thread: &Arc<Thread>) -> Result<(), Errno> {
    let parent = thread.process.parent().ok_or(Errno::EPERM)?;
    let creator = table::thread(thread.process.creator()).filter(|each| Arc::ptr_eq(&each.process, &parent));
    let tracer = creator.or_else(|| parent.main_thread()).ok_or(Errno::EPERM)?;
    let (ours, theirs) = (tracer.credentials(), thread.credentials());
    let has_no_less = is_same(&ours.users, &theirs.users)
        && theirs.capabilities.permitted & !ours.capabilities.permitted == 0;
    if !ours.restrictions.may_look_into(&theirs.restrictions) {
        return Err(Errno::EPERM);
    }
    if !has_no_less && !ours.is_capable_in(&theirs.users, linux::CAP_SYS_PTRACE) {
        return Err(Errno::EPERM);
    }
    link(&tracer, thread, TraceOptions::empty(), false)
}

/// The child of a traced thread is traced by the same tracer, from its first instruction on. It has not started.
///
/// # Errors
/// `ENOMEM`.
pub fn attach_child(parent: &Thread, child: &Arc<Thread>) -> Result<(), Errno> {
    let Some(tracer) = parent.tracer() else { return Ok(()) };
    let rules =
        parent.with_tracee(|tracee| tracee.map(|tracee| (tracee.trace.options, tracee.trace.is_seized)));
    let Some((options, is_seized)) = rules else { return Ok(()) };
    match link(&tracer, child, options, is_seized) {
        // The tracer ends.
        Err(Errno::EPERM) => return Ok(()),
        linked => linked?,
    }
    child.process.signal_state().trace_from_start(child, is_seized);
    Ok(())
}

/// Ends the tracing of a thread: it goes on with `signal`.
pub fn detach(thread: &Arc<Thread>, signal: Option<Signal>) {
    let table = table::lock();
    let released = release(thread, signal);
    // A zombie that its tracer has not waited for is its parent's now.
    let is_zombie = thread.tid() == thread.process.pid && thread.process.exit_status().is_some();
    if is_zombie {
        thread.process.set_end_told(false);
    }
    drop(table);
    drop(released);
    if is_zombie {
        exit::tell_end(&thread.process);
    }
}

/// The remains of the tracing of a thread, to be dropped without a lock held.
type Released = (Option<Arc<Thread>>, [Option<alloc::boxed::Box<Tracee>>; 2]);

/// The same with the table locked.
fn release(thread: &Arc<Thread>, signal: Option<Signal>) -> Released {
    let tracer = thread.with_tracee(|tracee| tracee.and_then(|tracee| tracee.tracer.upgrade()));
    let listed = tracer.as_ref().and_then(|tracer| unlist(&tracer.process, thread));
    if thread.tid() == thread.process.pid {
        thread.process.set_main_tracer(None);
    }
    let mut state = thread.process.signal_state();
    let is_stopped = state.resume_traced(thread, Resume::Run, signal).is_ok();
    let tracee = thread.set_tracee(None);
    thread.remove_work(PendingWork::DEBUG);
    let left = if is_stopped { [thread.leave_tracee(tracee), None] } else { [tracee, None] };
    state.end_trace(thread);
    drop(state);
    (listed, left)
}

fn unlist(tracer: &Process, thread: &Arc<Thread>) -> Option<Arc<Thread>> {
    let mut tracees = tracer.tracees();
    let position = tracees.iter().position(|each| Arc::ptr_eq(each, thread));
    let listed = position.map(|position| tracees.swap_remove(position));
    if tracees.is_empty() {
        *tracees = alloc::vec::Vec::new();
    }
    listed
}

/// A thread ends: those that it traces go on, or end with it.
pub fn tracer_ends(tracer: &Arc<Thread>) {
    let is_own = |thread: &Thread| {
        thread.with_tracee(|tracee| {
            tracee.is_some_and(|tracee| core::ptr::eq(tracee.tracer.as_ptr(), Arc::as_ptr(tracer)))
        })
    };
    loop {
        let next = tracer.process.tracees().iter().find(|each| is_own(each)).cloned();
        let Some(thread) = next else { return };
        let is_killed = thread.with_tracee(|tracee| {
            tracee.is_some_and(|tracee| tracee.trace.options.contains(TraceOptions::EXIT_KILL))
        });
        if is_killed {
            // Only a queued realtime signal can be refused.
            let _ = signal::send_to_process(&thread.process, Information::kernel(Signal::KILL));
        }
        detach(&thread, None);
    }
}

/// A traced thread has ended before its process, or as another than the first: its tracer is told. Those that give
/// way to `execve` are not told of under the number that the program keeps.
pub fn thread_ended(thread: &Arc<Thread>, status: ExitStatus) {
    let is_main = thread.tid() == thread.process.pid;
    let Some(tracer) = thread.tracer() else { return };
    if is_main {
        // Its number stands for the process, which ends later, or goes on with another program.
        return;
    }
    let is_traced = thread.with_tracee(|tracee| tracee.map(|tracee| tracee.trace.end(status)).is_some());
    if is_traced {
        send_end(&tracer.process, thread.tid(), thread.credentials().uid, status);
        tracer.process.wake_parent(Events::all());
    }
}

/// The thread that executes a program takes over the number of the first, which is traced no longer. The table is not
/// locked.
pub fn main_replaced(process: &Arc<Process>, survivor: &Arc<Thread>) {
    let table = table::lock();
    let tracer = process.main_tracer();
    let main = tracer.and_then(|tracer| {
        let tracees = tracer.tracees();
        tracees
            .iter()
            .find(|each| {
                Arc::ptr_eq(&each.process, process)
                    && each.tid() == process.pid
                    && !Arc::ptr_eq(each, survivor)
            })
            .cloned()
    });
    let released = main.as_ref().map(|main| release(main, None));
    process.set_main_tracer(survivor.tracer().as_ref().map(|tracer| &tracer.process));
    drop(table);
    drop(released);
}

/// Sends the signal of an end.
fn send_end(watcher: &Arc<Process>, pid: i32, uid: u32, status: ExitStatus) {
    let (code, value) = status.to_child_code();
    let detail = Detail::Child { pid, uid, status: value, utime: 0, stime: 0 };
    // Only a queued realtime signal can be refused.
    let _ = signal::send_to_process(watcher, Information { signal: Signal::CHLD, code, errno: 0, detail });
}

/// A process has ended. If its first thread is traced by another than its parent, sends the tracer the signal in
/// place of the parent and returns it.
pub(in crate::process) fn tell_tracer(process: &Arc<Process>) -> Option<Arc<Process>> {
    let tracer = process.main_tracer()?;
    if process.parent().is_some_and(|parent| Arc::ptr_eq(&parent, &tracer)) {
        return None;
    }
    let status = process.exit_status()?;
    let ignores = {
        let actions = tracer.actions();
        let actions = actions.lock();
        actions.get(Signal::CHLD).handler == Action::IGNORE
    };
    if !ignores {
        send_end(&tracer, process.pid, process.uid(), status);
    }
    Some(tracer)
}

/// A wait has told of the end of a traced thread: it is traced no longer.
pub fn reaped(thread: &Arc<Thread>) {
    detach(thread, None);
}

/// A process is reaped: its first thread, which was traced, is listed no longer. The table is locked.
#[must_use]
pub(in crate::process) fn forget(process: &Arc<Process>) -> Option<Arc<Thread>> {
    let tracer = process.main_tracer()?;
    process.set_main_tracer(None);
    let main = {
        let tracees = tracer.tracees();
        let is_main = |each: &&Arc<Thread>| Arc::ptr_eq(&each.process, process) && each.tid() == process.pid;
        tracees.iter().find(is_main).cloned()
    }?;
    unlist(&tracer, &main);
    Some(main)
}
