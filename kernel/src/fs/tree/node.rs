//! A node of the tree: its metadata, and how it opens.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering};
use heddle_erofs as image;
use heddle_kernel_core::lease::Openers;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::acl::AclKind;
use crate::fs::flags::KeptFlags;
use crate::fs::inode::{
    BLOCK_UNIT, Contents, Creation, Inode, InodeChange, LinkTarget, Listed, Metadata, Opening, Rename,
    Statistics, Timestamp,
};
use crate::fs::lease::FileLeases;
use crate::fs::lock::FileLocks;
use crate::fs::notify::Marks;
use crate::fs::pipe::Pipe;
use crate::fs::range_lock::Ranges;
use crate::fs::tree::content::{Content, Lower};
use crate::fs::tree::directory::Children;
use crate::fs::tree::page::PAGE;
use crate::fs::tree::seals::Seals;
use crate::fs::tree::{Tree, deferred_contents};
use crate::fs::xattr::Extended;
use crate::fs::{Dentry, File, FileType, Mount, Path, StatusFlags, devices};
use crate::memory::fallible;
use crate::process::{Credentials, Thread};
use crate::sync::SpinLock;

/// A node.
pub struct TreeNode {
    pub(super) tree: Arc<Tree>,
    pub(super) inode: u64,
    pub(super) kind: FileType,
    /// The node of the image that this one began as.
    pub(super) lower: Option<image::Inode>,
    pub(super) attributes: SpinLock<Attributes>,
    pub(super) body: Body,
    /// Open descriptions that may write; below zero, how many programs run from it.
    pub(super) writers: AtomicI32,
    /// Open descriptions of a regular file that may only read.
    pub(super) readers: AtomicU32,
    /// The leases, once there was one.
    pub(super) leases: spin::Once<Arc<FileLeases>>,
    pub(super) locks: FileLocks,
    pub(super) ranges: Ranges,
    pub(super) extended: Extended,
    pub(super) marks: Marks,
    /// `F_SEAL_` bits, fcntl(2); what isn't a `memfd` is sealed against sealing.
    pub(super) seals: Seals,
    /// Whether it has been mapped, and how.
    pub(super) mapped: AtomicU8,
    /// `F_SET_RW_HINT`.
    pub(super) write_hint: AtomicU8,
    pub(super) flags: KeptFlags,
    /// Where it was opened last, for the paths in `/proc/PID/maps`.
    pub(super) opened_at: SpinLock<Option<(Weak<Mount>, Weak<Dentry>)>>,
}

/// Metadata that can change.
pub(super) struct Attributes {
    pub permissions: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub born: Timestamp,
    /// Whether they differ from the image's.
    pub dirty: bool,
    /// It has no name yet but may get one: `O_TMPFILE`.
    pub linkable: bool,
    /// A handle was made of it.
    pub exported: bool,
}

/// The contents of a node, by its kind.
pub(super) enum Body {
    Regular(SpinLock<Content>),
    Directory(SpinLock<Children>),
    Symlink(Box<[u8]>),
    /// A symbolic link whose target is in the image.
    LowerSymlink,
    Device(u64),
    /// The pipe, while somebody has the node open.
    Fifo(SpinLock<Weak<Pipe>>),
    /// The socket that is bound to the node.
    Socket(SpinLock<Option<Weak<dyn File>>>),
}

impl Body {
    pub const fn regular() -> Self {
        Self::Regular(SpinLock::new(Content::new()))
    }

    pub fn directory() -> Self {
        Self::Directory(SpinLock::new(Children::new()))
    }

    pub const fn fifo() -> Self {
        Self::Fifo(SpinLock::new(Weak::new()))
    }

    pub const fn socket() -> Self {
        Self::Socket(SpinLock::new(None))
    }
}

impl Attributes {
    pub fn new(permissions: u32, links: u32, uid: u32, gid: u32) -> Self {
        let now = Timestamp::now();
        Self {
            permissions,
            links,
            uid,
            gid,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            dirty: true,
            linkable: false,
            exported: false,
        }
    }

    /// Notes a change of the contents.
    pub fn touch(&mut self) {
        self.modified = Timestamp::now();
        self.changed = self.modified;
        self.dirty = true;
    }

