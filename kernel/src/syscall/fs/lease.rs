//! `F_SETLEASE`, `F_GETLEASE` and `F_NOTIFY` of fcntl(2).

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use heddle_kernel_core::lease::LeaseKind;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::lease::FileLeases;
use crate::fs::{FileType, OpenFile, notify};
use crate::syscall::Call;

fn leases(open: &OpenFile, make: bool) -> Result<Option<&FileLeases>, Errno> {
    let place = open.place.as_ref().ok_or(Errno::EINVAL)?;
    place.entry.node.leases(make)
}

/// `F_GETLEASE`.
#[must_use]
pub fn get(open: &OpenFile) -> usize {
    let lease = leases(open, false).ok().flatten().and_then(|leases| leases.of(open));
    let kind = match lease {
        None => linux::F_UNLCK,
        Some(LeaseKind::Read) => linux::F_RDLCK,
        Some(LeaseKind::Write) => linux::F_WRLCK,
    };
    kind as usize
}

/// `F_SETLEASE`.
///
/// # Errors
/// `EINVAL`, `EACCES`, `EAGAIN`, `ENOLCK`, `ENOMEM`.
pub fn set(call: &Call<'_>, open: &Arc<OpenFile>) -> Result<usize, Errno> {
    let kind = match u32::try_from(call.word(2)) {
        Ok(linux::F_RDLCK) => Some(LeaseKind::Read),
        Ok(linux::F_WRLCK) => Some(LeaseKind::Write),
        Ok(linux::F_UNLCK) => None,
        _ => return Err(Errno::EINVAL),
    };
    let (credentials, metadata) = (call.thread.credentials(), open.metadata());
    if credentials.fsuid != metadata.uid && !credentials.is_capable(linux::CAP_LEASE) {
        return Err(Errno::EACCES);
    }
    if metadata.kind != FileType::Regular {
        return Err(Errno::EINVAL);
    }
    let Some(kind) = kind else {
        let is_removed = leases(open, false)?.is_some_and(|leases| leases.remove(open));
        return if is_removed { Ok(0) } else { Err(Errno::EAGAIN) };
    };
    let leases = leases(open, true)?.ok_or(Errno::EINVAL)?;
    let notice = open.make_notice()?;
    let claim = || notice.claim(call.thread.process.pid, call.int(0), &credentials);
    leases.set(open, kind, &notice, claim)?;
    Ok(0)
}

/// `F_NOTIFY`.
///
/// # Errors
/// `ENOTDIR`, `EINVAL`, `ENOMEM`.
pub fn watch_directory(call: &Call<'_>, open: &Arc<OpenFile>) -> Result<usize, Errno> {
    if notify::OWNERS_ARE_TOLD.load(Ordering::Relaxed) == 0 {
        return Err(Errno::EINVAL);
    }
    let (pid, credentials) = (call.thread.process.pid, call.thread.credentials());
    let claim = || {
        if let Some(notice) = open.notice() {
            notice.claim(pid, call.int(0), &credentials);
        }
    };
    notify::watch_directory(open, pid, call.uint(2), claim)?;
    Ok(0)
}
