//! The links of `/proc`.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::inode::{Inode, Metadata, Opening, Statistics, Target};
use crate::fs::{Dentry, File, FileType, OpenFile, Path, setup};
use crate::memory::fallible;
use crate::process::Thread;
use crate::process::access::{ViewerIds, may_access};
use crate::procfs::{Subject, Text, at, number_path};

/// Checks that `viewer` may look into the process: it is their own, or they may trace anything.
pub(super) fn check(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<Arc<Thread>, Errno> {
    let thread = subject.thread().map_err(|_| Errno::ENOENT)?;
    let Some(viewer) = viewer else { return Ok(thread) };
    if may_access(viewer, &thread, ViewerIds::File) { Ok(thread) } else { Err(Errno::EACCES) }
}

/// `/proc/self`.
pub fn own_process(_: &Subject, viewer: Option<&Arc<Thread>>) -> Result<Target, Errno> {
    let viewer = viewer.ok_or(Errno::ENOENT)?;
    Ok(Target::Text(number_path(viewer.process.pid, b"")?))
}

/// `/proc/thread-self`.
pub fn own_thread(_: &Subject, viewer: Option<&Arc<Thread>>) -> Result<Target, Errno> {
    let viewer = viewer.ok_or(Errno::ENOENT)?;
    let mut path = Text::new();
    path.line(format_args!("{}/task/{}", viewer.process.pid, viewer.tid()))?;
    Ok(Target::Text(path.into_bytes()))
}

/// `/proc/mounts`.
pub fn own_mounts(_: &Subject, _: Option<&Arc<Thread>>) -> Result<Target, Errno> {
    let mut path = Text::new();
    path.bytes(b"self/mounts")?;
    Ok(Target::Text(path.into_bytes()))
}

/// `/proc/PID/cwd`.
pub fn working(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<Target, Errno> {
    Ok(at(check(subject, viewer)?.directories().working()))
}

/// `/proc/PID/root`.
pub fn root(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<Target, Errno> {
    Ok(at(check(subject, viewer)?.directories().root()))
}

/// `/proc/PID/exe`.
pub fn executable(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<Target, Errno> {
    let thread = check(subject, viewer)?;
    let open = thread.process.executable().ok_or(Errno::ENOENT)?;
    Ok(at(open.place.clone().ok_or(Errno::ENOENT)?))
}

/// `/proc/PID/fd/N`.
pub fn descriptor(subject: &Subject, viewer: Option<&Arc<Thread>>) -> Result<Target, Errno> {
    check(subject, viewer)?;
    Ok(at(place_of(&subject.open()?)?))
}

/// The place of an open file; one made for it if it has none, so that it can be looked at and opened again.
///
/// # Errors
/// `ENOMEM`.
pub fn place_of(open: &Arc<OpenFile>) -> Result<Path, Errno> {
    if let Some(place) = &open.place {
        return Ok(place.clone());
    }
    let mut name = Text::new();
    let metadata = open.file.metadata();
    if metadata.kind == FileType::Socket {
        name.line(format_args!("socket:[{}]", metadata.inode))?;
    } else {
        name.line(format_args!("{}", open.file.name()))?;
    }
    let node = fallible::try_arc(Anonymous { open: open.clone() })?;
    let entry = Dentry::new(node, None, &name.into_bytes())?;
    Ok(Path { mount: setup::anonymous()?.0.clone(), entry })
}

/// A node for an open file that is in no file system.
struct Anonymous {
    open: Arc<OpenFile>,
}

impl Inode for Anonymous {
    fn kind(&self) -> FileType {
        self.open.file.metadata().kind
    }

    fn metadata(&self) -> Metadata {
        self.open.file.metadata()
    }

    fn statistics(&self) -> Statistics {
        let magic = linux::ANON_INODE_FS_MAGIC;
        Statistics {
            magic,
            blocks: 0,
            free: 0,
            nodes: 0,
            free_nodes: 0,
            device: self.open.file.metadata().device,
        }
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        self.open.file.clone().reopen(opening.flags)
    }
}