    /// Notes a change of metadata.
    pub fn touch_metadata(&mut self) {
        self.changed = Timestamp::now();
        self.dirty = true;
    }
}

impl TreeNode {
    /// A node that shows one of the image.
    pub(super) fn from_image(tree: &Arc<Tree>, inode: image::Inode) -> Result<Arc<Self>, Errno> {
        let (kind, body) = match inode.file_type {
            image::FileType::Regular => {
                (FileType::Regular, Body::Regular(SpinLock::new(Content::from_image(&inode))))
            }
            image::FileType::Directory => (FileType::Directory, Body::directory()),
            image::FileType::Symlink => (FileType::Symlink, Body::LowerSymlink),
            image::FileType::CharacterDevice => (FileType::Character, Body::Device(device(inode.device))),
            image::FileType::BlockDevice => (FileType::Block, Body::Device(device(inode.device))),
            image::FileType::Fifo => (FileType::Fifo, Body::fifo()),
            image::FileType::Socket => (FileType::Socket, Body::socket()),
        };
        let time = Timestamp {
            seconds: i64::try_from(inode.mtime.seconds).unwrap_or(i64::MAX),
            nanoseconds: inode.mtime.nanoseconds,
        };
        let attributes = Attributes {
            permissions: u32::from(inode.mode) & 0o7777,
            links: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            accessed: time,
            modified: time,
            changed: time,
            born: time,
            dirty: false,
            linkable: false,
            exported: false,
        };
        fallible::try_arc(Self {
            tree: tree.clone(),
            inode: inode.nid,
            kind,
            lower: Some(inode),
            attributes: SpinLock::new(attributes),
            body,
            writers: AtomicI32::new(0),
            readers: AtomicU32::new(0),
            leases: spin::Once::new(),
            locks: FileLocks::new(),
            ranges: Ranges::new(),
            extended: Extended::new(),
            marks: Marks::new(),
            seals: Seals::new(linux::F_SEAL_SEAL),
            mapped: AtomicU8::new(0),
            write_hint: AtomicU8::new(0),
            flags: KeptFlags::new(),
            opened_at: SpinLock::new(None),
        })
    }

