//! Inodes: the objects of a file system, behind one trait.
//!
//! The main one is [`tree`](crate::fs::tree), which holds everything that programs create and the image beneath it;
//! nodes of `procfs` and `cgroupfs` are computed, and those of [`overlay`](crate::fs::overlay) lie over others.
//! Devices, pipes and sockets are nodes of a tree that open to other objects.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::AtomicU8;
use heddle_kernel_core::lease::Openers;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::acl::AclKind;
use crate::fs::flags::KeptFlags;
use crate::fs::lease::FileLeases;
use crate::fs::lock::FileLocks;
use crate::fs::notify::Marks;
use crate::fs::xattr::{Extended, ServedAttributes};
use crate::fs::{Dentry, File, Path, StatusFlags};
use crate::process::{Credentials, Thread};

/// The longest name in bytes.
pub const NAME_LIMIT: usize = 255;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of inode(7)")]
pub enum FileType {
    Regular,
    Directory,
    Symlink,
    Character,
    Block,
    Fifo,
    Socket,
}

impl Contents<'_> {
    /// Whether it is what stands for a removed name in an overlay; anybody may make one.
    #[must_use]
    pub const fn is_whiteout(&self) -> bool {
        matches!(self, Self::Device(FileType::Character, 0))
    }

    /// The kind of such a file.
    #[must_use]
    pub const fn kind(&self) -> FileType {
        match self {
            Self::Regular => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::Symlink(_) => FileType::Symlink,
            Self::Device(kind, _) => *kind,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

impl FileType {
    /// The type bits of a mode.
    #[must_use]
    pub const fn mode(self) -> u32 {
        match self {
            Self::Regular => linux::S_IFREG,
            Self::Directory => linux::S_IFDIR,
            Self::Symlink => linux::S_IFLNK,
            Self::Character => linux::S_IFCHR,
            Self::Block => linux::S_IFBLK,
            Self::Fifo => linux::S_IFIFO,
            Self::Socket => linux::S_IFSOCK,
        }
    }

    /// The type that the type bits of `mode` name.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & linux::S_IFMT {
            linux::S_IFREG => Self::Regular,
            linux::S_IFDIR => Self::Directory,
            linux::S_IFLNK => Self::Symlink,
            linux::S_IFCHR => Self::Character,
            linux::S_IFBLK => Self::Block,
            linux::S_IFIFO => Self::Fifo,
            linux::S_IFSOCK => Self::Socket,
            _ => return None,
        })
    }

    /// The type as getdents64(2) reports it.
    #[must_use]
    pub const fn directory_type(self) -> u8 {
        (self.mode() >> 12) as u8
    }
}

/// A moment in real time, since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamp {
    /// Whole seconds.
    pub seconds: i64,
    /// The rest, below a milliard.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        let now = crate::time::Clock::Realtime.now_ns();
        Self { seconds: (now / 1_000_000_000) as i64, nanoseconds: (now % 1_000_000_000) as u32 }
    }
}

/// The attributes that `stat` reports.
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    /// Number of the file system, in Linux's 64-bit encoding of device numbers.
    pub device: u64,
    /// Number of the node in it.
    pub inode: u64,
    /// The type of the file.
    pub kind: FileType,
    /// Permission bits, with set-id and sticky bits.
    pub permissions: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device's number if it is one, encoded as `device`.
    pub special: u64,
    /// Length in bytes.
    pub size: u64,
    /// Memory taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of contents or metadata.
    pub changed: Timestamp,
    /// Creation.
    pub born: Timestamp,
}

impl Metadata {
    /// The attributes of an object that has no place in any file system.
    #[must_use]
    pub fn anonymous(kind: FileType, inode: u64) -> Self {
        let zero = Timestamp::default();
        Self {
            device: ANONYMOUS_DEVICE,
            inode,
            kind,
            permissions: 0o600,
            links: 1,
            uid: 0,
            gid: 0,
            special: 0,
            size: 0,
            blocks: 0,
            accessed: zero,
            modified: zero,
            changed: zero,
            born: zero,
        }
    }

    /// Type and permissions as one number.
    #[must_use]
    pub const fn mode(&self) -> u32 {
        self.kind.mode() | self.permissions
    }
}

/// The file system number of objects that are in none.
const ANONYMOUS_DEVICE: u64 = 1;

/// The number of bytes in the units of [`Metadata::blocks`].
pub const BLOCK_UNIT: u64 = 512;

/// A device number in the encoding of `stat` and `mknod`.
#[must_use]
pub const fn device_number(major: u32, minor: u32) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    (major & 0xfff) << 8 | minor & 0xff | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

/// The major part of a device number.
#[must_use]
pub const fn device_major(device: u64) -> u32 {
    (device >> 8 & 0xfff | device >> 32 & !0xfff) as u32
}

/// The minor part of a device number.
#[must_use]
pub const fn device_minor(device: u64) -> u32 {
    (device & 0xff | device >> 12 & 0xffff_ff00) as u32
}

