//! Reading a file's attributes: `stat`, `statx`, `access`, `readlink`, `statfs`.

use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::access::Access;
use crate::fs::anonymous::path_of_open_file;
use crate::fs::flags::{FileFlags, KeptFlags};
use crate::fs::inode::{Statistics, device_major, device_minor};
use crate::fs::lookup::LookupFlags;
use crate::fs::{FileType, Metadata, Mount, OpenFile, Path, access};
use crate::memory::fallible;
use crate::process::{Credentials, user_namespace};
use crate::syscall::fs::{View, encode, find, get_path, put};
use crate::syscall::{Call, SyscallResult};

/// Bytes that reading in one piece is best done with, as `st_blksize` says.
const BLOCK_BYTES: u32 = 4096;

/// stat(2).
pub fn stat(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, 0)?;
    put_stat(call, 1, &place.entry.node.metadata_now()?)
}

/// lstat(2).
pub fn lstat(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, linux::AT_SYMLINK_NOFOLLOW)?;
    put_stat(call, 1, &place.entry.node.metadata_now()?)
}

/// fstat(2).
pub fn fstat(call: &mut Call<'_>) -> SyscallResult {
    let open = call.thread.descriptors().get(call.int(0))?;
    put_stat(call, 1, &open.metadata_now()?)
}

/// newfstatat(2).
pub fn newfstatat(call: &mut Call<'_>) -> SyscallResult {
    const KNOWN: u32 = linux::AT_SYMLINK_NOFOLLOW
        | linux::AT_EMPTY_PATH
        | linux::AT_NO_AUTOMOUNT
        | linux::AT_STATX_SYNC_TYPE;
    let flags = call.uint(3);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let metadata = metadata_of(call, call.int(0), 1, flags)?;
    put_stat(call, 2, &metadata)
}

fn metadata_of(call: &Call<'_>, descriptor: i32, path: usize, flags: u32) -> TryResult<Metadata> {
    let path = if call.word(path) == 0 && flags & linux::AT_EMPTY_PATH != 0 {
        alloc::vec::Vec::new()
    } else {
        get_path(call, path)?
    };
    if path.is_empty() && flags & linux::AT_EMPTY_PATH != 0 && descriptor != linux::AT_FDCWD {
        return Ok(call.thread.descriptors().get(descriptor)?.metadata_now()?);
    }
    Ok(find(call, descriptor, &path, flags)?.entry.node.metadata_now()?)
}

/// Owner and group of a file as the caller sees them.
fn shown_owner(call: &Call<'_>, metadata: &Metadata) -> (u32, u32) {
    if !user_namespace::is_in_use() {
        return (metadata.uid, metadata.gid);
    }
    let who = call.thread.credentials();
    (who.shown_user(metadata.uid), who.shown_group(metadata.gid))
}

fn put_stat(call: &Call<'_>, index: usize, metadata: &Metadata) -> SyscallResult {
    let (user, group) = shown_owner(call, metadata);
    let bytes = encode!(linux::stat {
        st_dev: metadata.device,
        st_ino: metadata.inode,
        st_nlink: metadata.links,
        st_mode: metadata.mode(),
        st_uid: user,
        st_gid: group,
        st_rdev: metadata.special,
        st_size: metadata.size,
        st_blksize: BLOCK_BYTES,
        st_blocks: metadata.blocks,
        st_atime: metadata.accessed.seconds,
        st_atime_nsec: metadata.accessed.nanoseconds,
        st_mtime: metadata.modified.seconds,
        st_mtime_nsec: metadata.modified.nanoseconds,
        st_ctime: metadata.changed.seconds,
        st_ctime_nsec: metadata.changed.nanoseconds,
    });
    put(call, call.word(index), &bytes)?;
    Ok(0.into())
}

/// A file as statx(2) sees it.
struct StatxView {
    metadata: Metadata,
    /// None where the file system keeps none.
    flags: Option<FileFlags>,
    /// The number of the mount through which it is seen.
    mount: u32,
    is_mount_root: bool,
}

fn seen_by_statx(call: &Call<'_>, flags: u32) -> TryResult<StatxView> {
    let (descriptor, is_empty_allowed) = (call.int(0), flags & linux::AT_EMPTY_PATH != 0);
    let path =
        if call.word(1) == 0 && is_empty_allowed { alloc::vec::Vec::new() } else { get_path(call, 1)? };
    let (place, metadata) = if path.is_empty() && is_empty_allowed && descriptor != linux::AT_FDCWD {
        let open = call.thread.descriptors().get(descriptor)?;
        (path_of_open_file(&open)?, open.metadata_now()?)
    } else {
        let place = find(call, descriptor, &path, flags)?;
        let metadata = place.entry.node.metadata_now()?;
        (place, metadata)
    };
    let flags = place.entry.node.file_flags().map(KeptFlags::get);
    Ok(StatxView { metadata, flags, mount: place.mount.id, is_mount_root: place.is_mount_root() })
}

