//! Process and thread numbers, groups, sessions.

use alloc::sync::Arc;

use crate::error::Errno;
use crate::memory::fallible;
use crate::process::{Group, Process, Session, table};
use crate::sync::SpinGuard;
use crate::syscall::{Call, SyscallResult};

fn number(value: i32) -> SyscallResult {
    Ok((value as usize).into())
}

/// getpid(2).
pub fn getpid(call: &mut Call<'_>) -> SyscallResult {
    number(call.thread.process.own_pid)
}

/// gettid(2).
pub fn gettid(call: &mut Call<'_>) -> SyscallResult {
    number(call.thread.own_tid())
}

/// getppid(2).
pub fn getppid(call: &mut Call<'_>) -> SyscallResult {
    let own = &call.thread.process;
    number(own.shown(own.parent_pid()))
}

/// The process that a call names: 0 is the caller's own.
fn named(call: &Call<'_>, pid: i32) -> Result<Arc<Process>, Errno> {
    match pid {
        0 => Ok(call.thread.process.clone()),
        pid => table::process(call.thread.process.named(pid)).ok_or(Errno::ESRCH),
    }
}

/// getpgid(2).
pub fn getpgid(call: &mut Call<'_>) -> SyscallResult {
    let id = named(call, call.int(0))?.group().id;
    number(call.thread.process.shown(id))
}

/// getpgrp(2).
pub fn getpgrp(call: &mut Call<'_>) -> SyscallResult {
    let own = &call.thread.process;
    number(own.shown(own.group().id))
}

/// getsid(2).
pub fn getsid(call: &mut Call<'_>) -> SyscallResult {
    let id = named(call, call.int(0))?.session().id;
    number(call.thread.process.shown(id))
}

/// Moves a process to another group and unlocks the table. Returns what is to be dropped after that.
fn change_group(
    mut table: SpinGuard<'static, table::PidTable>,
    process: &Arc<Process>,
    group: Arc<Group>,
) -> Result<impl Sized + use<>, Errno> {
    group.reserve()?;
    Ok(table.move_to_group(process, group))
}

/// setpgid(2).
pub fn setpgid(call: &mut Call<'_>) -> SyscallResult {
    let own = &call.thread.process;
    let pid = if call.int(0) == 0 { own.pid } else { own.named(call.int(0)) };
    let id = if call.int(1) == 0 { pid } else { own.named(call.int(1)) };
    if id < 0 {
        return Err(Errno::EINVAL.into());
    }
    let table = table::lock();
    let target = table.process(pid).ok_or(Errno::ESRCH)?;
    let session = own.session();
    if !Arc::ptr_eq(&target, own) {
        let is_child = target.parent().is_some_and(|parent| Arc::ptr_eq(&parent, own));
        if !is_child {
            return Err(Errno::ESRCH.into());
        }
        if target.session().id != session.id {
            return Err(Errno::EPERM.into());
        }
        if target.has_executed() {
            return Err(Errno::EACCES.into());
        }
    }
    if target.is_session_leader() {
        return Err(Errno::EPERM.into());
    }
    let group = match table.group(id) {
        Some(group) if group.session.id == session.id => group,
        Some(_) => return Err(Errno::EPERM.into()),
        None if id == pid => fallible::try_arc(Group::new(id, session))?,
        None => return Err(Errno::EPERM.into()),
    };
    drop(change_group(table, &target, group)?);
    number(0)
}

/// setsid(2).
pub fn setsid(call: &mut Call<'_>) -> SyscallResult {
    let own = &call.thread.process;
    let table = table::lock();
    if table.group(own.pid).is_some() {
        return Err(Errno::EPERM.into());
    }
    let session = fallible::try_arc(Session::new(own.pid))?;
    let group = fallible::try_arc(Group::new(own.pid, session))?;
    drop(change_group(table, own, group)?);
    number(own.own_pid)
}
