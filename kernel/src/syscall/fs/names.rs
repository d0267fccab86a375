//! Calls that make, move and remove names.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::fanotify;
use crate::fs::inode::{Contents, Creation, Rename};
use crate::fs::landlock::Referring;
use crate::fs::lookup::{Last, LookupFlags, LookupResult};
use crate::fs::{Dentry, FileType, Path, access, flags, landlock, mount, notify, protection};
use crate::process::Thread;
use crate::syscall::fs::open::permissions_in;
use crate::syscall::fs::{View, get_path};
use crate::syscall::{Call, SyscallResult, pending};

/// Walks to a name that is to be created and checks that it may be.
fn walk_new(call: &Call<'_>, descriptor: i32, path: &[u8]) -> Result<(LookupResult, View), Errno> {
    let view = View::of(call.thread, descriptor, path)?;
    let found = view.walk(call.thread, path, LookupFlags::empty())?;
    if found.place.is_some() {
        return Err(Errno::EEXIST);
    }
    Ok((found, view))
}

fn create(
    call: &Call<'_>,
    descriptor: i32,
    path: &[u8],
    contents: Contents<'_>,
    mode: u32,
) -> Result<(), Errno> {
    let directory = matches!(contents, Contents::Directory);
    let (found, view) = walk_new(call, descriptor, path)?;
    if found.trailing_slash && !directory {
        return Err(Errno::ENOENT);
    }
    landlock::check_make(&view.credentials, &found.directory, &contents)?;
    access::check_create(&found.directory, &view.credentials)?;
    let masked = permissions_in(call.thread, &found.directory, mode);
    let permissions = if matches!(contents, Contents::Symlink(_)) { 0o777 } else { masked };
    let creation = Creation { contents, permissions, credentials: &view.credentials };
    let parent = &found.directory.entry;
    let name = found.vacant()?;
    let entry = parent.node.create(parent, name, &creation)?;
    notify::report_name(parent, name, entry.node.kind(), linux::IN_CREATE);
    Ok(())
}

/// mkdir(2).
pub fn mkdir(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    create(call, linux::AT_FDCWD, &path, Contents::Directory, call.uint(1) & 0o1777)?;
    Ok(0.into())
}

/// mkdirat(2).
pub fn mkdirat(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 1)?;
    create(call, call.int(0), &path, Contents::Directory, call.uint(2) & 0o1777)?;
    Ok(0.into())
}

/// mknod(2).
pub fn mknod(call: &mut Call<'_>) -> SyscallResult {
    check_node_kind(call.uint(1))?;
    let path = get_path(call, 0)?;
    make_node(call, linux::AT_FDCWD, &path, call.uint(1), call.word(2))
}

/// mknodat(2).
pub fn mknodat(call: &mut Call<'_>) -> SyscallResult {
    check_node_kind(call.uint(2))?;
    let path = get_path(call, 1)?;
    make_node(call, call.int(0), &path, call.uint(2), call.word(3))
}

