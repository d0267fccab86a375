//! unshare(2): leaving what threads share, and namespaces.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::memory::fallible;
use crate::process::namespaces::Namespaces;
use crate::process::user_namespace::{self, UserNamespace};
use crate::process::{Credentials, Thread, executor};
use crate::syscall::{Call, SyscallResult};

/// Flags that need a process with one thread: its threads share these by definition.
const WHOLE: u32 = linux::CLONE_THREAD | linux::CLONE_SIGHAND | linux::CLONE_VM;
/// Undoes of semaphore operations belong to a process here, not to a thread.
const OF_PROCESS: u32 = WHOLE | linux::CLONE_SYSVSEM;
/// Everything that can be left.
const KNOWN: u32 = OF_PROCESS | linux::CLONE_FILES | linux::CLONE_FS | Namespaces::KINDS_AND_USERS;

/// Undoes what a thread has done to semaphores that it is about to lose from sight. Other threads of its process may
/// go on to see them: then that waits for the end of the process.
pub(super) fn leave_semaphores(thread: &Thread) {
    if thread.process.thread_count() == 1 {
        thread.process.detach_all();
    }
}

/// The credentials of a thread in a user namespace that it makes.
pub(super) fn new_users(thread: &Thread, old: &Credentials) -> Result<Arc<Credentials>, Errno> {
    if user_namespace::MADE_BY_ALL.load(Ordering::Relaxed) == 0 && !old.is_capable(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let (top, root) = (thread.namespaces().mounts.top()?, thread.directories().root());
    let is_rooted = Arc::ptr_eq(&top.mount, &root.mount) && Arc::ptr_eq(&top.entry, &root.entry);
    let users = UserNamespace::new(old, is_rooted)?;
    fallible::try_arc(old.entering(Some(users)))
}

/// unshare(2).
pub fn unshare(call: &mut Call<'_>) -> SyscallResult {
    let mut flags = call.uint(0);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    if flags & linux::CLONE_NEWUSER != 0 {
        // The threads of a process are in one user namespace, and what they may is not to reach others' directories.
        flags |= linux::CLONE_THREAD | linux::CLONE_FS;
    }
    let thread = call.thread;
    if flags & OF_PROCESS != 0 && thread.process.thread_count() > 1 {
        return Err(Errno::EINVAL.into());
    }
    // Root and working directory lie in mounts.
    let directories = if flags & (linux::CLONE_FS | linux::CLONE_NEWNS) != 0 {
        Some(fallible::try_arc(thread.directories().duplicate())?)
    } else {
        None
    };
    let old = thread.credentials();
    let credentials = if flags & linux::CLONE_NEWUSER != 0 { new_users(thread, &old)? } else { old.clone() };
    let namespaces = if flags & Namespaces::KINDS != 0 {
        if !old.is_capable_in(&credentials.users, linux::CAP_SYS_ADMIN) {
            return Err(Errno::EPERM.into());
        }
        let own = thread.directories();
        let directories = directories.as_ref().unwrap_or(&own);
        Some(thread.namespaces().copied(flags, &credentials, directories, &thread.process)?)
    } else {
        None
    };
    if flags & linux::CLONE_FILES != 0 {
        thread.unshare_descriptors()?;
    }
    if flags & linux::CLONE_SYSVSEM != 0 {
        thread.process.detach_all();
    } else if flags & linux::CLONE_NEWIPC != 0 {
        leave_semaphores(thread);
    }
    if let Some(directories) = directories {
        thread.set_directories(directories);
    }
    if let Some(namespaces) = namespaces {
        thread.set_namespaces(namespaces);
    }
    if flags & linux::CLONE_NEWUSER != 0 {
        thread.set_credentials(credentials);
        executor::user_changes(thread);
    }
    Ok(0.into())
}
