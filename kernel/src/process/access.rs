//! Looking into another process: the rule of ptrace(2), which `/proc`, pidfd_getfd(2) and others use.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::process::Thread;
use crate::process::user_namespace::is_same;

/// Which of the viewer's ids count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewerIds {
    /// The real ones, and the permitted capabilities: system calls.
    Real,
    /// Those for access to files, and the effective capabilities: `/proc`.
    File,
}

/// Whether `viewer` may look into the process of `target`: it is its own; or it has the same users and groups, no
/// more rights, and has not been closed to others; or the viewer has `CAP_SYS_PTRACE`. Whoever is restricted by
/// landlock(7) looks only into what is no less restricted.
#[must_use]
pub fn may_access(viewer: &Thread, target: &Thread, ids: ViewerIds) -> bool {
    if Arc::ptr_eq(&viewer.process, &target.process) {
        return true;
    }
    let (ours, theirs) = (viewer.credentials(), target.credentials());
    if !ours.restrictions.may_look_into(&theirs.restrictions) {
        return false;
    }
    let is_above = ours.is_capable_in(&theirs.users, linux::CAP_SYS_PTRACE);
    let (uid, gid, capabilities) = match ids {
        ViewerIds::Real => (ours.uid, ours.gid, ours.capabilities.permitted),
        ViewerIds::File => (ours.fsuid, ours.fsgid, ours.capabilities.effective),
    };
    let is_same_user = [theirs.uid, theirs.euid, theirs.suid].iter().all(|&each| each == uid);
    let is_same_group = [theirs.gid, theirs.egid, theirs.sgid].iter().all(|&each| each == gid);
    let has_no_less =
        is_same(&ours.users, &theirs.users) && theirs.capabilities.permitted & !capabilities == 0;
    if !(is_above || is_same_user && is_same_group && has_no_less) {
        return false;
    }
    // A closed process may hold what is of a namespace further up than its own.
    target.process.is_dumpable() || ours.is_capable_in(&target.process.memory_users(), linux::CAP_SYS_PTRACE)
}