/// The `ST_` flags of a mount.
fn status_flags(mount: &Mount) -> u32 {
    const VALID: u32 = 0x20;
    const NO_SYMLINKS: u32 = 8192;
    const SAME: u32 = linux::MS_NOSUID | linux::MS_NODEV | linux::MS_NOEXEC | linux::MS_SYNCHRONOUS;
    let flags = mount.flags();
    let mut shown = VALID | (flags | mount.file_system.flags()) & SAME;
    for (flag, status) in [
        (linux::MS_NOATIME, 1024),
        (linux::MS_NODIRATIME, 2048),
        (linux::MS_RELATIME, 4096),
        (linux::MS_NOSYMFOLLOW, NO_SYMLINKS),
    ] {
        if flags & flag != 0 {
            shown |= status;
        }
    }
    shown | u32::from(mount.is_read_only())
}

/// statx(2).
pub fn statx(call: &mut Call<'_>) -> SyscallResult {
    const KNOWN: u32 = linux::AT_SYMLINK_NOFOLLOW
        | linux::AT_EMPTY_PATH
        | linux::AT_NO_AUTOMOUNT
        | linux::AT_STATX_SYNC_TYPE;
    let (flags, mask) = (call.uint(2), call.uint(3));
    let has_both = flags & linux::AT_STATX_SYNC_TYPE == linux::AT_STATX_SYNC_TYPE;
    if flags & !KNOWN != 0 || has_both || mask & linux::STATX__RESERVED != 0 {
        return Err(Errno::EINVAL.into());
    }
    let StatxView { metadata, flags, mount, is_mount_root } = seen_by_statx(call, flags)?;
    let root = if is_mount_root { linux::STATX_ATTR_MOUNT_ROOT } else { 0 };
    let known = linux::STATX_ATTR_MOUNT_ROOT | flags.map_or(0, |_| FileFlags::all().status());
    let (user, group) = shown_owner(call, &metadata);
    let bytes = encode!(linux::statx {
        stx_mask: linux::STATX_BASIC_STATS | linux::STATX_BTIME | linux::STATX_MNT_ID,
        stx_attributes: u64::from(root | flags.map_or(0, FileFlags::status)),
        stx_attributes_mask: u64::from(known),
        stx_mnt_id: mount,
        stx_blksize: BLOCK_BYTES,
        stx_nlink: metadata.links,
        stx_uid: user,
        stx_gid: group,
        stx_mode: metadata.mode(),
        stx_ino: metadata.inode,
        stx_size: metadata.size,
        stx_blocks: metadata.blocks,
        stx_atime.tv_sec: metadata.accessed.seconds,
        stx_atime.tv_nsec: metadata.accessed.nanoseconds,
        stx_btime.tv_sec: metadata.born.seconds,
        stx_btime.tv_nsec: metadata.born.nanoseconds,
        stx_ctime.tv_sec: metadata.changed.seconds,
        stx_ctime.tv_nsec: metadata.changed.nanoseconds,
        stx_mtime.tv_sec: metadata.modified.seconds,
        stx_mtime.tv_nsec: metadata.modified.nanoseconds,
        stx_rdev_major: device_major(metadata.special),
        stx_rdev_minor: device_minor(metadata.special),
        stx_dev_major: device_major(metadata.device),
        stx_dev_minor: device_minor(metadata.device),
    });
    put(call, call.word(4), &bytes)?;
    Ok(0.into())
}

/// access(2).
pub fn access(call: &mut Call<'_>) -> SyscallResult {
    check_access_mode(call.uint(1))?;
    let path = get_path(call, 0)?;
    check_access(call, linux::AT_FDCWD, &path, call.uint(1), 0)
}

/// faccessat(2), the system call, which has no flags.
pub fn faccessat(call: &mut Call<'_>) -> SyscallResult {
    check_access_mode(call.uint(2))?;
    let path = get_path(call, 1)?;
    check_access(call, call.int(0), &path, call.uint(2), 0)
}

/// faccessat2(2).
pub fn faccessat2(call: &mut Call<'_>) -> SyscallResult {
    const KNOWN: u32 = linux::AT_EACCESS | linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH;
    let flags = call.uint(3);
    check_access_mode(call.uint(2))?;
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let path = get_path(call, 1)?;
    check_access(call, call.int(0), &path, call.uint(2), flags)
}

fn check_access_mode(mode: u32) -> Result<Access, Errno> {
    Access::from_bits(mode).ok_or(Errno::EINVAL)
}

