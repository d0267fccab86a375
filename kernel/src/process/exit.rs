//! The end of threads and processes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::signal::{Detail, Information, Signal};
use heddle_kernel_core::signal_state::Link;
use linux_raw_sys::general as linux;

use crate::call::asynchronous;
use crate::process::table::REAPER_PID;
use crate::process::thread_group::ProcessLayout;
use crate::process::{
    ExitStatus, Group, Process, Session, Thread, acct, futex, perf, pid_namespace, table, vfork,
};
use crate::signal;
use crate::wait::queue::Events;

/// Begins the end of the calling process: exit_group(2).
pub fn exit_group(process: &Process, code: u8) {
    process.signal_state().begin_exit(ExitStatus::Exited(code));
}

/// Gives up everything a thread has, and ends the process with its last thread. The last thing a thread's coroutine
/// does.
pub async fn end_thread(thread: &Arc<Thread>) {
    crate::process::executor::leave(thread);
    let (is_last_to_leave, is_dumping) = {
        let mut state = thread.process.signal_state();
        (state.begin_leave(thread), state.is_dumping())
    };
    if is_dumping {
        // Whoever writes the dump does not wait for this one any more.
        thread.process.wake_thread_watchers();
    }
    if is_last_to_leave {
        // They use the space and the descriptors, and their locks are released with these.
        asynchronous::end_all(&thread.process).await;
    }
    let mapped_bytes = if acct::is_on() { thread.space().mapped_bytes() } else { 0 };
    futex::robust::release(thread).await;
    futex::pi::owner_ends(thread).await;
    release_space(thread).await;
    thread.leave_rings().await;
    let descriptors = thread.descriptors();
    if !descriptors.is_shared() {
        descriptors.close(thread.process.pid, |_| true).await;
    }
    drop(descriptors);
    thread.leave_descriptors(is_last_to_leave).await;
    thread.leave_namespaces();
    if is_last_to_leave && thread.process.is_init() {
        pid_namespace::end_with(&thread.process).await;
    }
    crate::process::timers::thread_ended(thread);
    crate::process::trace::tracer_ends(thread);
    let is_last = leave(thread);
    perf::ended(thread);
    let status = thread.last_status();
    crate::process::trace::thread_ended(thread, status);
    if is_last {
        if acct::is_on() {
            acct::record_end(thread, status, mapped_bytes);
        }
        end_process(&thread.process);
    } else {
        tell_children_of(thread);
        signal::thread_left(&thread.process);
    }
}

/// Leaves the address space: what others wait for in it is told first. Also what `execve` does with the old space.
pub(super) async fn release_space(thread: &Arc<Thread>) {
    let clear = thread.take_clear_child_tid();
    if clear != 0 {
        futex::clear_and_wake(thread, clear).await;
    }
    let space = thread.space();
    thread.process.keep_peak(space.peak_resident_pages());
    space.forget_records().await;
    drop(space);
    thread.leave_space();
    vfork::release_parent(thread);
}

/// Takes a thread out of its process. Returns whether it was the last.
fn leave(thread: &Arc<Thread>) -> bool {
    let process = &thread.process;
    let (entry, is_last) = {
        let mut table = table::lock();
        let mut state = process.signal_state();
        process.keep_times_of(thread);
        let (own, is_last) = state.remove(thread, ExitStatus::Exited(thread.exit_code()));
        drop(state);
        ((table.remove_thread(thread.tid()), own), is_last)
    };
    drop(entry);
    // A process without threads counts until it has been waited for.
    let task = thread.set_user_task(None);
    drop(if is_last { process.set_user_task(task) } else { task });
    process.count_ended_thread(is_last).tell();
    process.wake_thread_watchers();
    is_last
}

/// Makes the process a zombie, or lets it disappear if nobody wants its status.
fn end_process(process: &Arc<Process>) {
    process.detach_all();
    process.forget_keys();
    crate::process::timers::process_ended(process);
    process.forget_watches();
    let session = process.session();
    if session.id == process.pid
        && let Some(terminal) = session.set_terminal(None)
    {
        terminal.release(true);
    }
    process.set_program(ProcessLayout::default(), None);
    let (orphans, heir) = give_children_away(process);
    let pending = process.signal_state().finish();
    drop(pending);
    orphans.iter().for_each(send_parent_death_signal);
    let ended_orphans = orphans.iter().filter(|child| child.exit_status().is_some());
    if heir.is_some_and(|heir| heir.pid != REAPER_PID) {
        // A subreaper waits for them as for children of its own.
        ended_orphans.for_each(tell_end);
    } else {
        ended_orphans.for_each(|child| drop(reap(child)));
    }
    continue_orphaned_groups(process, &orphans);
    tell_end(process);
}

