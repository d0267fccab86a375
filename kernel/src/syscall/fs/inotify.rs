//! The calls of inotify(7).

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::access::Access;
use crate::fs::inotify::Inotify;
use crate::fs::{FileType, OpenFile, StatusFlags, access, downcast_arc};
use crate::memory::fallible;
use crate::syscall::fs::{find, get_file, get_path};
use crate::syscall::{Call, SyscallResult};

const MODIFIERS: u32 = linux::IN_DONT_FOLLOW
    | linux::IN_EXCL_UNLINK
    | linux::IN_MASK_ADD
    | linux::IN_MASK_CREATE
    | linux::IN_ONESHOT
    | linux::IN_ONLYDIR;

/// inotify_init(2).
pub fn inotify_init(call: &mut Call<'_>) -> SyscallResult {
    make(call, 0)
}

/// inotify_init1(2).
pub fn inotify_init1(call: &mut Call<'_>) -> SyscallResult {
    make(call, call.uint(0))
}

fn make(call: &Call<'_>, flags: u32) -> SyscallResult {
    if flags & !(linux::O_NONBLOCK | linux::O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let status = StatusFlags::from_bits_retain(flags & linux::O_NONBLOCK);
    let open = fallible::try_arc(OpenFile::new(Inotify::new(call.thread.credentials().euid)?, status))?;
    crate::syscall::fs::add(call, open, flags & linux::O_CLOEXEC != 0)
}

/// inotify_add_watch(2).
pub fn inotify_add_watch(call: &mut Call<'_>) -> SyscallResult {
    let mask = call.uint(2);
    let both = linux::IN_MASK_ADD | linux::IN_MASK_CREATE;
    if mask & (linux::IN_ALL_EVENTS | MODIFIERS) == 0
        || mask & !(linux::IN_ALL_EVENTS | MODIFIERS) != 0
        || mask & both == both
    {
        return Err(Errno::EINVAL.into());
    }
    let open = get_file(call, 0)?;
    let instance = downcast_arc::<Inotify>(&open.file).ok_or(Errno::EINVAL)?;
    let path = get_path(call, 1)?;
    let flags = if mask & linux::IN_DONT_FOLLOW != 0 { linux::AT_SYMLINK_NOFOLLOW } else { 0 };
    let place = find(call, linux::AT_FDCWD, &path, flags)?;
    let node = &place.entry.node;
    if mask & linux::IN_ONLYDIR != 0 && node.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR.into());
    }
    access::check(&**node, &call.thread.credentials(), Access::READ)?;
    Ok((instance.add(node, mask)? as usize).into())
}

/// inotify_rm_watch(2).
pub fn inotify_rm_watch(call: &mut Call<'_>) -> SyscallResult {
    let open = get_file(call, 0)?;
    downcast_arc::<Inotify>(&open.file).ok_or(Errno::EINVAL)?.remove(call.int(1))?;
    Ok(0.into())
}
