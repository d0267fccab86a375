//! `mount`, `umount2` and `pivot_root`.

mod context;
mod detached;
mod settings;

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::lookup::PATH_LIMIT;
use crate::fs::mount::{self, MountSet, Propagation, Superblock, is_unused};
use crate::fs::tree::deferred_trees;
use crate::fs::{FileType, Mount, Path, fuse, landlock};
use crate::process::table;
use crate::sched::Budget;
use crate::syscall::fs::{find, get_path, get_string};
use crate::syscall::{Call, SyscallResult, pending};

pub use crate::syscall::fs::mount::context::{fsconfig, fsmount, fsopen, fspick};
pub use crate::syscall::fs::mount::detached::{mount_setattr, move_mount, open_tree};

/// Flags of umount2(2) that `linux-raw-sys` leaves out.
const MNT_FORCE: u32 = 1;
const UMOUNT_NOFOLLOW: u32 = 8;
/// The longest options.
const OPTIONS_LIMIT: usize = 4096;
/// The kinds of propagation.
const PROPAGATION: u32 = linux::MS_SHARED | linux::MS_PRIVATE | linux::MS_SLAVE | linux::MS_UNBINDABLE;
/// The flags that say when access times change.
const ACCESS_TIME: u32 =
    linux::MS_NOATIME | linux::MS_NODIRATIME | linux::MS_RELATIME | linux::MS_STRICTATIME;

