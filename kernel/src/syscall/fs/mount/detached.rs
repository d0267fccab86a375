//! Mounts by descriptor: `open_tree`, `move_mount`, `mount_setattr`.

use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::mount::{self, MountNamespace};
use crate::fs::{File, OpenFile, Path, StatusFlags, landlock};
use crate::memory::fallible;
use crate::syscall::fs::mount::{check_permission, own_mounts, propagation};
use crate::syscall::fs::{add, find, get_path};
use crate::syscall::{Call, SyscallResult};
use crate::wait::queue::{Events, Watch};

/// The object of a descriptor for a tree of mounts that is in no namespace. The tree goes with it, unless it has been
/// moved to a place.
struct DetachedTree {
    _namespace: MountNamespace,
}

impl File for DetachedTree {
    fn poll(&self, _: &OpenFile, _: Option<&Watch>, _: Events) -> Result<Events, Errno> {
        Err(Errno::EBADF)
    }
}

/// A descriptor for a tree.
pub(super) fn add_tree(call: &Call<'_>, tree: MountNamespace, close_on_exec: bool) -> SyscallResult {
    let place = tree.set().top()?;
    let file = fallible::try_arc(DetachedTree { _namespace: tree })?;
    let open = fallible::try_arc(OpenFile::at(file, StatusFlags::PATH, place))?;
    add(call, open, close_on_exec)
}

/// The flags of a lookup, from those of a call.
fn lookup_flags(flags: u32) -> u32 {
    flags & (linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH)
}

/// open_tree(2).
pub fn open_tree(call: &mut Call<'_>) -> SyscallResult {
    const KNOWN: u32 = linux::AT_EMPTY_PATH
        | linux::AT_NO_AUTOMOUNT
        | linux::AT_RECURSIVE
        | linux::AT_SYMLINK_NOFOLLOW
        | linux::OPEN_TREE_CLONE
        | linux::OPEN_TREE_CLOEXEC;
    let flags = call.uint(2);
    let is_copy = flags & linux::OPEN_TREE_CLONE != 0;
    let is_recursive = flags & linux::AT_RECURSIVE != 0;
    if flags & !KNOWN != 0 || (is_recursive && !is_copy) {
        return Err(Errno::EINVAL.into());
    }
    if is_copy {
        check_permission(call)?;
    }
    let path = get_path(call, 1)?;
    let place = find(call, call.int(0), &path, lookup_flags(flags))?;
    let close_on_exec = flags & linux::OPEN_TREE_CLOEXEC != 0;
    if is_copy {
        let tree = mount::detached_copy(&own_mounts(call), &place, is_recursive)?;
        return add_tree(call, tree, close_on_exec);
    }
    let open = crate::syscall::fs::open::open_place_only(place, linux::O_PATH)?;
    add(call, open, close_on_exec)
}

/// move_mount(2).
pub fn move_mount(call: &mut Call<'_>) -> SyscallResult {
    const KNOWN: u32 = linux::MOVE_MOUNT_F_SYMLINKS
        | linux::MOVE_MOUNT_F_AUTOMOUNTS
        | linux::MOVE_MOUNT_F_EMPTY_PATH
        | linux::MOVE_MOUNT_T_SYMLINKS
        | linux::MOVE_MOUNT_T_AUTOMOUNTS
        | linux::MOVE_MOUNT_T_EMPTY_PATH;
    check_permission(call)?;
    let flags = call.uint(4);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let side = |descriptor: usize, path: usize, symlinks: u32, empty: u32| -> TryResult<Path> {
        let mut how = 0;
        if flags & symlinks == 0 {
            how |= linux::AT_SYMLINK_NOFOLLOW;
        }
        if flags & empty != 0 {
            how |= linux::AT_EMPTY_PATH;
        }
        let path = get_path(call, path)?;
        Ok(find(call, call.int(descriptor), &path, how)?)
    };
    let from = side(0, 1, linux::MOVE_MOUNT_F_SYMLINKS, linux::MOVE_MOUNT_F_EMPTY_PATH)?;
    let to = side(2, 3, linux::MOVE_MOUNT_T_SYMLINKS, linux::MOVE_MOUNT_T_EMPTY_PATH)?;
    landlock::check_mounts(&call.thread.credentials())?;
    mount::move_to(&own_mounts(call), &from, to)?;
    Ok(0.into())
}

