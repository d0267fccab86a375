//! `mount` and `umount2`: further tmpfs, `/proc`, and the same tree in another place.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryResult};
use crate::fs::lookup::PATH_LIMIT;
use crate::fs::tree::Tree;
use crate::fs::{FileType, Mount, Path};
use crate::ipc::mqueue;
use crate::procfs;
use crate::syscall::fs::{find, get_string};
use crate::syscall::{Call, SyscallResult};

/// The flags that a mount keeps.
const KEPT: u32 = linux::MS_RDONLY | linux::MS_NOSUID | linux::MS_NODEV | linux::MS_NOEXEC;
/// Flags of umount2(2) that `linux-raw-sys` leaves out.
const DETACH: u32 = 2;
const NO_FOLLOW: u32 = 8;
const UNMOUNT_KNOWN: u32 = 0xf;
/// The longest options.
const OPTIONS_LIMIT: usize = 4096;

fn check_permission(call: &Call<'_>) -> Result<(), Errno> {
    if call.thread.credentials().is_capable(linux::CAP_SYS_ADMIN) { Ok(()) } else { Err(Errno::EPERM) }
}

/// mount(2).
pub fn mount(call: &mut Call<'_>) -> SyscallResult {
    let text = |index: usize, limit| -> TryResult<alloc::vec::Vec<u8>> {
        match call.word(index) {
            0 => Ok(alloc::vec::Vec::new()),
            address => get_string(call, address, limit, Errno::EINVAL),
        }
    };
    let (source, target) = (text(0, PATH_LIMIT)?, text(1, PATH_LIMIT)?);
    let (kind, options) = (text(2, PATH_LIMIT)?, text(4, OPTIONS_LIMIT)?);
    let flags = call.word(3) as u32;
    check_permission(call)?;
    let at = find(call, linux::AT_FDCWD, &target, 0)?;
    if flags & linux::MS_REMOUNT != 0 {
        if !Arc::ptr_eq(&at.entry, &at.mount.root) {
            return Err(Errno::EINVAL.into());
        }
        at.mount.set_flags(flags & KEPT);
        return Ok(0.into());
    }
    // How mounts reach other name spaces, of which there are none.
    if flags & (linux::MS_PRIVATE | linux::MS_SHARED | linux::MS_SLAVE | linux::MS_UNBINDABLE) != 0 {
        return Ok(0.into());
    }
    if flags & linux::MS_MOVE != 0 {
        return Err(Errno::EINVAL.into());
    }
    let mount = if flags & linux::MS_BIND != 0 {
        bind(find(call, linux::AT_FDCWD, &source, 0)?, &at)?
    } else {
        if at.entry.node.kind() != FileType::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        match &kind[..] {
            b"tmpfs" | b"ramfs" => {
                let settings = Settings::parse(&options)?;
                Tree::mount("tmpfs", &source, settings.permissions, settings.pages, flags & KEPT)?
            }
            b"proc" => procfs::mount()?,
            b"mqueue" => mqueue::mount(&source, flags & KEPT)?,
            _ => return Err(Errno::ENODEV.into()),
        }
    };
    mount.attach(at)?;
    Ok(0.into())
}

/// Mounts the tree at one place a second time at another.
fn bind(source: Path, at: &Path) -> Result<Arc<Mount>, Errno> {
    let directory = |place: &Path| place.entry.node.kind() == FileType::Directory;
    if directory(&source) != directory(at) {
        return Err(Errno::ENOTDIR);
    }
    Mount::new(source.entry, source.mount.kind, &source.mount.source, source.mount.flags())
}

/// The options of tmpfs(5) that have an effect here.
struct Settings {
    permissions: u32,
    /// 0 for no limit.
    pages: u64,
}

impl Settings {
    fn parse(options: &[u8]) -> Result<Self, Errno> {
        let mut settings = Self { permissions: 0o1777, pages: 0 };
        let options = core::str::from_utf8(options).map_err(|_| Errno::EINVAL)?;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "mode" => {
                    settings.permissions = u32::from_str_radix(value, 8).map_err(|_| Errno::EINVAL)? & 0o7777
                }
                "size" => settings.pages = parse_size(value).ok_or(Errno::EINVAL)?.div_ceil(4096),
                "nr_blocks" => settings.pages = parse_size(value).ok_or(Errno::EINVAL)?,
                "uid" | "gid" | "nr_inodes" | "huge" | "inode32" | "inode64" => {}
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(settings)
    }
}

/// A number with a unit, or a part of memory in percent, in bytes.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let number: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "" => Some(number),
        "k" | "K" => number.checked_mul(1 << 10),
        "m" | "M" => number.checked_mul(1 << 20),
        "g" | "G" => number.checked_mul(1 << 30),
        "%" => Some(crate::memory::frame::total_frames() as u64 * 4096 / 100)
            .and_then(|one| one.checked_mul(number)),
        _ => None,
    }
}

/// umount2(2).
pub fn umount2(call: &mut Call<'_>) -> SyscallResult {
    let path = crate::syscall::fs::get_path(call, 0)?;
    let flags = call.uint(1);
    if flags & !UNMOUNT_KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    check_permission(call)?;
    let follow = if flags & NO_FOLLOW != 0 { linux::AT_SYMLINK_NOFOLLOW } else { 0 };
    let place = find(call, linux::AT_FDCWD, &path, follow)?;
    if !Arc::ptr_eq(&place.entry, &place.mount.root) {
        return Err(Errno::EINVAL.into());
    }
    let mount = place.mount;
    drop(place.entry);
    mount.detach(flags & DETACH != 0)?;
    Ok(0.into())
}
