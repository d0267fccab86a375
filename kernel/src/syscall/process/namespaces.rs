//! setns(2): entering the namespaces of others.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::memory::fallible;
use crate::process::Thread;
use crate::process::access::{ViewerIds, may_access};
use crate::process::namespaces::Namespaces;
use crate::process::pidfd::{ProcessFile, is_known};
use crate::procfs::namespace::Namespace;
use crate::syscall::process::unshare::leave_semaphores;
use crate::syscall::{Call, SyscallResult};

/// setns(2).
pub fn setns(call: &mut Call<'_>) -> SyscallResult {
    let (thread, kinds) = (call.thread, call.uint(1));
    let open = call.thread.descriptors().get(call.int(0))?;
    if let Some(namespace) = Namespace::of(&open) {
        if kinds != 0 && kinds != namespace.flag() {
            return Err(Errno::EINVAL.into());
        }
        let mut chosen = (*thread.namespaces()).clone();
        let kind = namespace.flag();
        match namespace {
            Namespace::Mounts(mounts) => chosen.mounts = mounts,
            Namespace::Names(names) => chosen.names = names,
            Namespace::Ipc(ipc) => chosen.ipc = ipc,
        }
        install(thread, chosen, kind)?;
        return Ok(0.into());
    }
    let process = ProcessFile::process_of(&open).map_err(|_| Errno::EINVAL)?;
    if kinds == 0 || kinds & !Namespaces::KINDS != 0 {
        return Err(Errno::EINVAL.into());
    }
    if !is_known(&process) {
        return Err(Errno::ESRCH.into());
    }
    let other = process.main_thread().ok_or(Errno::ESRCH)?;
    if !may_access(thread, &other, ViewerIds::Real) {
        return Err(Errno::EPERM.into());
    }
    let theirs = other.namespaces();
    let mut chosen = (*thread.namespaces()).clone();
    if kinds & linux::CLONE_NEWNS != 0 {
        chosen.mounts = theirs.mounts.clone();
    }
    if kinds & linux::CLONE_NEWUTS != 0 {
        chosen.names = theirs.names.clone();
    }
    if kinds & linux::CLONE_NEWIPC != 0 {
        chosen.ipc = theirs.ipc.clone();
    }
    install(thread, chosen, kinds)?;
    Ok(0.into())
}

/// Enters namespaces, of which those of `kinds` are new; with other mounts root and working directory are their root.
fn install(thread: &Arc<Thread>, chosen: Namespaces, kinds: u32) -> Result<(), Errno> {
    let credentials = thread.credentials();
    if !credentials.is_capable(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let directories = thread.directories();
    if kinds & linux::CLONE_NEWNS != 0 {
        if !credentials.is_capable(linux::CAP_SYS_CHROOT) {
            return Err(Errno::EPERM);
        }
        if directories.is_shared() {
            return Err(Errno::EINVAL);
        }
    }
    let chosen = fallible::try_arc(chosen)?;
    if kinds & linux::CLONE_NEWNS != 0 {
        let top = chosen.mounts.top()?;
        directories.set_root(top.clone());
        directories.set_working(top);
    }
    if kinds & linux::CLONE_NEWIPC != 0 {
        leave_semaphores(thread);
    }
    thread.set_namespaces(chosen);
    Ok(())
}
