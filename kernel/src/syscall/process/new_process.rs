//! The process that fork(2) and clone(2) make: its numbers, and what it has of its parent.

use alloc::sync::Arc;
use heddle_kernel_core::signal::Actions;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::Directories;
use crate::ipc::semaphore::SemUndoList;
use crate::memory::fallible;
use crate::process::control_group::{self, ControlGroup, Groups, Hierarchy, LevelChange};
use crate::process::pid_namespace::{self, PidNames, Pids};
use crate::process::table::PidTable;
use crate::process::{Credentials, Process, ProcessParts, Thread, table};
use crate::sync::SpinLock;
use crate::syscall::process::clone::CloneRequest;

/// Gives a new thread what it has of the one that makes it, and what the request says of its end.
pub(super) fn inherit(parent: &Arc<Thread>, child: &Thread, request: &CloneRequest) {
    child.set_io_priority(parent.io_priority());
    child.inherit_timer_slack(parent);
    child.set_personality(parent.personality());
    child.set_failure_policy(parent.failure_policy());
    child.set_memory_policy(parent.memory_policy());
    if request.has(linux::CLONE_CHILD_CLEARTID) {
        child.set_clear_child_tid(request.child_tid);
    }
    // A new thread has no alternate stack; a child that got a copy of the space, or borrows it in vfork, keeps it.
    if !request.has(linux::CLONE_VM) || request.has(linux::CLONE_VFORK) {
        child.set_alternate_stack(parent.alternate_stack());
    }
    if !request.has(linux::CLONE_VM) {
        child.restartable.set(parent.restartable.get());
    }
}

/// Root and working directory of the child, its parent's own or a copy.
pub(super) fn child_directories(
    parent: &Arc<Thread>,
    request: &CloneRequest,
) -> Result<Arc<Directories>, Errno> {
    let own = parent.directories();
    if request.has(linux::CLONE_FS) { Ok(own) } else { fallible::try_arc(own.duplicate()) }
}

/// Keeps the hierarchy of control groups as it is, for a child that is to start in this one.
///
/// # Errors
/// `ENODEV`, `EBUSY`, `EOPNOTSUPP`: the group takes no processes.
pub(super) fn lock_group(group: Option<&Arc<ControlGroup>>) -> Result<Option<Hierarchy>, Errno> {
    let Some(group) = group else { return Ok(None) };
    let hierarchy = control_group::lock();
    group.check_entry(&hierarchy)?;
    Ok(Some(hierarchy))
}

/// Counts a thread in the group of its process, which enters it with its first.
///
/// # Errors
/// `EAGAIN`: there are as many as may be.
pub(super) fn enter_group(process: &Process, group: &Groups, is_thread: bool) -> Result<LevelChange, Errno> {
    if is_thread {
        process.count_new_thread().map(|()| LevelChange::default())
    } else {
        process.enter_control_group(group)
    }
}

/// The numbers of the child: in the first namespace, and in those that lead to its own.
pub(super) fn numbers(
    request: &CloneRequest,
    who: &Credentials,
    pids: &Pids,
    table: &mut PidTable,
) -> Result<(i32, PidNames), Errno> {
    let wanted = &request.wanted;
    if wanted.is_empty() {
        let names = pid_namespace::choose(pids, &[], table)?;
        return Ok((table.free_number()?, names));
    }
    let depth = pid_namespace::depth(pids);
    if wanted.len() > depth || wanted.iter().any(|number| !(1..table::pid_max()).contains(number)) {
        return Err(Errno::EINVAL);
    }
    let mut next = pids;
    for _ in wanted {
        let owner = pid_namespace::owner(next);
        let may = |capability| who.is_capable_in(&owner, capability);
        if !may(linux::CAP_CHECKPOINT_RESTORE) && !may(linux::CAP_SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        next = next.as_ref().map_or(&None, |pids| &pids.parent);
    }
    let names = pid_namespace::choose(pids, wanted, table)?;
    let tid = match wanted.get(depth - 1) {
        Some(&number) => table.wanted_number(number)?,
        None => table.free_number()?,
    };
    Ok((tid, names))
}

/// The actions of signals in the child, those of its parent unless the flags say otherwise.
pub(super) fn child_actions(
    parent: &Arc<Thread>,
    request: &CloneRequest,
) -> Result<Arc<SpinLock<Actions>>, Errno> {
    let actions = parent.process.actions();
    if request.has(linux::CLONE_SIGHAND) {
        return Ok(actions);
    }
    let mut copy = fallible::try_box(actions.lock().clone())?;
    if request.flags & linux::CLONE_CLEAR_SIGHAND != 0 {
        copy.exec();
    }
    fallible::try_arc(SpinLock::new(*copy))
}

/// The parent of the new process; with `CLONE_PARENT` the caller's own.
pub(super) fn real_parent(parent: &Arc<Thread>, request: &CloneRequest) -> Option<Arc<Process>> {
    if request.has(linux::CLONE_PARENT) { parent.process.parent() } else { Some(parent.process.clone()) }
}

/// A process with what a child has of its parent, without threads and in no table.
pub(super) fn make_process(
    parent: &Arc<Thread>,
    request: &CloneRequest,
    (pid, own_pid): (i32, i32),
    pids: Pids,
    actions: Arc<SpinLock<Actions>>,
) -> Result<Arc<Process>, Errno> {
    let old = &parent.process;
    let real_parent = real_parent(parent, request).ok_or(Errno::EINVAL)?;
    let process = Process::new(ProcessParts {
        pid,
        own_pid,
        pids,
        parent: Arc::downgrade(&real_parent),
        group: old.group(),
        actions,
        limits: old.limits(),
        exit_signal: request.exit_signal,
        uid: parent.credentials().uid,
        creator: parent.tid(),
    })?;
    if request.has(linux::CLONE_SYSVSEM) {
        let shared = SemUndoList::of(old)?;
        *process.semaphore_undoes() = Some(shared);
    }
    process.inherit_keys(old)?;
    process.set_barriers(old.barriers());
    process.inherit_oom_adjustment(old);
    process.set_memory_users(old.memory_users());
    process.set_dumpable(old.is_dumpable());
    process.set_dump_filter(old.dump_filter());
    process.set_huge_pages_off(old.huge_pages_are_off());
    process.set_program(old.layout(), old.executable());
    Ok(process)
}
