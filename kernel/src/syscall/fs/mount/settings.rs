//! File systems that programs can mount, and their options.

use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

use crate::cgroupfs;
use crate::error::Errno;
use crate::fs::inode::InodeChange;
use crate::fs::lookup::Walker;
use crate::fs::tree::Tree;
use crate::fs::{Mount, fuse, overlay};
use crate::ipc::mqueue;
use crate::ipc::namespace::IpcNamespace;
use crate::net::namespace::NetNamespace;
use crate::process::pid_namespace;
use crate::process::user_namespace::{IdKind, Users, lower};
use crate::process::{Credentials, Thread};
use crate::procfs::{self, ProcOptions};
use crate::tty;

use heddle_kernel_core::fallible::{extend_reserved, push_reserved};

/// Whether there is a file system of this kind.
pub(super) fn is_known(kind: &[u8]) -> bool {
    const KNOWN: [&[u8]; 8] =
        [b"tmpfs", b"ramfs", b"proc", b"sysfs", b"mqueue", b"devpts", b"cgroup2", b"overlay"];
    KNOWN.contains(&kind) || is_served(kind)
}

/// Whether a program serves file systems of this kind, which may have a name of its own.
fn is_served(kind: &[u8]) -> bool {
    kind == b"fuse" || kind.starts_with(b"fuse.")
}

/// A mount of a new file system, or of the one that there is of its kind for the thread.
///
/// # Errors
/// `ENODEV` (no such kind), `EINVAL` (an option that it does not have), `ENOMEM`, `ENOSPC`.
pub(super) fn make(
    thread: &Thread,
    kind: &[u8],
    source: &[u8],
    options: &[u8],
    flags: u32,
) -> Result<Arc<Mount>, Errno> {
    let source = if source.is_empty() { b"none" } else { source };
    let owner = owner(thread, kind, flags)?;
    let made = match kind {
        b"tmpfs" | b"ramfs" => {
            let who = thread.credentials();
            let settings = Settings::parse(options, &who)?;
            let kind = if kind == b"tmpfs" { "tmpfs" } else { "ramfs" };
            let made = Tree::mount(kind, source, settings.permissions, settings.pages, flags)?;
            let (uid, gid) = (Some(settings.user), Some(settings.group));
            made.root.node.change(&InodeChange { uid, gid, ..InodeChange::default() })?;
            made.file_system.set_owner(&owner);
            return Ok(made);
        }
        b"overlay" => {
            let (who, directories) = (thread.credentials(), thread.directories());
            let (root, start) = (directories.root(), directories.working());
            let walker = Walker { credentials: &who, root, start, thread: None };
            let made = overlay::mount(source, options, flags, &who, |path| walker.find(path))?;
            made.file_system.set_owner(&owner);
            return Ok(made);
        }
        _ if is_served(kind) => {
            let subtype = kind.strip_prefix(b"fuse.");
            if subtype == Some(b"") {
                return Err(Errno::EINVAL);
            }
            let made = fuse::mount(thread, subtype, source, options, flags)?;
            made.file_system.set_owner(&owner);
            return Ok(made);
        }
        b"devpts" => {
            let made = tty::instance::mount(source, options, flags, &thread.credentials())?;
            made.file_system.set_owner(&owner);
            return Ok(made);
        }
        b"proc" => {
            let options = ProcOptions::parse(options, &thread.credentials())?;
            let made = procfs::mount(thread.process.pids.clone())?;
            procfs::change_rules(&made.root.node, &options)?;
            made
        }
        _ if !options.is_empty() => return Err(Errno::EINVAL),
        b"sysfs" => procfs::mount_sys(&*NetNamespace::of(thread)?)?,
        b"cgroup2" => cgroupfs::mount(&thread.namespaces().groups.root, source, flags)?,
        b"mqueue" => mqueue::mount(&*IpcNamespace::of(thread)?, source, flags)?,
        _ => return Err(Errno::ENODEV),
    };
    made.file_system.set_flags(flags);
    made.file_system.set_owner(&owner);
    Mount::of(made.file_system.clone(), made.root.clone(), source, flags)
}