/// Tells the parent, or the tracer in its place, of the end of a process, and only then lets waits find it.
pub(super) fn tell_end(process: &Arc<Process>) {
    let told = crate::process::trace::tell_tracer(process).or_else(|| tell_parent(process));
    process.set_end_told(true);
    if let Some(told) = told {
        told.wake_parent(Events::all());
    }
    process.wake_end();
}

/// Sends the signal about an end. A parent that ignores `SIGCHLD`, and the reaper, leave no zombie behind. Returns
/// whose waits are to be told.
fn tell_parent(process: &Arc<Process>) -> Option<Arc<Process>> {
    let parent = process.parent()?;
    let (code, status) = process.exit_status().map(ExitStatus::to_child_code)?;
    let exit_signal = process.exit_signal();
    let is_unwanted = parent.pid == REAPER_PID
        || parent.is_ending_init()
        || exit_signal == Some(Signal::CHLD) && {
            let actions = parent.actions();
            let actions = actions.lock();
            let action = actions.get(Signal::CHLD);
            action.handler == heddle_kernel_core::signal::Action::IGNORE
                || action.flags.has(linux::SA_NOCLDWAIT)
        };
    if let Some(signal) = exit_signal {
        let (user, system) = process.cpu_times();
        let detail = Detail::Child {
            pid: process.pid,
            uid: process.uid(),
            status,
            utime: crate::time::clock_ticks(user),
            stime: crate::time::clock_ticks(system),
        };
        let information = Information { signal, code, errno: 0, detail };
        // Only a queued realtime signal can be refused.
        let _ = signal::send_to_process(&parent, information);
    }
    // The signal names it, so its number goes after that.
    if is_unwanted {
        drop(reap(process));
    }
    Some(parent)
}

/// The remains of a process that is reaped, to be dropped without a lock held.
#[derive(Default)]
pub struct Zombie {
    entry: Option<Arc<Process>>,
    child: Option<Arc<Process>>,
    _group: (Option<Arc<Group>>, Option<Arc<Session>>),
    _traced: Option<Arc<Thread>>,
}

impl Zombie {
    /// Whether the process was there to be reaped: only one gets it.
    pub const fn is_reaped(&self) -> bool {
        self.entry.is_some()
    }
}

/// Removes a zombie and adds its times to its parent's.
pub fn reap(process: &Arc<Process>) -> Zombie {
    let mut table = table::lock();
    let Some(entry) = table.remove_process(process) else { return Zombie::default() };
    drop(process.set_user_task(None));
    process.leave_control_group();
    let group = process.group();
    let group = table.leave(process, &group);
    let traced = crate::process::trace::forget(process);
    let mut zombie = Zombie { entry: Some(entry), child: None, _group: group, _traced: traced };
    let Some(parent) = process.parent() else { return zombie };
    parent.keep_times_of_child(process);
    let mut children = parent.children();
    let position = children.iter().position(|each| Arc::ptr_eq(each, process));
    zombie.child = position.map(|position| children.swap_remove(position));
    if children.is_empty() {
        *children = Vec::new();
    }
    drop(children);
    zombie
}

/// Gives a process's children to the nearest living ancestor that asked for orphans (`PR_SET_CHILD_SUBREAPER`), or else
/// to the first process of its namespace, the kernel's reaper in the first. Returns them, and their new parent.
fn give_children_away(process: &Arc<Process>) -> (Vec<Arc<Process>>, Option<Arc<Process>>) {
    let table = table::lock();
    let orphans = core::mem::take(&mut *process.children());
    let init = || process.pids.as_ref().and_then(|pids| pids.init(&table));
    let Some(heir) = subreaper(process).or_else(init).or_else(|| table.process(REAPER_PID)) else {
        return (orphans, None);
    };
    let mut adopted = heir.children();
    for child in &orphans {
        child.set_parent(&heir);
        child.set_end_told(false);
        child.reset_exit_signal();
        // Without memory the new parent doesn't know its child; the child is still found by number, and its end still
        // frees it.
        if adopted.try_reserve(1).is_ok() {
            push_reserved(&mut adopted, child.clone());
        }
    }
    drop(adopted);
    (orphans, Some(heir))
}

