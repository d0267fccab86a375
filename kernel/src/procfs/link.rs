//! The links of `/proc`.

use alloc::sync::Arc;

use crate::error::Errno;
use crate::fs::inode::LinkTarget;
use crate::process::Thread;
use crate::process::access::{ViewerIds, may_access};
use crate::procfs::{Subject, Text, at, number_path};

/// Checks that `viewer` may look into the process: it is their own, or they may trace anything.
pub(super) fn check(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<Arc<Thread>, Errno> {
    let thread = subject.thread().map_err(|_| Errno::ENOENT)?;
    let Some(viewer) = viewer else { return Ok(thread) };
    if may_access(viewer, &thread, ViewerIds::File) { Ok(thread) } else { Err(Errno::EACCES) }
}

/// The reader's number in the namespace that the file system shows.
fn number_in(subject: &Subject, number: i32) -> Result<i32, Errno> {
    match subject.shown(number) {
        0 => Err(Errno::ENOENT),
        shown => Ok(shown),
    }
}

/// `/proc/self`.
pub fn own_process(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    let number = number_in(subject, viewer.ok_or(Errno::ENOENT)?.process.pid)?;
    Ok(LinkTarget::Text(number_path(number, b"")?))
}

/// `/proc/thread-self`.
pub fn own_thread(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    let viewer = viewer.ok_or(Errno::ENOENT)?;
    let (pid, tid) = (number_in(subject, viewer.process.pid)?, number_in(subject, viewer.tid())?);
    let mut path = Text::new();
    path.line(format_args!("{pid}/task/{tid}"))?;
    Ok(LinkTarget::Text(path.into_bytes()))
}

/// `/proc/mounts`.
pub fn own_mounts(_: &Subject, _: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    fixed(b"self/mounts")
}

/// `/proc/net`.
pub fn own_network(_: &Subject, _: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    fixed(b"self/net")
}

fn fixed(target: &[u8]) -> Result<LinkTarget, Errno> {
    let mut path = Text::new();
    path.bytes(target)?;
    Ok(LinkTarget::Text(path.into_bytes()))
}

/// `/proc/PID/cwd`.
pub fn working(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Ok(at(check(subject, viewer)?.directories().working()))
}

/// `/proc/PID/root`.
pub fn root(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    Ok(at(check(subject, viewer)?.directories().root()))
}

/// `/proc/PID/exe`.
pub fn executable(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    let thread = check(subject, viewer)?;
    let open = thread.process.executable().ok_or(Errno::ENOENT)?;
    Ok(at(open.place.clone().ok_or(Errno::ENOENT)?))
}

/// `/proc/PID/fd/N`.
pub fn descriptor(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
    check(subject, viewer)?;
    Ok(at(crate::fs::anonymous::path_of_open_file(&subject.open()?)?))
}
