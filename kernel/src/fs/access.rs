//! Permission checks, path_resolution(7) and capabilities(7).

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::flags::FileFlags;
use crate::fs::inode::{FileType, Inode, Metadata};
use crate::fs::{Dentry, Path, flags};
use crate::process::Credentials;

bitflags::bitflags! {
    /// A use of a file, with the bits of access(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Execute, or search a directory.
        const EXECUTE = linux::X_OK;
        /// Write, or change a directory.
        const WRITE = linux::W_OK;
        /// Read, or list a directory.
        const READ = linux::R_OK;
    }
}

/// Beside the permissions for a check: no capability gives more than they do.
pub const FIXED: u32 = 1 << 31;

/// Checks whether somebody may do all of `access` with a file.
///
/// # Errors
/// `EACCES`, `EPERM` (it is to be written and is immutable).
pub fn check(node: &dyn Inode, credentials: &Credentials, access: Access) -> Result<(), Errno> {
    if access.contains(Access::WRITE) {
        flags::check_without(node, FileFlags::IMMUTABLE)?;
    }
    let metadata = node.access();
    check_bits(&metadata, credentials, access, || {
        let acls = &node.extended()?.acls;
        acls.permits(access.bits(), metadata.uid, metadata.gid, credentials)
    })
}

/// As [`check`], for a file of which there are the attributes; `listed` is the answer of its access control list.
///
/// # Errors
/// `EACCES`.
pub fn check_bits(
    metadata: &Metadata,
    credentials: &Credentials,
    access: Access,
    listed: impl FnOnce() -> Option<bool>,
) -> Result<(), Errno> {
    let permissions = metadata.permissions;
    let class = if credentials.fsuid == metadata.uid {
        permissions >> 6
    } else if permissions & linux::S_IRWXG != 0
        && let Some(permits) = listed()
    {
        if permits { 0o7 } else { 0 }
    } else if credentials.is_in_group(metadata.gid) {
        permissions >> 3
    } else {
        permissions
    };
    if class & 0o7 & access.bits() == access.bits() {
        return Ok(());
    }
    let executable = metadata.kind == FileType::Directory || permissions & 0o111 != 0;
    let is_fixed = permissions & FIXED != 0;
    let overridden = if is_fixed || access.contains(Access::EXECUTE) && !executable {
        false
    } else if credentials.is_capable_over(metadata.uid, metadata.gid, linux::CAP_DAC_OVERRIDE) {
        true
    } else {
        let harmless =
            access == Access::READ || metadata.kind == FileType::Directory && !access.contains(Access::WRITE);
        harmless && credentials.is_capable_over(metadata.uid, metadata.gid, linux::CAP_DAC_READ_SEARCH)
    };
    if overridden { Ok(()) } else { Err(Errno::EACCES) }
}

/// Checks whether somebody may search a directory. A walk asks this for every step.
///
/// # Errors
/// `EACCES`.
pub fn check_search(directory: &Dentry, credentials: &Credentials) -> Result<(), Errno> {
    if credentials.is_capable(linux::CAP_DAC_OVERRIDE) {
        return Ok(());
    }
    check(&*directory.node, credentials, Access::EXECUTE)
}

/// Checks whether somebody may create names in a directory.
///
/// # Errors
/// `EACCES`, `EROFS`, `EPERM` (it is immutable), `ENOENT` (it has been removed).
pub fn check_create(directory: &Path, credentials: &Credentials) -> Result<(), Errno> {
    if directory.mount.is_read_only() {
        return Err(Errno::EROFS);
    }
    if directory.entry.is_removed() {
        return Err(Errno::ENOENT);
    }
    check(&*directory.entry.node, credentials, Access::WRITE | Access::EXECUTE)
}

/// Checks whether somebody may remove or rename `entry`, which is in `directory`.
///
/// # Errors
/// `EACCES`, `EROFS`, `EPERM` (the directory is sticky and neither is theirs, or flags keep the name).
pub fn check_remove(directory: &Path, entry: &Dentry, credentials: &Credentials) -> Result<(), Errno> {
    if directory.mount.is_read_only() {
        return Err(Errno::EROFS);
    }
    let metadata = directory.entry.node.access();
    check(&*directory.entry.node, credentials, Access::WRITE | Access::EXECUTE)?;
    flags::check_without(&*directory.entry.node, FileFlags::APPEND)?;
    flags::check_changeable(&*entry.node)?;
    let sticky = metadata.permissions & linux::S_ISVTX != 0;
    if sticky && metadata.uid != credentials.fsuid && !owns(&entry.node.access(), credentials) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Whether somebody counts as the file's owner.
#[must_use]
pub fn owns(metadata: &Metadata, credentials: &Credentials) -> bool {
    credentials.fsuid == metadata.uid
        || credentials.is_capable_over(metadata.uid, metadata.gid, linux::CAP_FOWNER)
}

/// Checks access to an existing file, read-only mounts included.
///
/// # Errors
/// `EACCES`, `EROFS`, `EPERM` (it is immutable).
pub fn check_place(place: &Path, credentials: &Credentials, access: Access) -> Result<(), Errno> {
    let node: &dyn Inode = &*place.entry.node;
    let stored = matches!(node.kind(), FileType::Regular | FileType::Directory | FileType::Symlink);
    if access.contains(Access::WRITE) && stored && place.mount.is_read_only() {
        return Err(Errno::EROFS);
    }
    if access.contains(Access::EXECUTE)
        && node.kind() == FileType::Regular
        && place.mount.flags() & linux::MS_NOEXEC != 0
    {
        return Err(Errno::EACCES);
    }
    if access.is_empty() { Ok(()) } else { check(node, credentials, access) }
}
