//! `/proc/PID/{mounts,mountinfo,mountstats}`: the mounts that a process can reach from its root.

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::inode::{device_major, device_minor};
use crate::fs::mount::{self, MOUNTS_MAX};
use crate::fs::{Mount, Path};
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

/// Characters that would end a path in a line about a mount.
const SEPARATORS: &[u8] = b" \t\n\\";
/// The same for a source, which could be taken for a comment.
const SOURCE_SEPARATORS: &[u8] = b" \t\n\\#";
/// Mounts that one part of a file shows.
const MOUNTS_AT_ONCE: usize = 32;

/// Calls `show` for the next mounts, with the process's root.
fn each(
    subject: &Subject,
    from: u64,
    mut show: impl FnMut(&Arc<Mount>, &Path) -> Shown,
) -> Result<Option<u64>, Errno> {
    let thread = subject.thread()?;
    let (root, namespaces) = (thread.directories().root(), thread.namespaces());
    let mounts = {
        let topology = mount::lock();
        namespaces.mounts.set().list(&topology, from)?
    };
    for mount in mounts.iter().take(MOUNTS_AT_ONCE) {
        if mount.top().is_reachable_from(&root) {
            show(mount, &root)?;
        }
    }
    Ok(mounts.get(MOUNTS_AT_ONCE).map(|mount| u64::from(mount.id)))
}

fn source_and_place(mount: &Arc<Mount>, root: &Path, between: &[u8], text: &mut Text) -> Shown {
    text.escaped(&mount.source, SOURCE_SEPARATORS)?;
    text.bytes(between)?;
    text.escaped(&mount.top().path(root)?, SEPARATORS)
}

/// The kind of a file system, with the name that a program has given it.
fn kind(mount: &Mount, text: &mut Text) -> Shown {
    text.line(format_args!("{}", mount.file_system.kind))?;
    match mount.file_system.words() {
        Some(words) if !words.subtype.is_empty() => {
            text.bytes(b".")?;
            text.escaped(&words.subtype, SEPARATORS)
        }
        _ => Ok(()),
    }
}

/// The options that only its kind of file system has.
fn own_options(mount: &Mount, text: &mut Text) -> Shown {
    match mount.file_system.words() {
        Some(words) if !words.options.is_empty() => {
            text.bytes(b",")?;
            text.escaped(&words.options, SEPARATORS)
        }
        _ => Ok(()),
    }
}

fn options(flags: u32, names: &[(u32, &str)], text: &mut Text) -> Shown {
    for &(flag, name) in names {
        if flags & flag != 0 {
            text.line(format_args!(",{name}"))?;
        }
    }
    Ok(())
}

const OF_FILE_SYSTEM: &[(u32, &str)] =
    &[(linux::MS_SYNCHRONOUS, "sync"), (linux::MS_DIRSYNC, "dirsync"), (linux::MS_LAZYTIME, "lazytime")];
const OF_MOUNT: &[(u32, &str)] = &[
    (linux::MS_NOSUID, "nosuid"),
    (linux::MS_NODEV, "nodev"),
    (linux::MS_NOEXEC, "noexec"),
    (linux::MS_NOATIME, "noatime"),
    (linux::MS_NODIRATIME, "nodiratime"),
    (linux::MS_RELATIME, "relatime"),
    (linux::MS_NOSYMFOLLOW, "nosymfollow"),
];

const fn access(flags: u32) -> &'static str {
    if flags & linux::MS_RDONLY != 0 { "ro" } else { "rw" }
}

/// `mounts`.
pub fn table(subject: &Subject, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    each(subject, from, |mount, root| {
        source_and_place(mount, root, b" ", text)?;
        let (own, common) = (mount.flags(), mount.file_system.flags());
        text.bytes(b" ")?;
        kind(mount, text)?;
        text.line(format_args!(" {}", access(own | common)))?;
        options(common, OF_FILE_SYSTEM, text)?;
        options(own, OF_MOUNT, text)?;
        own_options(mount, text)?;
        text.bytes(b" 0 0\n")
    })
}

/// `mountinfo`.
pub fn information(subject: &Subject, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    each(subject, from, |mount, root| {
        let parent = mount.at().map_or(mount.id, |at| at.mount.id);
        let device = mount.root.node.device();
        text.line(format_args!("{} {parent} {}:{} ", mount.id, device_major(device), device_minor(device)))?;
        text.escaped(&mount.root.own_path()?, SEPARATORS)?;
        text.bytes(b" ")?;
        text.escaped(&mount.top().path(root)?, SEPARATORS)?;
        let (own, common) = (mount.flags(), mount.file_system.flags());
        text.line(format_args!(" {}", access(own)))?;
        options(own, OF_MOUNT, text)?;
        if let Some(group) = mount.group_id() {
            text.line(format_args!(" shared:{group}"))?;
        }
        let masters = mount.master_ids(&mount::lock(), root)?;
        if let Some((master, dominating)) = masters {
            text.line(format_args!(" master:{master}"))?;
            if let Some(dominating) = dominating.filter(|&dominating| dominating != master) {
                text.line(format_args!(" propagate_from:{dominating}"))?;
            }
        }
        if mount.is_unbindable() {
            text.bytes(b" unbindable")?;
        }
        text.bytes(b" - ")?;
        kind(mount, text)?;
        text.bytes(b" ")?;
        text.escaped(&mount.source, SOURCE_SEPARATORS)?;
        text.line(format_args!(" {}", access(common)))?;
        options(common, OF_FILE_SYSTEM, text)?;
        own_options(mount, text)?;
        text.bytes(b"\n")
    })
}

/// `mountstats`.
pub fn statistics(subject: &Subject, text: &mut Text, from: u64) -> Result<Option<u64>, Errno> {
    each(subject, from, |mount, root| {
        text.bytes(b"device ")?;
        source_and_place(mount, root, b" mounted on ", text)?;
        text.bytes(b" with fstype ")?;
        kind(mount, text)?;
        text.bytes(b"\n")
    })
}

/// `/proc/sys/fs/mount-max`.
pub fn limit(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{MOUNTS_MAX}\n"))
}