/// The nearest ancestor that asked for orphans and has a thread left. The table is locked, so parents stay.
fn subreaper(process: &Process) -> Option<Arc<Process>> {
    if !process.has_subreaper() {
        return None;
    }
    let mut ancestor = process.parent()?;
    loop {
        let is_alive = || !ancestor.signal_state().threads().is_empty();
        if !pid_namespace::is_same(&ancestor.pids, &process.pids) {
            return None;
        }
        if ancestor.is_subreaper() && is_alive() {
            return Some(ancestor);
        }
        ancestor = ancestor.parent()?;
    }
}

/// Sends the signal that a child asked for with `PR_SET_PDEATHSIG`.
fn send_parent_death_signal(child: &Arc<Process>) {
    if let Some(signal) = child.parent_death_signal() {
        // Only a queued realtime signal can be refused.
        let _ = signal::send_to_process(child, Information::user(signal, child.parent_pid(), 0));
    }
}

/// A thread ends before its process: to the children that it made it was the parent that they asked about.
fn tell_children_of(thread: &Thread) {
    let mut at = 0;
    loop {
        let next = {
            let children = thread.process.children();
            children.get(at..).and_then(|rest| {
                let is_own = |child: &&Arc<Process>| child.creator() == thread.tid();
                at += rest.iter().position(|child| is_own(&child))? + 1;
                children.get(at - 1).cloned()
            })
        };
        let Some(child) = next else { return };
        send_parent_death_signal(&child);
    }
}

/// Groups that nobody can continue any more after the end of a process, and that have a stopped process, get `SIGHUP`
/// and `SIGCONT`: that of the process, if its parent is outside, and those of its children, which it minded.
fn continue_orphaned_groups(process: &Arc<Process>, orphans: &[Arc<Process>]) {
    let minded = |minder: &Process, group: &Group| {
        let theirs = minder.group();
        Link { parent_group: theirs.id, parent_session: theirs.session.id }.minds(group.id, group.session.id)
    };
    let parent = process.parent();
    let own = parent.iter().map(|parent| (&**parent, process, Some(&**process)));
    for (minder, member, ignored) in orphans.iter().map(|child| (&**process, child, None)).chain(own) {
        let group = member.group();
        if !minded(minder, &group) {
            continue;
        }
        let is_left = {
            let table = table::lock();
            group.is_orphaned_without(ignored, &table) && group.has_stopped_member(&table)
        };
        if is_left {
            for signal in [Signal::HUP, Signal::CONT] {
                // The group may have ended meanwhile.
                let _ = signal::send_to_group(group.id, Information::kernel(signal));
            }
        }
    }
}

/// `PR_SET_CHILD_SUBREAPER`: tells the descendants, so that others need not look for one at their end.
pub fn set_subreaper(process: &Process, is_subreaper: bool) {
    let table = table::lock();
    process.store_subreaper(is_subreaper);
    let mut has_changed = is_subreaper;
    while has_changed {
        // Parents come first but where numbers have started anew, so this is one round, and one to see it.
        has_changed = false;
        for each in table.processes() {
            let is_below =
                each.parent().is_some_and(|parent| parent.is_subreaper() || parent.has_subreaper());
            has_changed |= is_below && each.set_has_subreaper();
        }
    }
    drop(table);
}

/// Takes back a thread that never ran, with its process if that is new.
pub fn discard(thread: &Arc<Thread>) {
    let process = &thread.process;
    let (own, is_alone) = {
        let mut state = process.signal_state();
        (state.take_out(thread), state.threads().is_empty())
    };
    drop(own);
    let entry = table::lock().remove_thread(thread.tid());
    drop(entry);
    drop(thread.set_user_task(None));
    process.count_ended_thread(is_alone).tell();
    if is_alone {
        drop(reap(process));
    }
    if thread.is_traced() {
        crate::process::trace::detach(thread, None);
    }
    vfork::release_parent(thread);
    thread.leave_space();
    drop(thread.drop_descriptors());
}