/// The changes that `chmod`, `chown` and `utimensat` ask for; a field that is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct InodeChange {
    /// Permission bits.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time.
    pub accessed: Option<Timestamp>,
    /// Modification time.
    pub modified: Option<Timestamp>,
}

/// A file to be created.
pub struct Creation<'a> {
    /// The type and contents.
    pub contents: Contents<'a>,
    /// Permission bits, with the umask applied where the directory has no default list.
    pub permissions: u32,
    /// Owner and group.
    pub credentials: &'a Credentials,
}

/// The initial contents of a new file.
#[allow(missing_docs, reason = "the names are those of inode(7)")]
pub enum Contents<'a> {
    Regular,
    Directory,
    Symlink(&'a [u8]),
    Device(FileType, u64),
    Fifo,
    Socket,
}

/// One entry of a directory listing.
pub struct Listed<'a> {
    /// The name; empty where the caller is only to go on behind it.
    pub name: &'a [u8],
    /// Number of the node it names.
    pub inode: u64,
    /// The type of the entry.
    pub kind: FileType,
    /// Where the listing goes on after it.
    pub next: u64,
}

/// Where a symbolic link leads.
pub enum LinkTarget {
    /// A path, to be walked from where the link is.
    Text(Vec<u8>),
    /// A place, whatever its path: the links of `/proc` that stand for open files.
    Path(Path),
}

/// The result of `statfs`.
#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    /// Its magic number.
    pub magic: u32,
    /// Size, in blocks of 4096 bytes.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Number of nodes there may be.
    pub nodes: u64,
    /// Nodes that may still be created.
    pub free_nodes: u64,
    /// Its number.
    pub device: u64,
}

/// How a file is to be opened.
pub struct Opening<'a> {
    /// Access mode and status flags.
    pub flags: StatusFlags,
    /// All flags that the call was given, say `O_NOCTTY`.
    pub flags_of_call: u32,
    /// Where.
    pub place: &'a Path,
    /// The opening thread; none when it is the kernel.
    pub thread: Option<&'a Arc<Thread>>,
}

/// A node of a file system. No method waits.
///
/// Methods on names get the directory's own [`Dentry`], because new entries refer to it as their parent. Permissions
/// have been checked by the caller; what depends on the state of the directory (does the name exist, is it empty) is
/// checked here, under the directory's lock.
pub trait Inode: Any + Send + Sync {
    /// Whether the permissions of files that are made in this directory come from its list instead of a umask.
    fn has_default_acl(&self) -> bool {
        self.extended().is_some_and(|extended| extended.acls.has(AclKind::Default))
    }

    /// The type of the file; never changes.
    fn kind(&self) -> FileType;

    /// The attributes that `stat` reports.
    fn metadata(&self) -> Metadata;

    /// The same, where the file system can tell that it does not know them.
    ///
    /// # Errors
    /// `ENOTCONN` and others of a program that serves the file system.
    fn metadata_now(&self) -> Result<Metadata, Errno> {
        Ok(self.metadata())
    }

    /// The same for a permission check, for which only type, permissions, owner and group have to be those of now.
    fn access(&self) -> Metadata {
        self.metadata()
    }

    /// The result of `statfs`.
    fn statistics(&self) -> Statistics;

    /// The number of the file system.
    fn device(&self) -> u64 {
        self.statistics().device
    }

    /// The entry `name` of this directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOMEM`, `EIO`.
    fn lookup(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let _ = (this, name);
        Err(Errno::ENOTDIR)
    }

    /// Whether two looks at one name of this directory find the same entry as long as it is used. If not, mounts on
    /// entries are found by their names ([`crate::fs::Path::mount_point`]).
    fn keeps_entries(&self) -> bool {
        true
    }

    /// Calls `visit` for the entries of this directory after `cookie` (0 for all; `.` and `..` are the caller's
    /// business) until it returns false. An entry that is not to be shown has no name, so that a caller who looks at
    /// so many at a time gets past them too.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOMEM`, `EIO`.
    fn list(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
        let _ = (cookie, visit);
        Err(Errno::ENOTDIR)
    }

    /// Creates a file in this directory.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` (the directory has been removed), `ENOMEM`, `EACCES` (nothing can be created here).
    fn create(&self, this: &Arc<Dentry>, name: &[u8], creation: &Creation<'_>) -> Result<Arc<Dentry>, Errno> {
        let _ = (this, name, creation);
        Err(Errno::EACCES)
    }

    /// Gives a node of the same file system another name, in this directory.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `EMLINK`, `EPERM`, `ENOMEM`.
    fn link(&self, this: &Arc<Dentry>, name: &[u8], node: &Arc<dyn Inode>) -> Result<(), Errno> {
        let _ = (this, name, node);
        Err(Errno::EPERM)
    }

    /// Removes a name from this directory, if it still is `entry`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTEMPTY`, `EPERM`, `ENOMEM`.
    fn unlink(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        let _ = entry;
        Err(Errno::EPERM)
    }

