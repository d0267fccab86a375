//! Protection of users from names that others put into directories where everybody may write: the files
//! `fs.protected_hardlinks`, `fs.protected_symlinks`, `fs.protected_fifos` and `fs.protected_regular` of proc(5).
//!
//! Links are protected from the start, as every distribution sets it; Linux's kernel alone does not.

use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::inode::{FileType, Inode, Metadata};
use crate::fs::{Path, access};
use crate::process::Credentials;

/// Whether nobody gives another name to a file that they could not write.
pub static HARD_LINKS: AtomicU32 = AtomicU32::new(1);
/// Whether another's symbolic link is not followed in such a directory.
pub static SYMBOLIC_LINKS: AtomicU32 = AtomicU32::new(1);
/// Whether `O_CREAT` does not open another's FIFO in such a directory; with 2, also where only the group may write.
pub static FIFOS: AtomicU32 = AtomicU32::new(0);
/// The same for regular files.
pub static REGULAR: AtomicU32 = AtomicU32::new(0);

/// Whether a directory is sticky and everybody may write to it.
const fn is_common(directory: &Metadata) -> bool {
    const COMMON: u32 = linux::S_ISVTX | linux::S_IWOTH;
    directory.permissions & COMMON == COMMON
}

/// Checks whether somebody may give another name to a file.
///
/// # Errors
/// `EPERM`.
pub fn check_link(node: &dyn Inode, who: &Credentials) -> Result<(), Errno> {
    let metadata = node.metadata();
    if HARD_LINKS.load(Ordering::Relaxed) == 0 || access::owns(&metadata, who) {
        return Ok(());
    }
    const BY_GROUP: u32 = linux::S_ISGID | linux::S_IXGRP;
    let permissions = metadata.permissions;
    let runs_as_other = permissions & linux::S_ISUID != 0 || permissions & BY_GROUP == BY_GROUP;
    let is_safe = metadata.kind == FileType::Regular && !runs_as_other;
    if !is_safe || access::check(node, who, access::Access::READ | access::Access::WRITE).is_err() {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Checks whether somebody may follow a symbolic link that is in `directory`.
///
/// # Errors
/// `EACCES`.
pub fn check_follow(directory: &Path, link: &dyn Inode, who: &Credentials) -> Result<(), Errno> {
    if SYMBOLIC_LINKS.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let directory = directory.entry.node.access();
    if !is_common(&directory) {
        return Ok(());
    }
    let owner = link.access().uid;
    if owner == who.fsuid || owner == directory.uid { Ok(()) } else { Err(Errno::EACCES) }
}

/// Checks whether somebody may open with `O_CREAT` a file that is there already.
///
/// # Errors
/// `EACCES`.
pub fn check_reuse(place: &Path, who: &Credentials) -> Result<(), Errno> {
    let node = &*place.entry.node;
    let level = match node.kind() {
        FileType::Fifo => FIFOS.load(Ordering::Relaxed),
        FileType::Regular => REGULAR.load(Ordering::Relaxed),
        _ => 0,
    };
    if level == 0 {
        return Ok(());
    }
    let Some(directory) = place.entry.parent() else { return Ok(()) };
    let (directory, file) = (directory.node.access(), node.access());
    let is_sticky = directory.permissions & linux::S_ISVTX != 0;
    if !is_sticky || file.uid == directory.uid || file.uid == who.fsuid {
        return Ok(());
    }
    let is_shared = is_common(&directory) || level >= 2 && directory.permissions & linux::S_IWGRP != 0;
    if is_shared { Err(Errno::EACCES) } else { Ok(()) }
}
