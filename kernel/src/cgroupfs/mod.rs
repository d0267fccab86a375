//! The file system of control groups, `cgroup2`: a directory for each group, with files that show what it counts and
//! take its settings. All mounts show one hierarchy, each from the root of its mounter's cgroup namespace on.
//!
//! A group keeps its nodes until it is removed, since they have owners, permissions and marks of inotify(7). An entry
//! belongs to its node and lives as long as somebody uses it.

mod cpu;
mod file;
mod memory;
mod table;

use alloc::sync::{Arc, Weak};
use core::any::Any;
use linux_raw_sys::general as linux;

use crate::cgroupfs::table::{FILES, GroupFile};
use crate::error::Errno;
use crate::fs::access::{self, Access};
use crate::fs::inode::{
    Contents, Creation, Inode, InodeChange, Listed, Metadata, Opening, Statistics, Timestamp, device_number,
};
use crate::fs::notify::Marks;
use crate::fs::xattr::Extended;
use crate::fs::{Dentry, File, FileType, Mount, OpenFile};
use crate::memory::fallible;
use crate::process::Credentials;
use crate::process::control_group::{self, ControlGroup, Groups};
use crate::sync::SpinLock;

/// The number of the file system.
const DEVICE: u64 = device_number(0, 21);
/// The name of a directory's node among those of its group.
const DIRECTORY: &[u8] = b"";
/// The file whose writers may move processes.
const PROCESSES: &[u8] = b"cgroup.procs";
/// Numbers of nodes that one group has: that of its directory is the first.
const NUMBERS_PER_GROUP: u64 = 64;

/// Attributes of a node that can be changed.
#[derive(Clone, Copy)]
struct GroupAttributes {
    permissions: u32,
    uid: u32,
    gid: u32,
    accessed: Timestamp,
    modified: Timestamp,
    changed: Timestamp,
}

/// The directory of a group, or a file in it.
pub struct GroupNode {
    group: Arc<ControlGroup>,
    /// None for the directory.
    file: Option<&'static GroupFile>,
    /// User and group that made the group, and own its files at first.
    maker: (u32, u32),
    entry: SpinLock<Weak<Dentry>>,
    attributes: SpinLock<GroupAttributes>,
    born: Timestamp,
    marks: Marks,
    extended: Extended,
}

impl GroupNode {
    fn new(
        group: &Arc<ControlGroup>,
        file: Option<&'static GroupFile>,
        permissions: u32,
        maker: (u32, u32),
    ) -> Result<Arc<Self>, Errno> {
        let now = Timestamp::now();
        let (uid, gid) = maker;
        let attributes =
            GroupAttributes { permissions, uid, gid, accessed: now, modified: now, changed: now };
        fallible::try_arc(Self {
            group: group.clone(),
            file,
            maker,
            entry: SpinLock::new(Weak::new()),
            attributes: SpinLock::new(attributes),
            born: now,
            marks: Marks::new(),
            extended: Extended::new(),
        })
    }

    /// The node of a group's directory.
    fn directory(group: &Arc<ControlGroup>) -> Result<Arc<Self>, Errno> {
        if let Some(node) = group.node(DIRECTORY) {
            return own(node);
        }
        own(group.keep_node(DIRECTORY, Self::new(group, None, 0o755, (0, 0))?)?)
    }

    /// The node of a file of this directory's group.
    fn of_file(&self, file: &'static GroupFile) -> Result<Arc<Self>, Errno> {
        if let Some(node) = self.group.node(file.name) {
            return own(node);
        }
        let node = Self::new(&self.group, Some(file), file.permissions, self.maker)?;
        own(self.group.keep_node(file.name, node)?)
    }

    /// Its entry, in this directory.
    fn entry(self: &Arc<Self>, parent: Option<Arc<Dentry>>) -> Result<Arc<Dentry>, Errno> {
        let mut known = self.entry.lock();
        if let Some(entry) = known.upgrade() {
            drop(known);
            return Ok(entry);
        }
        let name = self.file.map_or(self.group.name(), |file| file.name);
        let entry = Dentry::new(self.clone(), parent, name)?;
        *known = Arc::downgrade(&entry);
        Ok(entry)
    }

    /// The files that this directory has.
    fn files(&self) -> impl Iterator<Item = (usize, &'static GroupFile)> + use<> {
        let (controllers, is_root) = (self.group.controllers(), self.group.is_root());
        FILES.iter().enumerate().filter(move |(_, file)| {
            (!is_root || file.is_on_root)
                && (file.controller.is_empty() || controllers.contains(file.controller))
        })
    }
}

fn own(node: Arc<dyn Inode>) -> Result<Arc<GroupNode>, Errno> {
    let node: Arc<dyn Any + Send + Sync> = node;
    node.downcast().map_err(|_| Errno::EIO)
}

/// The entry of a group's directory, from the root of the hierarchy on.
fn entry_of(group: &Arc<ControlGroup>) -> Result<Arc<Dentry>, Errno> {
    // Few levels, each of which is found by its parent.
    let parent = group.parent.as_ref().map(entry_of).transpose()?;
    GroupNode::directory(group)?.entry(parent)
}

/// A mount of the hierarchy as it is seen in a cgroup namespace with this root.
///
/// # Errors
/// `ENOMEM`, `ENOSPC`, `ENODEV` (the root has been removed).
pub fn mount(root: &Groups, source: &[u8], flags: u32) -> Result<Arc<Mount>, Errno> {
    Mount::new(entry_of(&ControlGroup::of(root)?)?, "cgroup2", source, flags)
}

