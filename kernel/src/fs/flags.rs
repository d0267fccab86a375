//! The flags of files that ioctl_iflags(2) describes: what may not be changed, or only be appended to.
//!
//! They stand beside permissions and count for everybody, `CAP_DAC_OVERRIDE` or not. Each check is where the permission
//! for the same use is checked, so that a file system only has to keep the flags; the trees do.

use core::sync::atomic::{AtomicU8, Ordering};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::inode::{Inode, InodeChange};
use crate::fs::tree::TreeNode;
use crate::fs::{OpenFile, access, downcast};
use crate::process::Credentials;

bitflags::bitflags! {
    /// Flags of a file, with the bits of `FS_IOC_GETFLAGS`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FileFlags: u8 {
        /// Nothing of it changes: not its bytes, its attributes, its names, nor the names in it.
        const IMMUTABLE = linux::FS_IMMUTABLE_FL as u8;
        /// Bytes, and names of a directory, only come to it.
        const APPEND = linux::FS_APPEND_FL as u8;
        /// Programs that back up leave it out.
        const NODUMP = linux::FS_NODUMP_FL as u8;
        /// Reading leaves its access time as it is.
        const NOATIME = linux::FS_NOATIME_FL as u8;
    }
}

impl FileFlags {
    /// The flags that take `CAP_LINUX_IMMUTABLE` to change, and that keep attributes and names as they are.
    pub const FIXED: Self = Self::IMMUTABLE.union(Self::APPEND);
    /// The flags that a new file has of its directory.
    const INHERITED: Self = Self::NODUMP.union(Self::NOATIME);
    /// The flags and what `FS_IOC_FSGETXATTR` calls them.
    const EXTENDED: [(Self, u32); 4] = [
        (Self::IMMUTABLE, linux::FS_XFLAG_IMMUTABLE),
        (Self::APPEND, linux::FS_XFLAG_APPEND),
        (Self::NODUMP, linux::FS_XFLAG_NODUMP),
        (Self::NOATIME, linux::FS_XFLAG_NOATIME),
    ];

    /// The flags of a node, none where the file system has no such.
    #[must_use]
    pub fn of(node: &dyn Inode) -> Self {
        node.file_flags().map_or(Self::empty(), KeptFlags::get)
    }

    /// The bits of `fsx_xflags`.
    #[must_use]
    pub fn extended(self) -> u32 {
        Self::EXTENDED.iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, bit)| bit).sum()
    }

    /// The flags that bits of `fsx_xflags` name; others are left out.
    #[must_use]
    pub fn from_extended(bits: u32) -> Self {
        let named = Self::EXTENDED.iter().filter(|(_, bit)| bits & bit != 0);
        named.fold(Self::empty(), |flags, (flag, _)| flags | *flag)
    }

    /// The bits of `stx_attributes`.
    #[must_use]
    pub fn status(self) -> u32 {
        const SAME: FileFlags = FileFlags::FIXED.union(FileFlags::NODUMP);
        const _: () = assert!(
            SAME.bits() as u32
                == linux::STATX_ATTR_IMMUTABLE | linux::STATX_ATTR_APPEND | linux::STATX_ATTR_NODUMP,
            "statx(2) has the bits of FS_IOC_GETFLAGS"
        );
        u32::from((self & SAME).bits())
    }
}

/// The flags of a node of a file system that keeps them.
pub struct KeptFlags(AtomicU8);

impl KeptFlags {
    /// No flags.
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// The flags.
    pub fn get(&self) -> FileFlags {
        FileFlags::from_bits_truncate(self.0.load(Ordering::Relaxed))
    }

    /// Gives a new file the flags that it has of its directory.
    pub fn inherit(&self, directory: &Self) {
        self.0.store((directory.get() & FileFlags::INHERITED).bits(), Ordering::Relaxed);
    }

    /// Replaces the flags; those that fix the file are changed by who may, before which nothing else is checked.
    fn replace(&self, flags: FileFlags, may_fix: bool, checked: Result<(), Errno>) -> Result<(), Errno> {
        loop {
            let old = self.get();
            if !may_fix && (old ^ flags).intersects(FileFlags::FIXED) {
                return Err(Errno::EPERM);
            }
            checked?;
            let (before, after) = (old.bits(), flags.bits());
            if self.0.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Ok(());
            }
        }
    }
}

/// Checks that nothing keeps a file's attributes, or its names, as they are.
///
/// # Errors
/// `EPERM`.
pub fn check_changeable(node: &dyn Inode) -> Result<(), Errno> {
    check_without(node, FileFlags::FIXED)
}

/// Checks that a file has none of these flags.
///
/// # Errors
/// `EPERM`.
pub fn check_without(node: &dyn Inode, flags: FileFlags) -> Result<(), Errno> {
    if FileFlags::of(node).intersects(flags) { Err(Errno::EPERM) } else { Ok(()) }
}

/// Replaces the flags of a file, as its owner, where `checked` says that the file system has those.
///
/// # Errors
/// `EPERM`, `ENOTTY`: the file system keeps none; that of `checked`.
pub fn change(
    node: &dyn Inode,
    flags: FileFlags,
    checked: Result<(), Errno>,
    who: &Credentials,
) -> Result<(), Errno> {
    let kept = node.file_flags().ok_or(Errno::ENOTTY)?;
    if !access::owns(&node.access(), who) {
        return Err(Errno::EPERM);
    }
    kept.replace(flags, who.is_capable(linux::CAP_LINUX_IMMUTABLE), checked)?;
    node.change(&InodeChange::default())
}

/// The node of an open file that may have flags.
#[must_use]
pub fn node_of(open: &OpenFile) -> Option<&dyn Inode> {
    match &open.place {
        Some(place) => Some(&*place.entry.node),
        None => downcast::<TreeNode>(open).map(|node| node as &dyn Inode),
    }
}

/// Checks that an open file has none of these flags.
///
/// # Errors
/// `EPERM`.
pub fn check_open_without(open: &OpenFile, flags: FileFlags) -> Result<(), Errno> {
    node_of(open).map_or(Ok(()), |node| check_without(node, flags))
}