/// The kinds of files that are made by other calls.
fn check_node_kind(mode: u32) -> Result<(), Errno> {
    match FileType::from_mode(mode) {
        Some(FileType::Directory) => Err(Errno::EPERM),
        Some(FileType::Symlink) => Err(Errno::EINVAL),
        None if mode & linux::S_IFMT != 0 => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

fn make_node(call: &Call<'_>, descriptor: i32, path: &[u8], mode: u32, device: usize) -> SyscallResult {
    let kind = if mode & linux::S_IFMT == 0 { Some(FileType::Regular) } else { FileType::from_mode(mode) };
    let contents = match kind.ok_or(Errno::EINVAL)? {
        FileType::Regular => Contents::Regular,
        FileType::Fifo => Contents::Fifo,
        FileType::Socket => Contents::Socket,
        kind @ (FileType::Character | FileType::Block) => {
            let contents = Contents::Device(kind, u64::from(device as u32));
            if !contents.is_whiteout() && !call.thread.credentials().is_capable(linux::CAP_MKNOD) {
                return Err(Errno::EPERM.into());
            }
            contents
        }
        FileType::Directory => return Err(Errno::EPERM.into()),
        FileType::Symlink => return Err(Errno::EINVAL.into()),
    };
    create(call, descriptor, path, contents, mode & 0o7777)?;
    Ok(0.into())
}

/// symlink(2).
pub fn symlink(call: &mut Call<'_>) -> SyscallResult {
    make_symlink(call, linux::AT_FDCWD, 1)
}

/// symlinkat(2).
pub fn symlinkat(call: &mut Call<'_>) -> SyscallResult {
    make_symlink(call, call.int(1), 2)
}

fn make_symlink(call: &Call<'_>, descriptor: i32, index: usize) -> SyscallResult {
    let target = get_path(call, 0)?;
    let path = get_path(call, index)?;
    if target.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    create(call, descriptor, &path, Contents::Symlink(&target), 0o777)?;
    Ok(0.into())
}

/// link(2).
pub fn link(call: &mut Call<'_>) -> SyscallResult {
    make_link(call, (linux::AT_FDCWD, 0), (linux::AT_FDCWD, 1), 0)
}

/// linkat(2).
pub fn linkat(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(4);
    if flags & !(linux::AT_SYMLINK_FOLLOW | linux::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    make_link(call, (call.int(0), 1), (call.int(2), 3), flags)
}

fn make_link(call: &Call<'_>, from: (i32, usize), to: (i32, usize), flags: u32) -> SyscallResult {
    let (old, new) = (get_path(call, from.1)?, get_path(call, to.1)?);
    let mut how = LookupFlags::empty();
    how.set(LookupFlags::FOLLOW, flags & linux::AT_SYMLINK_FOLLOW != 0);
    how.set(LookupFlags::EMPTY, flags & linux::AT_EMPTY_PATH != 0);
    let view = View::of(call.thread, from.0, &old)?;
    let source = view.walk(call.thread, &old, how)?.existing()?;
    let (found, view) = walk_new(call, to.0, &new)?;
    let node = &source.entry.node;
    if !Arc::ptr_eq(&source.mount, &found.directory.mount) {
        return Err(Errno::EXDEV.into());
    }
    if let Some(parent) = source.entry.parent() {
        let from = Path { mount: source.mount.clone(), entry: parent };
        let to = &found.directory;
        landlock::check_refer(&view.credentials, (&from, &source.entry), (to, None), Referring::Link)?;
    }
    if node.kind() == FileType::Directory {
        return Err(Errno::EPERM.into());
    }
    if found.trailing_slash {
        return Err(Errno::ENOENT.into());
    }
    access::check_create(&found.directory, &view.credentials)?;
    protection::check_link(&**node, &view.credentials)?;
    flags::check_changeable(&**node)?;
    let parent = &found.directory.entry;
    let name = found.vacant()?;
    parent.node.link(parent, name, node)?;
    notify::report_self(node, linux::IN_ATTRIB);
    notify::report_name(parent, name, node.kind(), linux::IN_CREATE);
    Ok(0.into())
}

/// unlink(2).
pub fn unlink(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    remove(call.thread, linux::AT_FDCWD, &path, false)
}

/// rmdir(2).
pub fn rmdir(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    remove(call.thread, linux::AT_FDCWD, &path, true)
}

/// unlinkat(2).
pub fn unlinkat(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(2);
    if flags & !linux::AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL.into());
    }
    let path = get_path(call, 1)?;
    remove(call.thread, call.int(0), &path, flags != 0)
}

/// Removes a name, as the thread itself would: of a directory, or of anything else.
///
/// # Errors
/// As unlink(2), rmdir(2).
pub fn remove(thread: &Arc<Thread>, descriptor: i32, path: &[u8], directory: bool) -> SyscallResult {
    let view = View::of(thread, descriptor, path)?;
    // A slash at the end of a link to a directory doesn't make rmdir follow it.
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(path.len().min(1), |last| last + 1);
    let trailing_slash = end < path.len();
    let found = view.walk(thread, &path[..end], LookupFlags::empty())?;
    match (&found.last, directory) {
        (Last::Dot, true) if path.iter().all(|&byte| byte == b'/') => return Err(Errno::EBUSY.into()),
        (Last::Dot, true) => return Err(Errno::EINVAL.into()),
        (Last::DotDot, true) => return Err(Errno::ENOTEMPTY.into()),
        (Last::Dot | Last::DotDot, false) => return Err(Errno::EISDIR.into()),
        (Last::Name(_), _) => {}
    }
    let parent = found.directory.clone();
    let place = found.existing()?;
    landlock::check_remove(&view.credentials, &parent, directory)?;
    access::check_remove(&parent, &place.entry, &view.credentials)?;
    check_not_mounted(thread, &parent, &place)?;
    match (place.entry.node.kind() == FileType::Directory, directory) {
        (true, false) => return Err(Errno::EISDIR.into()),
        (false, true) => return Err(Errno::ENOTDIR.into()),
        (false, false) if trailing_slash => return Err(Errno::ENOTDIR.into()),
        _ => {}
    }
    // A watched node goes with its last reference, which is when its end is reported.
    parent.entry.node.unlink(&place.entry)?;
    if !directory {
        notify::report_self(&place.entry.node, linux::IN_ATTRIB);
    }
    if !fanotify::is_idle() && (directory || place.entry.node.metadata().links == 0) {
        fanotify::report_self(&place.entry.node, linux::IN_DELETE_SELF);
    }
    if let (false, Ok(name)) = (notify::is_idle(), place.entry.name()) {
        notify::report_name(&parent.entry, &name, place.entry.node.kind(), linux::IN_DELETE);
    }
    without_mounts(place.entry)
}

/// A mount point of the thread's own namespace can't be removed or renamed.
fn check_not_mounted(thread: &Thread, parent: &Path, place: &Path) -> Result<(), Errno> {
    let is_covered = !Arc::ptr_eq(&parent.mount, &place.mount)
        || place.entry.is_mount_point()
            && mount::has_own_mount(thread.namespaces().mounts.set(), &place.entry);
    if is_covered { Err(Errno::EBUSY) } else { Ok(()) }
}

/// The result of a call that has removed this name: what other namespaces have mounted on it goes as well.
fn without_mounts(removed: Arc<Dentry>) -> SyscallResult {
    if !removed.is_mount_point() {
        return Ok(0.into());
    }
    pending(async move {
        mount::detach_all(removed).await;
        Ok(0)
    })
}

/// rename(2).
pub fn rename(call: &mut Call<'_>) -> SyscallResult {
    rename_paths(call, (linux::AT_FDCWD, 0), (linux::AT_FDCWD, 1), 0)
}

/// renameat(2).
pub fn renameat(call: &mut Call<'_>) -> SyscallResult {
    rename_paths(call, (call.int(0), 1), (call.int(2), 3), 0)
}

/// renameat2(2).
pub fn renameat2(call: &mut Call<'_>) -> SyscallResult {
    rename_paths(call, (call.int(0), 1), (call.int(2), 3), call.uint(4))
}

/// `RENAME_WHITEOUT` with `RENAME_NOREPLACE`.
const WHITEOUT_KEPT: u32 = linux::RENAME_WHITEOUT | linux::RENAME_NOREPLACE;

fn rename_paths(call: &Call<'_>, from: (i32, usize), to: (i32, usize), flags: u32) -> SyscallResult {
    let how = match flags {
        0 => Rename::Replace,
        linux::RENAME_NOREPLACE => Rename::Keep,
        linux::RENAME_EXCHANGE => Rename::Exchange,
        linux::RENAME_WHITEOUT => Rename::Replace,
        WHITEOUT_KEPT => Rename::Keep,
        _ => return Err(Errno::EINVAL.into()),
    };
    let (old, new) = (get_path(call, from.1)?, get_path(call, to.1)?);
    if old.is_empty() || new.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    let cut =
        |path: &[u8]| path.iter().rposition(|&byte| byte != b'/').map_or(path.len().min(1), |last| last + 1);
    let (old_end, new_end) = (cut(&old), cut(&new));
    let view = View::of(call.thread, from.0, &old)?;
    let source = view.walk(call.thread, &old[..old_end], LookupFlags::empty())?;
    let target =
        View::of(call.thread, to.0, &new)?.walk(call.thread, &new[..new_end], LookupFlags::empty())?;
    let (Last::Name(_), Last::Name(name)) = (&source.last, &target.last) else {
        return Err(if how == Rename::Keep { Errno::EEXIST } else { Errno::EBUSY }.into());
    };
    if !Arc::ptr_eq(&source.directory.mount, &target.directory.mount) {
        return Err(Errno::EXDEV.into());
    }
    let parent = source.directory.clone();
    let place = source.existing()?;
    let directory = place.entry.node.kind() == FileType::Directory;
    if !directory && (old_end < old.len() || new_end < new.len() && how != Rename::Exchange) {
        return Err(Errno::ENOTDIR.into());
    }
    if how == Rename::Keep && target.place.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let referring = match how {
        Rename::Exchange => Referring::Exchange,
        _ if flags & linux::RENAME_WHITEOUT != 0 => Referring::MoveForWhiteout,
        _ => Referring::Move,
    };
    let existing = target.place.as_ref().map(|existing| &*existing.entry);
    let to = (&target.directory, existing);
    landlock::check_refer(&view.credentials, (&parent, &place.entry), to, referring)?;
    access::check_remove(&parent, &place.entry, &view.credentials)?;
    check_not_mounted(call.thread, &parent, &place)?;
    match &target.place {
        Some(existing) => {
            access::check_remove(&target.directory, &existing.entry, &view.credentials)?;
            check_not_mounted(call.thread, &target.directory, existing)?;
        }
        None => access::check_create(&target.directory, &view.credentials)?,
    }
    let old_name = if notify::is_idle() { None } else { Some(place.entry.name()?) };
    if flags & linux::RENAME_WHITEOUT != 0 {
        let contents = Contents::Device(FileType::Character, 0);
        let whiteout = Creation { contents, permissions: 0, credentials: &view.credentials };
        let (moved, directory) = (&place.entry, &target.directory.entry);
        parent.entry.node.rename_for_whiteout(moved, directory, name, how, &whiteout)?;
    } else {
        parent.entry.node.rename(&place.entry, &target.directory.entry, name, how)?;
    }
    if let Some(old_name) = old_name {
        let (from, to) = (&parent.entry, &target.directory.entry);
        report_rename(from, &old_name, to, name, &place, target.place.as_ref(), how);
    }
    match target.place {
        Some(replaced) if replaced.entry.is_removed() => without_mounts(replaced.entry),
        _ => Ok(0.into()),
    }
}

/// Reports a rename, and what became of what was there.
fn report_rename(
    from: &Dentry,
    old_name: &[u8],
    to: &Dentry,
    name: &[u8],
    moved: &Path,
    other: Option<&Path>,
    how: Rename,
) {
    let node = &moved.entry.node;
    // Two names of one file: nothing happened.
    if other.is_some_and(|other| Arc::ptr_eq(&other.entry.node, node)) {
        return;
    }
    notify::report_rename(from, old_name, to, name, node);
    match other {
        Some(other) if how == Rename::Exchange => {
            notify::report_rename(to, name, from, old_name, &other.entry.node);
        }
        Some(other) => notify::report_self(&other.entry.node, linux::IN_ATTRIB),
        None => {}
    }
}