    /// The image and the node in it that this one began as.
    pub(super) fn lower(&self) -> Lower<'_> {
        Some((self.tree.image.as_ref()?, self.lower.as_ref()?))
    }

    /// Counts an open description that may write.
    ///
    /// # Errors
    /// `ETXTBSY`: a program runs from the file.
    pub fn begin_writing(&self) -> Result<(), Errno> {
        let more = |count| if count >= 0 { Some(count + 1) } else { None };
        self.writers.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).map_err(|_| Errno::ETXTBSY)?;
        Ok(())
    }

    /// Lets the file be sealed, or not, as it was made.
    pub fn allow_seals(&self, allowed: bool) {
        self.seals.allow(allowed);
    }

    /// Counts a program that runs from the file.
    pub(super) fn begin_executing(&self) -> Result<(), Errno> {
        let less = |count| if count <= 0 { Some(count - 1) } else { None };
        self.writers.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less).map_err(|_| Errno::ETXTBSY)?;
        Ok(())
    }

    /// A file without a name in the tree of this directory, `O_TMPFILE`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` (the directory is of another file system), `ENOMEM`.
    pub fn temporary_in(
        directory: &Arc<dyn Inode>,
        permissions: u32,
        credentials: &Credentials,
    ) -> Result<Arc<Self>, Errno> {
        let directory = crate::fs::tree::directory::tree_node(directory).map_err(|_| Errno::EOPNOTSUPP)?;
        let node = directory.tree.unnamed(&Contents::Regular, permissions, credentials)?;
        node.attributes.lock().linkable = true;
        node.flags.inherit(&directory.flags);
        directory.lend_acl(&node)?;
        Ok(node)
    }

    /// Gives a new node of this directory the list that the directory has for such.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn lend_acl(&self, node: &Self) -> Result<(), Errno> {
        let acls = &self.extended.acls;
        if !acls.has(AclKind::Default) || node.kind == FileType::Symlink {
            return Ok(());
        }
        let Some(mut list) = acls.copy(AclKind::Default)? else { return Ok(()) };
        if node.kind == FileType::Directory {
            node.extended.acls.set(AclKind::Default, acls.copy(AclKind::Default)?)?;
        }
        let mut attributes = node.attributes.lock();
        attributes.permissions = list.create(attributes.permissions);
        drop(attributes);
        let list = Some(list).filter(|list| list.equivalent_mode().is_none());
        node.extended.acls.set(AclKind::Access, list)
    }

    /// Where the file was opened last, if that still exists.
    pub(super) fn last_place(&self) -> Option<Path> {
        let opened = self.opened_at.lock();
        let (mount, entry) = opened.as_ref()?;
        Some(Path { mount: mount.upgrade()?, entry: entry.upgrade()? })
    }

    /// The pipe of this node, made if nobody has it open.
    ///
    /// # Errors
    /// `ENXIO` (not a FIFO), `ENOMEM`.
    pub fn pipe(self: &Arc<Self>) -> Result<Arc<Pipe>, Errno> {
        let Body::Fifo(pipe) = &self.body else { return Err(Errno::ENXIO) };
        let mut current = pipe.lock();
        if let Some(pipe) = current.upgrade() {
            return Ok(pipe);
        }
        let pipe = Pipe::new(self.attributes.lock().links > 0)?;
        *current = Arc::downgrade(&pipe);
        Ok(pipe)
    }

    /// Whether nothing here differs from the image.
    pub(super) fn is_clean(&self) -> bool {
        let Some(lower) = &self.lower else { return false };
        let attributes = self.attributes.lock();
        if attributes.dirty || attributes.exported {
            return false;
        }
        drop(attributes);
        match &self.body {
            Body::Regular(content) => content.lock().is_clean(&self.tree, lower),
            // Asked with the parent's children locked.
            Body::Directory(children) => children.lock_below(1).is_empty(),
            Body::Fifo(pipe) => pipe.lock().strong_count() == 0,
            Body::Socket(socket) => socket.lock().is_none(),
            Body::Symlink(_) | Body::LowerSymlink | Body::Device(_) => true,
        }
    }
}

impl Inode for TreeNode {
    fn kind(&self) -> FileType {
        self.kind
    }