fn check_access(call: &Call<'_>, descriptor: i32, path: &[u8], mode: u32, flags: u32) -> SyscallResult {
    let wanted = check_access_mode(mode)?;
    let mut view = View::of(call.thread, descriptor, path)?;
    // The question is what the real user may do, not the effective one.
    if flags & linux::AT_EACCESS == 0 {
        view.credentials = fallible::try_arc(of_real_user(&view.credentials))?;
    }
    let mut how = LookupFlags::empty();
    how.set(LookupFlags::FOLLOW, flags & linux::AT_SYMLINK_NOFOLLOW == 0);
    how.set(LookupFlags::EMPTY, flags & linux::AT_EMPTY_PATH != 0);
    let place = view.walk(call.thread, path, how)?.existing()?;
    access::check_place(&place, &view.credentials, wanted)?;
    Ok(0.into())
}

/// The same thread as if its effective user were the real one.
fn of_real_user(credentials: &Credentials) -> Credentials {
    let mut real = credentials.clone();
    (real.fsuid, real.fsgid) = (real.uid, real.gid);
    real.capabilities.effective = if real.uid == real.root_user() { real.capabilities.permitted } else { 0 };
    real
}

/// readlink(2).
pub fn readlink(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    read_link(call, linux::AT_FDCWD, &path, 1)
}

/// readlinkat(2).
pub fn readlinkat(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 1)?;
    read_link(call, call.int(0), &path, 2)
}

fn read_link(call: &Call<'_>, descriptor: i32, path: &[u8], index: usize) -> SyscallResult {
    let size = call.int(index + 1);
    if size <= 0 {
        return Err(Errno::EINVAL.into());
    }
    let place = find(call, descriptor, path, linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH)?;
    if place.entry.node.kind() != FileType::Symlink {
        // A file that isn't a link gives EINVAL; an empty path to one ENOENT.
        return Err(if path.is_empty() { Errno::ENOENT } else { Errno::EINVAL }.into());
    }
    let target = place.entry.node.read_link(call.thread)?;
    let length = target.len().min(size as usize);
    put(call, call.word(index), &target[..length])?;
    Ok(length.into())
}

/// statfs(2).
pub fn statfs(call: &mut Call<'_>) -> SyscallResult {
    let path = get_path(call, 0)?;
    let place = find(call, linux::AT_FDCWD, &path, 0)?;
    put_statfs(call, &place.mount, &place.entry.node.statistics())
}

/// fstatfs(2).
pub fn fstatfs(call: &mut Call<'_>) -> SyscallResult {
    let open = call.thread.descriptors().get(call.int(0))?;
    let place: &Path = match &open.place {
        Some(place) => place,
        None => return put_kernel_statfs(call, &open),
    };
    put_statfs(call, &place.mount, &place.entry.node.statistics())
}

/// Describes the file systems of objects without a place, which have a number and nothing to count.
fn put_kernel_statfs(call: &Call<'_>, open: &OpenFile) -> SyscallResult {
    const ANONYMOUS_MAGIC: u32 = 0x0904_1934;
    const SOCKET_MAGIC: u32 = 0x534f_434b;
    const PIPE_MAGIC: u32 = 0x5049_5045;
    const MEMORY_MAGIC: u32 = 0x0102_1994;
    /// `ST_VALID`.
    const VALID: u32 = 0x20;
    let magic = match open.metadata().kind {
        FileType::Socket => SOCKET_MAGIC,
        FileType::Fifo => PIPE_MAGIC,
        _ if open.file.is_seekable() => MEMORY_MAGIC,
        _ => ANONYMOUS_MAGIC,
    };
    let bytes = encode!(linux::statfs {
        f_type: magic,
        f_bsize: BLOCK_BYTES,
        f_namelen: crate::fs::inode::NAME_LIMIT,
        f_frsize: BLOCK_BYTES,
        f_flags: VALID,
    });
    put(call, call.word(1), &bytes)?;
    Ok(0.into())
}

fn put_statfs(call: &Call<'_>, mount: &Mount, statistics: &Statistics) -> SyscallResult {
    let mut bytes = encode!(linux::statfs {
        f_type: statistics.magic,
        f_bsize: BLOCK_BYTES,
        f_blocks: statistics.blocks,
        f_bfree: statistics.free,
        f_bavail: statistics.free,
        f_files: statistics.nodes,
        f_ffree: statistics.free_nodes,
        f_namelen: crate::fs::inode::NAME_LIMIT,
        f_frsize: BLOCK_BYTES,
        f_flags: status_flags(mount),
    });
    let id = core::mem::offset_of!(linux::statfs, f_fsid);
    bytes[id..id + 8].copy_from_slice(&statistics.device.to_ne_bytes());
    put(call, call.word(1), &bytes)?;
    Ok(0.into())
}