    /// Moves `entry` from this directory to another of the same file system, replacing what is there. With
    /// `exchange`, what is there takes the old place.
    ///
    /// # Errors
    /// Those of rename(2) that depend on the directories' state.
    fn rename(&self, entry: &Arc<Dentry>, to: &Arc<Dentry>, name: &[u8], how: Rename) -> Result<(), Errno> {
        let _ = (entry, to, name, how);
        Err(Errno::EPERM)
    }

    /// As [`Inode::rename`], and leaves a whiteout in the old place, which `creation` describes.
    ///
    /// # Errors
    /// As there; `EINVAL`: the file system has no whiteouts.
    fn rename_for_whiteout(
        &self,
        entry: &Arc<Dentry>,
        to: &Arc<Dentry>,
        name: &[u8],
        how: Rename,
        creation: &Creation<'_>,
    ) -> Result<(), Errno> {
        let _ = (entry, to, name, how, creation);
        Err(Errno::EINVAL)
    }

    /// Where this symbolic link leads, for `thread`.
    ///
    /// # Errors
    /// `EINVAL` (no link), and what finding out may give.
    fn follow(&self, thread: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
        let _ = thread;
        Err(Errno::EINVAL)
    }

    /// The text of a symbolic link, as readlink(2) shows it.
    ///
    /// # Errors
    /// As [`Inode::follow`].
    fn read_link(&self, thread: &Arc<Thread>) -> Result<Vec<u8>, Errno> {
        match self.follow(Some(thread))? {
            LinkTarget::Text(path) => Ok(path),
            LinkTarget::Path(place) => place.path(&thread.directories().root()),
        }
    }

    /// Changes metadata.
    ///
    /// # Errors
    /// `EPERM` where it can't be changed.
    fn change(&self, change: &InodeChange) -> Result<(), Errno> {
        let _ = change;
        Err(Errno::EPERM)
    }

    /// Prepares for a change of [`Inode::extended`]: a file system of layers copies the file first.
    ///
    /// # Errors
    /// `EROFS`, `EINTR`, `ENOSPC`, `ENOMEM`, `EIO`.
    fn prepare_change(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether an extended attribute of this name is the file's, and not a mark of the file system.
    fn shows_attribute(&self, name: &[u8]) -> bool {
        let _ = name;
        true
    }

    /// The extended attributes, if the file system keeps any.
    fn extended(&self) -> Option<&Extended> {
        None
    }

    /// The same, where a program keeps them.
    fn served_attributes(&self) -> Option<&dyn ServedAttributes> {
        None
    }

    /// The advisory locks on the file, if the file system keeps any. Without `make`, nothing if there are none yet.
    ///
    /// # Errors
    /// `ENOLCK` (there can be none), `ENOMEM`.
    fn locks(&self, make: bool) -> Result<Option<&FileLocks>, Errno> {
        if make { Err(Errno::ENOLCK) } else { Ok(None) }
    }

    /// The leases on the file, if the file system keeps any. Without `make`, nothing if there never were any.
    ///
    /// # Errors
    /// `EINVAL` (there can be none), `ENOMEM`.
    fn leases(&self, make: bool) -> Result<Option<&FileLeases>, Errno> {
        if make { Err(Errno::EINVAL) } else { Ok(None) }
    }

    /// How many open descriptions there are of a file that can have leases.
    fn openers(&self) -> Openers {
        Openers::default()
    }

    /// A process has closed a descriptor of the file, which keeps no locks.
    fn closed_by(&self, pid: i32) {
        let _ = pid;
    }

    /// The hint of programs on how long its bytes will stay, `F_SET_RW_HINT` of fcntl(2), if that is kept.
    fn write_hint(&self) -> Option<&AtomicU8> {
        None
    }

    /// The flags of ioctl_iflags(2), if the file system keeps any.
    fn file_flags(&self) -> Option<&KeptFlags> {
        None
    }

    /// The marks of inotify(7), if the file system keeps any.
    fn marks(&self) -> Option<&Marks> {
        None
    }

    /// Binds a socket to this node, which was created for it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` (nothing can be bound here), `ENOMEM`.
    fn bind_socket(&self, socket: Weak<dyn File>) -> Result<(), Errno> {
        let _ = socket;
        Err(Errno::EOPNOTSUPP)
    }

    /// The socket that is bound to this node.
    fn bound_socket(&self) -> Option<Arc<dyn File>> {
        None
    }

    /// For the file of a namespace, which can be mounted though it is in no tree: the number of the mount namespace
    /// that it is, or a higher one than any has.
    fn namespace_order(&self) -> Option<u64> {
        None
    }

    /// Opens the object behind the node.
    ///
    /// # Errors
    /// Whatever the object says; `ENXIO` when there is none.
    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno>;
}

/// How to rename when the new name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// Replace what is there.
    Replace,
    /// Fail with `EEXIST`.
    Keep,
    /// Exchange the two.
    Exchange,
}