    fn metadata(&self) -> Metadata {
        let (size, blocks) = match &self.body {
            Body::Regular(content) => {
                let content = content.lock();
                (content.size(), content.pages() * (PAGE / BLOCK_UNIT))
            }
            Body::Directory(_) => (PAGE, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::LowerSymlink => (self.lower.as_ref().map_or(0, |inode| inode.size), 0),
            _ => (0, 0),
        };
        let attributes = self.attributes.lock();
        Metadata {
            device: self.tree.device,
            inode: self.inode,
            kind: self.kind,
            permissions: attributes.permissions,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            special: if let Body::Device(number) = self.body { number } else { 0 },
            size,
            blocks,
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            born: attributes.born,
        }
    }

    fn statistics(&self) -> Statistics {
        self.tree.statistics()
    }

    fn lookup(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        self.find(this, name)
    }

    fn list(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
        self.list_names(cookie, visit)
    }

    fn create(&self, this: &Arc<Dentry>, name: &[u8], creation: &Creation<'_>) -> Result<Arc<Dentry>, Errno> {
        self.create_name(this, name, creation)
    }

    fn link(&self, this: &Arc<Dentry>, name: &[u8], node: &Arc<dyn Inode>) -> Result<(), Errno> {
        self.link_name(this, name, node)
    }

    fn unlink(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        self.unlink_name(entry)
    }

    fn rename(&self, entry: &Arc<Dentry>, to: &Arc<Dentry>, name: &[u8], how: Rename) -> Result<(), Errno> {
        self.rename_name(entry, to, name, how, None)
    }

    fn rename_for_whiteout(
        &self,
        entry: &Arc<Dentry>,
        to: &Arc<Dentry>,
        name: &[u8],
        how: Rename,
        creation: &Creation<'_>,
    ) -> Result<(), Errno> {
        self.rename_name(entry, to, name, how, Some(creation))
    }

    fn follow(&self, _: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
        let target = match &self.body {
            Body::Symlink(target) => &**target,
            Body::LowerSymlink => {
                let (image, inode) = self.lower().ok_or(Errno::EIO)?;
                image.symlink(inode).map_err(|_| Errno::EIO)?
            }
            _ => return Err(Errno::EINVAL),
        };
        Ok(LinkTarget::Text(crate::fs::dentry::copy_name(target)?.into_vec()))
    }

    fn change(&self, change: &InodeChange) -> Result<(), Errno> {
        let mut attributes = self.attributes.lock();
        attributes.touch_metadata();
        let attributes = &mut *attributes;
        attributes.permissions = change.permissions.unwrap_or(attributes.permissions) & 0o7777;
        if change.permissions.is_some() {
            self.extended.acls.set_mode(attributes.permissions);
        }
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.accessed = change.accessed.unwrap_or(attributes.accessed);
        attributes.modified = change.modified.unwrap_or(attributes.modified);
        Ok(())
    }

    fn extended(&self) -> Option<&Extended> {
        Some(&self.extended)
    }

    fn locks(&self, _: bool) -> Result<Option<&FileLocks>, Errno> {
        Ok(Some(&self.locks))
    }

    fn leases(&self, make: bool) -> Result<Option<&FileLeases>, Errno> {
        if make {
            return self.leases.try_call_once(FileLeases::new).map(|leases| Some(&**leases));
        }
        Ok(self.leases.get().map(|leases| &**leases))
    }

    fn openers(&self) -> Openers {
        let (writers, readers) = (&self.writers, &self.readers);
        Openers { writers: writers.load(Ordering::SeqCst), readers: readers.load(Ordering::SeqCst) }
    }

    fn write_hint(&self) -> Option<&AtomicU8> {
        Some(&self.write_hint)
    }

    fn file_flags(&self) -> Option<&KeptFlags> {
        matches!(self.kind, FileType::Regular | FileType::Directory).then_some(&self.flags)
    }

    fn marks(&self) -> Option<&Marks> {
        Some(&self.marks)
    }

    fn bind_socket(&self, bound: Weak<dyn File>) -> Result<(), Errno> {
        let Body::Socket(socket) = &self.body else { return Err(Errno::EOPNOTSUPP) };
        *socket.lock() = Some(bound);
        Ok(())
    }

    fn bound_socket(&self) -> Option<Arc<dyn File>> {
        match &self.body {
            Body::Socket(socket) => socket.lock().as_ref().and_then(Weak::upgrade),
            _ => None,
        }
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        if self.kind == FileType::Regular {
            let at = (Arc::downgrade(&opening.place.mount), Arc::downgrade(&opening.place.entry));
            let before = self.opened_at.lock().replace(at);
            drop(before);
        }
        match &self.body {
            Body::Regular(_) if opening.flags.contains(StatusFlags::EXECUTE) => {
                self.begin_executing()?;
                self.readers.fetch_add(1, Ordering::SeqCst);
                Ok(self)
            }
            Body::Regular(_) if opening.flags.intersects(StatusFlags::WRONLY | StatusFlags::RDWR) => {
                self.begin_writing()?;
                Ok(self)
            }
            Body::Regular(_) => {
                self.readers.fetch_add(1, Ordering::SeqCst);
                Ok(self)
            }
            Body::Directory(_) => Ok(self),
            Body::Symlink(_) | Body::LowerSymlink => Err(Errno::ELOOP),
            Body::Device(number) => devices::open(self.kind, *number, opening),
            Body::Fifo(_) => self.pipe()?.open_end(opening.flags),
            Body::Socket(_) => Err(Errno::ENXIO),
        }
    }
}

impl Drop for TreeNode {
    fn drop(&mut self) {
        if self.attributes.get_mut().exported {
            self.tree.handles.forget(self.inode);
        }
        if let Body::Regular(content) = &mut self.body {
            let content = core::mem::replace(content.get_mut(), Content::new());
            self.tree.give_pages(content.own_pages());
            deferred_contents::free(content);
        }
    }
}

/// A device number of the image in the encoding of `stat`; the two agree for all that fits 32 bits.
const fn device(number: u32) -> u64 {
    number as u64
}

/// The bits of a mode by which a program runs as its owner or group.
pub(super) const SET_ID: u32 = linux::S_ISUID | linux::S_ISGID;