/// Whether the caller may change mounts.
fn check_permission(call: &Call<'_>) -> Result<(), Errno> {
    let namespaces = call.thread.namespaces();
    let may = call.thread.credentials().is_capable_in(namespaces.mounts.owner(), linux::CAP_SYS_ADMIN);
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// The mounts of the caller's namespace.
fn own_mounts(call: &Call<'_>) -> Arc<MountSet> {
    call.thread.namespaces().mounts.set().clone()
}

/// The flags that a mount gets from those of mount(2).
fn mount_flags(flags: u32, before: Option<u32>) -> u32 {
    let mut kept = flags & Mount::FLAGS;
    if flags & linux::MS_NOATIME == 0 {
        kept |= linux::MS_RELATIME;
    } else {
        kept &= !linux::MS_RELATIME;
    }
    if flags & linux::MS_STRICTATIME != 0 {
        kept &= !(linux::MS_RELATIME | linux::MS_NOATIME);
    }
    match before {
        // A mount that is told nothing of access times keeps what it has.
        Some(before) if flags & ACCESS_TIME == 0 => kept & !Mount::ACCESS_TIME | before & Mount::ACCESS_TIME,
        _ => kept,
    }
}

/// mount(2).
pub fn mount(call: &mut Call<'_>) -> SyscallResult {
    let text = |index: usize, limit| -> TryResult<Option<Vec<u8>>> {
        match call.word(index) {
            0 => Ok(None),
            address => get_string(call, address, limit, Errno::EINVAL).map(Some),
        }
    };
    let (kind, source) = (text(2, PATH_LIMIT)?, text(0, PATH_LIMIT)?);
    let options = text(4, OPTIONS_LIMIT)?.unwrap_or_default();
    let target = get_path(call, 1)?;
    let mut flags = call.word(3) as u32;
    if flags & linux::MS_MGC_MSK == linux::MS_MGC_VAL {
        flags &= !linux::MS_MGC_MSK;
    }
    let at = find(call, linux::AT_FDCWD, &target, 0)?;
    check_permission(call)?;
    landlock::check_mounts(&call.thread.credentials())?;
    if flags & linux::MS_REMOUNT != 0 {
        remount(call, &at, flags, &options)?;
    } else if flags & linux::MS_BIND != 0 {
        let source = bind_source(call, source.as_deref())?;
        mount::bind(&own_mounts(call), &source, at, flags & linux::MS_REC != 0)?;
    } else if flags & PROPAGATION != 0 {
        let kind = propagation(flags & !(linux::MS_REC | linux::MS_SILENT)).ok_or(Errno::EINVAL)?;
        mount::set_propagation(&call.thread.credentials(), &at, kind, flags & linux::MS_REC != 0)?;
    } else if flags & linux::MS_MOVE != 0 {
        let source = bind_source(call, source.as_deref())?;
        mount::move_to(&own_mounts(call), &source, at)?;
    } else {
        let kind = kind.ok_or(Errno::EINVAL)?;
        if !settings::is_known(&kind) {
            return Err(Errno::ENODEV.into());
        }
        let own = mount_flags(flags, None);
        let source = source.unwrap_or_default();
        let made = settings::make(call.thread, &kind, &source, &options, flags)?;
        made.set_flags(own);
        mount::add(&own_mounts(call), &made, at)?;
    }
    Ok(0.into())
}

fn bind_source(call: &Call<'_>, source: Option<&[u8]>) -> Result<Path, Errno> {
    let source = source.filter(|source| !source.is_empty()).ok_or(Errno::EINVAL)?;
    find(call, linux::AT_FDCWD, source, 0)
}

/// The propagation that these flags ask for, which may be no others.
fn propagation(flags: u32) -> Option<Propagation> {
    match flags {
        linux::MS_SHARED => Some(Propagation::Shared),
        linux::MS_PRIVATE => Some(Propagation::Private),
        linux::MS_SLAVE => Some(Propagation::Slave),
        linux::MS_UNBINDABLE => Some(Propagation::Unbindable),
        _ => None,
    }
}

/// `MS_REMOUNT`: new flags for a mount, and without `MS_BIND` for its file system.
fn remount(call: &Call<'_>, at: &Path, flags: u32, options: &[u8]) -> Result<(), Errno> {
    if !at.mount.is_in(&own_mounts(call)) || !at.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    let own = mount_flags(flags, Some(at.mount.flags()));
    if !at.mount.may_have_flags(own) {
        return Err(Errno::EPERM);
    }
    if flags & linux::MS_BIND == 0 {
        let file_system = &at.mount.file_system;
        check_file_system(call, file_system)?;
        settings::change(&at.mount, options, &call.thread.credentials())?;
        let topology = mount::lock();
        file_system.change_flags(&topology, flags)?;
        at.mount.change_flags(&topology, own);
        return Ok(());
    }
    mount::change_attributes(&own_mounts(call), at, false, None, |_| own)
}

/// Whether the caller may change the settings of a file system itself.
fn check_file_system(call: &Call<'_>, file_system: &Superblock) -> Result<(), Errno> {
    let may = call.thread.credentials().is_capable_in(file_system.owner(), linux::CAP_SYS_ADMIN);
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// umount2(2).
pub fn umount2(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let flags = call.uint(1);
    if flags & !(MNT_FORCE | linux::MNT_DETACH | linux::MNT_EXPIRE | UMOUNT_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let follow = if flags & UMOUNT_NOFOLLOW != 0 { linux::AT_SYMLINK_NOFOLLOW } else { 0 };
    // The topmost mount at the place is meant, also for a path like `.` that crosses no mount point.
    let place = find(call, linux::AT_FDCWD, &path, follow)?.covered();
    check_permission(call)?;
    if !place.is_mount_root() || !place.mount.is_in(&own_mounts(call)) || place.mount.is_locked() {
        return Err(Errno::EINVAL.into());
    }
    if flags & MNT_FORCE != 0 && !call.thread.credentials().is_capable(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM.into());
    }
    landlock::check_mounts(&call.thread.credentials())?;
    let mount = place.mount;
    drop(place.entry);
    let is_root = Arc::ptr_eq(&call.thread.directories().root().mount, &mount);
    let is_lazy = flags & linux::MNT_DETACH != 0;
    if flags & linux::MNT_EXPIRE != 0 {
        if is_root || flags & (MNT_FORCE | linux::MNT_DETACH) != 0 {
            return Err(Errno::EINVAL.into());
        }
        if !is_unused(&mount) {
            return Err(Errno::EBUSY.into());
        }
        if !mount.is_expired() {
            return Err(Errno::EAGAIN.into());
        }
    }
    if is_root && !is_lazy {
        check_file_system(call, &mount.file_system)?;
        // A caller can't take its root from below itself; as in Linux nothing is written there from now on.
        let flags = mount.file_system.flags();
        mount.file_system.change_flags(&mount::lock(), flags | linux::MS_RDONLY)?;
        return Ok(0.into());
    }
    if flags & MNT_FORCE != 0 {
        fuse::abort(&mount.root.node);
    }
    mount::unmount(mount, is_lazy)?;
    if !deferred_trees::is_any() {
        return Ok(0.into());
    }
    pending(async move {
        deferred_trees::finish().await;
        Ok(0)
    })
}

/// pivot_root(2).
pub fn pivot_root(call: &mut Call<'_>) -> SyscallResult {
    let (new, old) = (get_path(call, 0)?, get_path(call, 1)?);
    check_permission(call)?;
    let directory = |path: &[u8]| {
        let place = find(call, linux::AT_FDCWD, path, 0)?;
        if place.entry.node.kind() == FileType::Directory { Ok(place) } else { Err(Errno::ENOTDIR) }
    };
    let (new, old) = (directory(&new)?, directory(&old)?);
    landlock::check_mounts(&call.thread.credentials())?;
    let root = call.thread.directories().root();
    mount::pivot(&own_mounts(call), &new, old, &root)?;
    pending(async move {
        // Everybody whose root or working directory was the old root moves along.
        let mut budget = Budget::new();
        let mut from = 0;
        while let Some(process) = table::next_process(from) {
            from = process.pid.saturating_add(1);
            let mut next = 0;
            while let Some(thread) = process.next_thread(next) {
                thread.directories().replace(&root, &new);
                next = thread.tid().saturating_add(1);
                budget.step(1).await;
            }
        }
        Ok(0)
    })
}