/// The group whose directory an open file is.
#[must_use]
pub fn group_of(open: &OpenFile) -> Option<Arc<ControlGroup>> {
    let node: &dyn Any = &*open.place.as_ref()?.entry.node;
    let node = node.downcast_ref::<GroupNode>()?;
    node.file.is_none().then(|| node.group.clone())
}

/// Whether somebody may move a process from one group to another: they may write the lists of processes of the new one
/// and of the innermost that both are in.
///
/// # Errors
/// `EACCES`, `ENODEV`, `ENOMEM`.
pub fn check_move(from: &Arc<ControlGroup>, to: &Arc<ControlGroup>, who: &Credentials) -> Result<(), Errno> {
    let file = FILES.iter().find(|file| file.name == PROCESSES).ok_or(Errno::EIO)?;
    for group in [to, control_group::common(from, to)] {
        let node = GroupNode::directory(group)?.of_file(file)?;
        access::check(&*node, who, Access::WRITE)?;
    }
    Ok(())
}

impl Inode for GroupNode {
    fn kind(&self) -> FileType {
        if self.file.is_none() { FileType::Directory } else { FileType::Regular }
    }

    fn metadata(&self) -> Metadata {
        let attributes = *self.attributes.lock();
        let place = self.file.map_or(0, |file| {
            FILES.iter().position(|each| core::ptr::eq(each, file)).map_or(0, |place| place as u64 + 1)
        });
        Metadata {
            device: DEVICE,
            permissions: attributes.permissions,
            links: if self.file.is_none() { 2 } else { 1 },
            uid: attributes.uid,
            gid: attributes.gid,
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            born: self.born,
            ..Metadata::anonymous(self.kind(), self.group.number * NUMBERS_PER_GROUP + place)
        }
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            magic: linux::CGROUP2_SUPER_MAGIC,
            blocks: 0,
            free: 0,
            nodes: 0,
            free_nodes: 0,
            device: DEVICE,
        }
    }

    fn lookup(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        if self.file.is_some() {
            return Err(Errno::ENOTDIR);
        }
        if self.group.is_removed() {
            return Err(Errno::ENOENT);
        }
        if let Some((_, file)) = self.files().find(|(_, file)| file.name == name) {
            return self.of_file(file)?.entry(Some(this.clone()));
        }
        let group = self.group.child(name).ok_or(Errno::ENOENT)?;
        GroupNode::directory(&group).map_err(|_| Errno::ENOENT)?.entry(Some(this.clone()))
    }

    /// The files come first, by their places in the table, and then the groups by their numbers.
    fn list(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
        if self.file.is_some() {
            return Err(Errno::ENOTDIR);
        }
        let base = self.group.number * NUMBERS_PER_GROUP;
        for (place, file) in self.files().filter(|&(place, _)| place as u64 >= cookie) {
            let next = place as u64 + 1;
            if !visit(Listed { name: file.name, inode: base + next, kind: FileType::Regular, next }) {
                return Ok(());
            }
        }
        let mut number = cookie.saturating_sub(NUMBERS_PER_GROUP);
        while let Some(group) = self.group.child_after(number) {
            number = group.number;
            let inode = number * NUMBERS_PER_GROUP;
            let next = number + NUMBERS_PER_GROUP;
            if !visit(Listed { name: group.name(), inode, kind: FileType::Directory, next }) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn create(&self, this: &Arc<Dentry>, name: &[u8], creation: &Creation<'_>) -> Result<Arc<Dentry>, Errno> {
        match creation.contents {
            Contents::Directory if self.file.is_none() => {}
            Contents::Regular => return Err(Errno::EACCES),
            _ => return Err(Errno::EPERM),
        }
        if name.contains(&b'\n') {
            return Err(Errno::EINVAL);
        }
        if self.files().any(|(_, file)| file.name == name) {
            return Err(Errno::EEXIST);
        }
        let maker = (creation.credentials.fsuid, creation.credentials.fsgid);
        let group = self.group.add(name, |group| {
            group.keep_node(DIRECTORY, GroupNode::new(group, None, creation.permissions, maker)?).map(drop)
        })?;
        GroupNode::directory(&group)?.entry(Some(this.clone()))
    }

    fn unlink(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        let node: &dyn Any = &*entry.node;
        let node = node.downcast_ref::<Self>().filter(|node| node.file.is_none()).ok_or(Errno::EPERM)?;
        node.group.remove()?;
        entry.mark_removed();
        Ok(())
    }

    fn change(&self, change: &InodeChange) -> Result<(), Errno> {
        let mut attributes = self.attributes.lock();
        attributes.permissions = change.permissions.unwrap_or(attributes.permissions);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.accessed = change.accessed.unwrap_or(attributes.accessed);
        attributes.modified = change.modified.unwrap_or(attributes.modified);
        attributes.changed = Timestamp::now();
        Ok(())
    }

    fn extended(&self) -> Option<&Extended> {
        Some(&self.extended)
    }

    fn marks(&self) -> Option<&Marks> {
        Some(&self.marks)
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        if self.file.is_some() && self.group.is_removed() {
            return Err(Errno::ENODEV);
        }
        file::open(self, opening)
    }
}
