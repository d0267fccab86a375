//! setns(2): entering the namespaces of others.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::memory::fallible;
use crate::memory::source::Object;
use crate::process::access::{ViewerIds, may_access};
use crate::process::namespaces::Namespaces;
use crate::process::pid_namespace::{self, is_below};
use crate::process::pidfd::{ProcessFile, is_known};
use crate::process::time_namespace::{self, Times};
use crate::process::user_namespace::{Users, is_same};
use crate::process::{Credentials, Thread, executor};
use crate::procfs::namespace::Namespace;
use crate::syscall::process::unshare::leave_semaphores;
use crate::syscall::{Call, SyscallResult, pending};

/// The namespaces that a thread is about to enter.
struct Entry {
    /// The flags of those that are new.
    kinds: u32,
    chosen: Namespaces,
    users: Users,
}

/// setns(2).
pub fn setns(call: &mut Call<'_>) -> SyscallResult {
    let (thread, kinds) = (call.thread, call.uint(1));
    let open = call.thread.descriptors().get(call.int(0))?;
    let chosen = (*thread.namespaces()).clone();
    if let Some(namespace) = Namespace::of(&open) {
        if kinds != 0 && kinds != namespace.flag() {
            return Err(Errno::EINVAL.into());
        }
        let mut entry = Entry { kinds: namespace.flag(), chosen, users: None };
        match namespace {
            Namespace::Mounts(mounts) => entry.chosen.mounts = mounts,
            Namespace::Names(names) => entry.chosen.names = names,
            Namespace::Ipc(ipc) => entry.chosen.ipc = ipc,
            Namespace::Network(network) => entry.chosen.network = network,
            Namespace::Groups(groups) => entry.chosen.groups = groups,
            Namespace::Pids(pids) => entry.chosen.pids = pids,
            Namespace::Times(times) => entry.enter_times(times),
            Namespace::Users(users) => entry.users = users,
        }
        return entry.install(thread);
    }
    let process = ProcessFile::process_of(&open).map_err(|_| Errno::EINVAL)?;
    if kinds == 0 || kinds & !Namespaces::KINDS_AND_USERS != 0 {
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
    let mut entry = Entry { kinds, chosen, users: other.credentials().users.clone() };
    if kinds & linux::CLONE_NEWNS != 0 {
        entry.chosen.mounts = theirs.mounts.clone();
    }
    if kinds & linux::CLONE_NEWUTS != 0 {
        entry.chosen.names = theirs.names.clone();
    }
    if kinds & linux::CLONE_NEWIPC != 0 {
        entry.chosen.ipc = theirs.ipc.clone();
    }
    if kinds & linux::CLONE_NEWNET != 0 {
        entry.chosen.network = theirs.network.clone();
    }
    if kinds & linux::CLONE_NEWCGROUP != 0 {
        entry.chosen.groups = theirs.groups.clone();
    }
    if kinds & linux::CLONE_NEWPID != 0 {
        entry.chosen.pids = other.process.pids.clone();
    }
    if kinds & linux::CLONE_NEWTIME != 0 {
        entry.enter_times(theirs.times.clone());
    }
    entry.install(thread)
}

impl Entry {
    /// Enters them; with other mounts root and working directory are their root.
    fn install(self, thread: &Arc<Thread>) -> SyscallResult {
        let old = thread.credentials();
        let new = if self.has(linux::CLONE_NEWUSER) {
            self.check_users(thread, &old)?;
            fallible::try_arc(old.entering(self.users.clone()))?
        } else {
            old.clone()
        };
        let directories = thread.directories();
        let of_pids = pid_namespace::owner(&self.chosen.pids);
        let of_times = time_namespace::owner(&self.chosen.times);
        let owners = [
            (linux::CLONE_NEWPID, &of_pids),
            (linux::CLONE_NEWTIME, &of_times),
            (linux::CLONE_NEWNS, self.chosen.mounts.owner()),
            (linux::CLONE_NEWUTS, self.chosen.names.owner()),
            (linux::CLONE_NEWIPC, self.chosen.ipc.owner()),
            (linux::CLONE_NEWNET, self.chosen.network.owner()),
            (linux::CLONE_NEWCGROUP, self.chosen.groups.owner()),
        ];
        for (_, owner) in owners.into_iter().filter(|&(kind, _)| self.has(kind)) {
            // In the namespace's owner, and where the thread will be.
            if [owner, &new.users].iter().any(|users| !old.is_capable_in(users, linux::CAP_SYS_ADMIN)) {
                return Err(Errno::EPERM.into());
            }
        }
        if self.has(linux::CLONE_NEWPID) && !is_below(&self.chosen.pids, &thread.process.pids) {
            return Err(Errno::EINVAL.into());
        }
        if self.has(linux::CLONE_NEWNS) {
            if !old.is_capable_in(&new.users, linux::CAP_SYS_CHROOT) {
                return Err(Errno::EPERM.into());
            }
            if directories.is_shared() {
                return Err(Errno::EINVAL.into());
            }
        }
        let pages = if self.has(linux::CLONE_NEWTIME) { Some(self.exchanged_pages(thread)?) } else { None };
        let (has_mounts, has_ipc) = (self.has(linux::CLONE_NEWNS), self.has(linux::CLONE_NEWIPC));
        let has_users = self.has(linux::CLONE_NEWUSER);
        let chosen = fallible::try_arc(self.chosen)?;
        if has_mounts {
            let top = chosen.mounts.top()?;
            directories.set_root(top.clone());
            directories.set_working(top);
        }
        if has_ipc {
            leave_semaphores(thread);
        }
        thread.set_namespaces(chosen);
        if has_users {
            thread.set_credentials(new);
            executor::user_changes(thread);
        }
        let Some((old, new)) = pages else { return Ok(0.into()) };
        let space = thread.space();
        pending(async move {
            space.exchange(&old, &new).await?;
            Ok(0)
        })
    }

    /// Enters a time namespace, with the next children.
    fn enter_times(&mut self, times: Times) {
        self.chosen.times_of_children = times.clone();
        self.chosen.times = times;
    }

    /// The pages with the clock's offsets that the thread's program has, and those that it gets.
    fn exchanged_pages(&self, thread: &Thread) -> Result<(Object, Object), Errno> {
        if thread.process.thread_count() > 1 || thread.space().thread_count() > 1 {
            return Err(Errno::EUSERS);
        }
        let pages = |times| time_namespace::pages(times).map(Object::Source);
        Ok((pages(&thread.namespaces().times)?, pages(&self.chosen.times)?))
    }

    const fn has(&self, kind: u32) -> bool {
        self.kinds & kind != 0
    }

    /// A thread enters another user namespace than its own, alone, and with all rights there.
    fn check_users(&self, thread: &Thread, old: &Credentials) -> Result<(), Errno> {
        let is_alone = thread.process.thread_count() == 1 && !thread.directories().is_shared();
        if is_same(&self.users, &old.users) || !is_alone {
            return Err(Errno::EINVAL);
        }
        if old.is_capable_in(&self.users, linux::CAP_SYS_ADMIN) { Ok(()) } else { Err(Errno::EPERM) }
    }
}