/// The attributes of mount_setattr(2), each with its flag of mount(2).
const ATTRIBUTES: &[(u32, u32)] = &[
    (linux::MOUNT_ATTR_RDONLY, linux::MS_RDONLY),
    (linux::MOUNT_ATTR_NOSUID, linux::MS_NOSUID),
    (linux::MOUNT_ATTR_NODEV, linux::MS_NODEV),
    (linux::MOUNT_ATTR_NOEXEC, linux::MS_NOEXEC),
    (linux::MOUNT_ATTR_NODIRATIME, linux::MS_NODIRATIME),
    (linux::MOUNT_ATTR_NOSYMFOLLOW, linux::MS_NOSYMFOLLOW),
];

/// The flags of attributes, without those about access times; `None` if there are others among them.
fn plain_attributes(attributes: u64) -> Option<u32> {
    let mut rest = u32::try_from(attributes).ok()? & !linux::MOUNT_ATTR__ATIME;
    let mut flags = 0;
    for &(attribute, flag) in ATTRIBUTES {
        if rest & attribute != 0 {
            flags |= flag;
            rest &= !attribute;
        }
    }
    (rest == 0).then_some(flags)
}

/// The flags for access times.
fn access_time(attributes: u64) -> Option<u32> {
    match attributes as u32 & linux::MOUNT_ATTR__ATIME {
        linux::MOUNT_ATTR_RELATIME => Some(linux::MS_RELATIME),
        linux::MOUNT_ATTR_NOATIME => Some(linux::MS_NOATIME),
        linux::MOUNT_ATTR_STRICTATIME => Some(0),
        _ => None,
    }
}

/// The flags that attributes make, of a mount that has none yet: fsmount(2).
pub(super) fn flags_of(attributes: u32) -> Option<u32> {
    let attributes = u64::from(attributes);
    Some(plain_attributes(attributes)? | access_time(attributes)?)
}

/// The flags of a mount after what mount_setattr(2) sets and clears.
fn changed_flags(before: u32, set: u64, clear: u64) -> Option<u32> {
    let atime = u64::from(linux::MOUNT_ATTR__ATIME);
    let (set_flags, clear_flags) = (plain_attributes(set)?, plain_attributes(clear)?);
    let mut flags = before & !clear_flags | set_flags;
    match clear & atime {
        // Access times are one of several, so all of them are cleared before one is set.
        0 if set & atime != 0 => return None,
        0 => {}
        all if all == atime => {
            let times = linux::MS_NOATIME | linux::MS_RELATIME;
            flags = flags & !times | access_time(set)?;
        }
        _ => return None,
    }
    Some(flags)
}

/// mount_setattr(2).
pub fn mount_setattr(call: &mut Call<'_>) -> SyscallResult {
    const SIZE: usize = 32;
    const KNOWN: u32 =
        linux::AT_EMPTY_PATH | linux::AT_RECURSIVE | linux::AT_SYMLINK_NOFOLLOW | linux::AT_NO_AUTOMOUNT;
    let flags = call.uint(2);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let size = call.word(4);
    if size > 4096 {
        return Err(Errno::E2BIG.into());
    }
    if size < SIZE {
        return Err(Errno::EINVAL.into());
    }
    check_permission(call)?;
    let space = call.thread.space();
    let mut bytes = [0; SIZE];
    space.read_bytes(call.word(3), &mut bytes)?;
    for at in SIZE..size {
        if space.read::<u8>(call.word(3) + at)? != 0 {
            return Err(Errno::E2BIG.into());
        }
    }
    let mut words = [0; SIZE / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let [set, clear, kind, _] = words;
    if set == 0 && clear == 0 && kind == 0 {
        return Ok(0.into());
    }
    let kind = match u32::try_from(kind) {
        Ok(0) => None,
        Ok(kind) => Some(propagation(kind).ok_or(Errno::EINVAL)?),
        Err(_) => return Err(Errno::EINVAL.into()),
    };
    changed_flags(0, set, clear).ok_or(Errno::EINVAL)?;
    let path = get_path(call, 1)?;
    let place = find(call, call.int(0), &path, lookup_flags(flags))?;
    let new = |before| changed_flags(before, set, clear).unwrap_or(before);
    mount::change_attributes(&own_mounts(call), &place, flags & linux::AT_RECURSIVE != 0, kind, new)?;
    Ok(0.into())
}