/// The user namespace towards which a mount of this kind counts, in which the thread may do all: what it shows is that
/// namespace's.
///
/// # Errors
/// `EPERM`, also where the thread's mounts may hide a part of what the file system shows; `EINVAL`, `ENOMEM`.
fn owner(thread: &Thread, kind: &[u8], flags: u32) -> Result<Users, Errno> {
    let (who, namespaces) = (thread.credentials(), thread.namespaces());
    // An overlay changes its layers with the rights of the machine: the first namespace's.
    let owner = match kind {
        b"tmpfs" | b"ramfs" | b"devpts" => who.users.clone(),
        b"mqueue" => namespaces.ipc.owner().clone(),
        b"proc" => pid_namespace::owner(&thread.process.pids),
        b"sysfs" => namespaces.network.owner().clone(),
        b"cgroup2" => namespaces.groups.owner().clone(),
        _ => None,
    };
    if !who.is_capable_in(&owner, linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let kind = match kind {
        b"proc" => "proc",
        b"sysfs" => "sysfs",
        _ => return Ok(owner),
    };
    let mounts = &namespaces.mounts;
    if mounts.owner().is_some() && !mounts.shows_whole(kind, flags)? {
        return Err(Errno::EPERM);
    }
    Ok(owner)
}

/// Options for a file system that is mounted already. Those of `/proc` take effect; others are checked, and none that
/// says something new is taken.
///
/// # Errors
/// `EINVAL`.
pub(super) fn change(mount: &Mount, options: &[u8], who: &Credentials) -> Result<(), Errno> {
    if options.is_empty() {
        return Ok(());
    }
    let kind = mount.file_system.kind;
    if kind == "proc" {
        return procfs::change_rules(&mount.root.node, &ProcOptions::parse(options, who)?);
    }
    if !matches!(kind, "tmpfs" | "ramfs") {
        return Err(Errno::EINVAL);
    }
    let settings = Settings::parse(options, &Credentials::ROOT)?;
    if settings.pages == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whether options that are given one by one are known, where that can be told before all are there.
///
/// # Errors
/// `EINVAL`.
pub(super) fn check(kind: &[u8], options: &[u8]) -> Result<(), Errno> {
    match kind {
        b"tmpfs" | b"ramfs" => Settings::parse(options, &Credentials::ROOT).map(drop),
        b"sysfs" | b"mqueue" | b"cgroup2" => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// `NAME` or `NAME=VALUE` behind what a list of options has.
pub(super) fn append(options: &mut Vec<u8>, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
    let length = options.len() + name.len() + value.map_or(0, <[u8]>::len) + 2;
    if length > super::OPTIONS_LIMIT {
        return Err(Errno::EINVAL);
    }
    options.try_reserve(length).map_err(|_| Errno::ENOMEM)?;
    if !options.is_empty() {
        push_reserved(options, b',');
    }
    extend_reserved(options, name);
    if let Some(value) = value {
        push_reserved(options, b'=');
        extend_reserved(options, value);
    }
    Ok(())
}

/// The options of tmpfs(5) that have an effect here.
struct Settings {
    permissions: u32,
    /// 0 for no limit.
    pages: u64,
    /// The owner of its root.
    user: u32,
    group: u32,
}

impl Settings {
    fn parse(options: &[u8], who: &Credentials) -> Result<Self, Errno> {
        let mut settings = Self { permissions: 0o1777, pages: 0, user: who.fsuid, group: who.fsgid };
        let options = core::str::from_utf8(options).map_err(|_| Errno::EINVAL)?;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let id = |kind| {
                let number = value.parse().ok().and_then(|number| lower(&who.users, kind, number));
                number.ok_or(Errno::EINVAL)
            };
            match name {
                "mode" => {
                    settings.permissions = u32::from_str_radix(value, 8).map_err(|_| Errno::EINVAL)? & 0o7777
                }
                "size" => settings.pages = parse_size(value).ok_or(Errno::EINVAL)?.div_ceil(4096),
                "nr_blocks" => settings.pages = parse_size(value).ok_or(Errno::EINVAL)?,
                "uid" => settings.user = id(IdKind::User)?,
                "gid" => settings.group = id(IdKind::Group)?,
                "nr_inodes" | "huge" | "inode32" | "inode64" => {}
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
