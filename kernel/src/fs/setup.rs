//! The name space as programs find it: root, `/dev`, `/proc`, `/tmp` and what hangs below.

use alloc::sync::Arc;

use crate::error::{Errno, TryError};
use crate::fs::inode::{Contents, Creation, FileType, Opening, device_number};
use crate::fs::lookup::{LookupFlags, Walker};
use crate::fs::tree::Tree;
use crate::fs::{Dentry, IoBuffer, Mount, OpenFile, Path, StatusFlags, devices, fuse, memory_devices, mount};
use crate::memory::fallible;
use crate::process::Credentials;
use crate::sched::Budget;

/// The file system of files that are in no directory: pipes and `memfd`s.
static ANONYMOUS: spin::Once<(Arc<Mount>, Arc<Tree>)> = spin::Once::new();

/// The file system of the files of namespaces, which are in no directory either.
static NAMESPACES: spin::Once<Arc<Mount>> = spin::Once::new();

/// The mount of namespaces' files.
///
/// # Errors
/// `ENODEV`: files have not been initialized.
pub fn namespaces() -> Result<&'static Arc<Mount>, Errno> {
    NAMESPACES.get().ok_or(Errno::ENODEV)
}

/// The mount and tree of what is in no directory.
///
/// # Errors
/// `ENODEV`: files have not been initialized.
pub fn anonymous() -> Result<&'static (Arc<Mount>, Arc<Tree>), Errno> {
    ANONYMOUS.get().ok_or(Errno::ENODEV)
}

/// Mounts everything. `image` is the root image, if the machine was given one; `proc` is mounted on `/proc`,
/// `sys` on `/sys`.
///
/// # Errors
/// `EIO` (the image can't be read), `ENOMEM`.
pub fn initialize(image: Option<&'static [u8]>, proc: &Arc<Mount>, sys: &Arc<Mount>) -> Result<(), Errno> {
    let root = match image {
        Some(bytes) => Tree::mount_image(bytes)?,
        None => Tree::mount("tmpfs", b"root", 0o755, 0, 0)?,
    };
    mount::set_root(&Tree::mount("rootfs", b"rootfs", 0o755, 0, 0)?, &root)?;
    let tree = Tree::new(0)?;
    let top = tree.node(&Contents::Directory, 0o700, 0, 0)?;
    let top = Dentry::new(top, None, b"")?;
    let hidden = Mount::new(top.clone(), "pipefs", b"pipefs", 0)?;
    ANONYMOUS.call_once(|| (hidden, tree));
    let hidden = Mount::new(top, "nsfs", b"nsfs", 0)?;
    NAMESPACES.call_once(|| hidden);
    for (path, permissions) in [
        (&b"/dev"[..], 0o755),
        (b"/proc", 0o555),
        (b"/sys", 0o555),
        (b"/tmp", 0o1777),
        (b"/run", 0o755),
        (b"/var", 0o755),
        (b"/var/tmp", 0o1777),
        (b"/root", 0o700),
    ] {
        make(path, Contents::Directory, permissions)?;
    }
    attach(&Tree::mount("devtmpfs", b"udev", 0o755, 0, 0)?, b"/dev")?;
    attach(proc, b"/proc")?;
    attach(sys, b"/sys")?;
    for (path, permissions) in [(&b"/dev/pts"[..], 0o755), (b"/dev/shm", 0o1777)] {
        make(path, Contents::Directory, permissions)?;
    }
    attach(&Tree::mount("tmpfs", b"tmpfs", 0o1777, 0, 0)?, b"/dev/shm")?;
    for (path, target) in [
        (&b"/dev/fd"[..], &b"/proc/self/fd"[..]),
        (b"/dev/stdin", b"/proc/self/fd/0"),
        (b"/dev/stdout", b"/proc/self/fd/1"),
        (b"/dev/stderr", b"/proc/self/fd/2"),
    ] {
        make(path, Contents::Symlink(target), 0o777)?;
    }
    memory_devices::register()?;
    fuse::register()?;
    for &(name, major, minor) in memory_devices::NODES.iter().chain([&fuse::NODE]) {
        devices::publish(name, 0o666, Contents::Device(FileType::Character, device_number(major, minor)))?;
    }
    Ok(())
}

fn walker() -> Result<Walker<'static>, Errno> {
    let root = mount::root().ok_or(Errno::ENODEV)?;
    Ok(Walker { credentials: &Credentials::ROOT, root: root.clone(), start: root, thread: None })
}

/// Creates a file unless it is there.
fn make(path: &[u8], contents: Contents<'_>, permissions: u32) -> Result<(), Errno> {
    let found = walker()?.walk(path, LookupFlags::FOLLOW)?;
    if found.place.is_some() {
        return Ok(());
    }
    let creation = Creation { contents, permissions, credentials: &Credentials::ROOT };
    let directory = &found.directory.entry;
    directory.node.create(directory, found.vacant()?, &creation)?;
    Ok(())
}

/// Gives a file contents, which replace those that it has or go behind them. It is made where there is none.
///
/// # Errors
/// `ENOENT` (its directory is not there), `EISDIR`, `ENOSPC`, `ENOMEM`.
pub async fn write(path: &[u8], contents: &[u8], appends: bool) -> Result<(), Errno> {
    make(path, Contents::Regular, 0o644)?;
    let place = walker()?.find(path)?;
    let flags = StatusFlags::WRONLY;
    let opening = Opening { flags, flags_of_call: 0, place: &place, thread: None };
    let file = place.entry.node.clone().open(&opening)?;
    let open = fallible::try_arc(OpenFile::at(file, flags, place))?;
    let start = if appends { open.file.size().unwrap_or(0) } else { 0 };
    let mut buffer = IoBuffer::kernel_in(contents);
    while buffer.remaining() > 0 {
        let at = start + buffer.done() as u64;
        match open.file.write(&open, &mut buffer, at) {
            Ok(1..) => {}
            Err(TryError::Error(error)) => return Err(error),
            Ok(0) | Err(TryError::WouldBlock | TryError::Fault(_)) => return Err(Errno::EIO),
        }
    }
    // A program may have made it as long as it likes.
    let mut budget = Budget::new();
    while !open.file.truncate(start + contents.len() as u64)? {
        budget.step(Budget::ATTEMPT).await;
    }
    Ok(())
}

fn attach(mount: &Arc<Mount>, path: &[u8]) -> Result<(), Errno> {
    let place: Path = walker()?.find(path)?;
    mount::add(mount::initial()?.set(), mount, place)
}

/// Shows a mount at a path, whose directories are made where they are missing.
///
/// # Errors
/// `ENOTDIR`, `ENOMEM`.
pub fn attach_at(mount: &Arc<Mount>, path: &[u8]) -> Result<(), Errno> {
    let ends = path.iter().enumerate().skip(1).filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
    for end in ends.chain([path.len()]) {
        if path.get(end - 1) != Some(&b'/') {
            make(&path[..end], Contents::Directory, 0o755)?;
        }
    }
    attach(mount, path)
}
