//! Directories: the names a program sees are those here and those of the image that are not hidden here.

use alloc::sync::Arc;
use core::any::Any;
use heddle_erofs::Inode as ImageInode;
use heddle_kernel_core::dir_index::Names;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::dentry::copy_name;
use crate::fs::inode::{Creation, Inode, Listed, Rename};
use crate::fs::tree::node::{Body, TreeNode};
use crate::fs::{Dentry, FileType};
use crate::sync::{SpinGuard, SpinLock};

/// A cached name of a directory.
enum Child {
    /// It is this. `cached` when it was found in the image under this name and is still that.
    Dentry { entry: Arc<Dentry>, cached: bool },
    /// The image has it, and it was removed.
    Whiteout,
}

/// The names of a directory.
pub(super) struct Children {
    names: Names<Child>,
    /// The directory has been removed: nothing can be created in it any more.
    dead: bool,
}

/// Listing positions at and above this one are of names here, those below of the image's.
const HERE: u64 = 1 << 62;
/// The most names a node can have.
const LINK_LIMIT: u32 = 65_000;

impl Children {
    pub fn new() -> Self {
        Self { names: Names::new(), dead: false }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Takes one entry out that is only a cache of the image and in use by nobody; the caller drops it.
    pub fn take_clean(&mut self) -> Option<Arc<Dentry>> {
        let name = self.names.iter().find_map(|(name, child)| match child {
            Child::Dentry { entry, cached: true } if Arc::strong_count(entry) == 1 && is_clean(entry) => {
                Some(name)
            }
            _ => None,
        })?;
        let name = copy_name(name).ok()?;
        match self.names.remove(&name)? {
            Child::Dentry { entry, .. } => Some(entry),
            Child::Whiteout => None,
        }
    }

    /// Takes some entry out; the caller drops it.
    pub fn take_any(&mut self) -> Option<Arc<Dentry>> {
        loop {
            if let Child::Dentry { entry, .. } = self.names.pop()? {
                return Some(entry);
            }
        }
    }

    /// The directories among the entries, after a listing position.
    pub fn next_directory(&self, mut cookie: u64) -> Option<(u64, Arc<Dentry>)> {
        while let Some((next, _, child)) = self.names.after(cookie) {
            match child {
                Child::Dentry { entry, .. } if entry.node.kind() == FileType::Directory => {
                    return Some((next, entry.clone()));
                }
                _ => cookie = next,
            }
        }
        None
    }
}

/// Whether the node behind an entry is as the image has it and would be found again: nobody but the entry refers to it,
/// or the tree's table of nodes with several names does.
fn is_clean(entry: &Dentry) -> bool {
    let node: &dyn Any = &*entry.node;
    node.downcast_ref::<TreeNode>().is_some_and(|node| {
        let shared = node.lower.as_ref().is_some_and(is_shared);
        (shared || Arc::strong_count(&entry.node) == 1) && node.is_clean()
    })
}

fn is_shared(inode: &ImageInode) -> bool {
    inode.nlink > 1 && inode.file_type != heddle_erofs::FileType::Directory
}

/// The node as one of a tree.
pub(super) fn tree_node(node: &Arc<dyn Inode>) -> Result<Arc<TreeNode>, Errno> {
    let any: Arc<dyn Any + Send + Sync> = node.clone();
    any.downcast().map_err(|_| Errno::EXDEV)
}

impl TreeNode {
    pub(super) fn children(&self) -> Result<&SpinLock<Children>, Errno> {
        match &self.body {
            Body::Directory(children) => Ok(children),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The number of the image's node under a name, if the image's directory has it.
    fn in_image(&self, name: &[u8]) -> Result<Option<u64>, Errno> {
        let Some((image, inode)) = self.lower() else { return Ok(None) };
        let entry = image.lookup(inode, name).map_err(|_| Errno::EIO)?;
        Ok(entry.map(|entry| entry.nid))
    }

    /// The entry under a name.
    pub(super) fn find(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let mut children = self.children()?.lock();
        match children.names.get(name) {
            Some(Child::Dentry { entry, .. }) => return Ok(entry.clone()),
            Some(Child::Whiteout) => return Err(Errno::ENOENT),
            None => {}
        }
        let nid = self.in_image(name)?.ok_or(Errno::ENOENT)?;
        let node = self.instantiate(nid)?;
        let entry = Dentry::new(node, Some(this.clone()), name)?;
        let child = Child::Dentry { entry: entry.clone(), cached: true };
        children.names.insert(name, child).map_err(|_| Errno::ENOMEM)?;
        Ok(entry)
    }

    /// The node for a node of the image: a new one, or the one that another of its names led to.
    #[expect(clippy::disallowed_methods, reason = "room for the number is reserved")]
    fn instantiate(&self, nid: u64) -> Result<Arc<TreeNode>, Errno> {
        let image = self.tree.image.as_ref().ok_or(Errno::EIO)?;
        let inode = image.inode(nid).map_err(|_| Errno::EIO)?;
        if !is_shared(&inode) {
            return TreeNode::from_image(&self.tree, inode);
        }
        let mut shared = self.tree.shared.lock();
        if let Some(node) = shared.get(&nid) {
            return Ok(node.clone());
        }
        shared.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let node = TreeNode::from_image(&self.tree, inode)?;
        shared.insert(nid, node.clone());
        Ok(node)
    }

    pub(super) fn list_names(
        &self,
        cookie: u64,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Result<(), Errno> {
        let children = self.children()?.lock();
        if let (Some((image, inode)), true) = (self.lower(), cookie < HERE) {
            for entry in image.entries(inode, cookie).map_err(|_| Errno::EIO)? {
                let entry = entry.map_err(|_| Errno::EIO)?;
                // A name that is known here and is no mere cache is listed with those of this directory.
                let hidden = !matches!(
                    children.names.get(entry.name),
                    None | Some(Child::Dentry { cached: true, .. })
                );
                let name = if hidden || matches!(entry.name, b"." | b"..") { &[] } else { entry.name };
                let kind = FileType::from_mode(entry.file_type.mode().into()).ok_or(Errno::EIO)?;
                let listed = Listed { name, inode: entry.nid, kind, next: entry.next };
                if !visit(listed) {
                    return Ok(());
                }
            }
        }
        let mut position = cookie.saturating_sub(HERE);
        while let Some((next, name, child)) = children.names.after(position) {
            position = next;
            let Child::Dentry { entry, cached: false } = child else {
                if visit(Listed { name: &[], inode: 0, kind: FileType::Regular, next: HERE + next }) {
                    continue;
                }
                break;
            };
            let node: &dyn Any = &*entry.node;
            let inode = node.downcast_ref::<TreeNode>().map_or(0, |node| node.inode);
            if !visit(Listed { name, inode, kind: entry.node.kind(), next: HERE + next }) {
                break;
            }
        }
        Ok(())
    }

    /// Checks that a name can be added: the directory lives and the name is free.
    fn check_free(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<(), Errno> {
        if self.children()?.lock().dead {
            return Err(Errno::ENOENT);
        }
        match self.find(this, name) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn put(&self, name: &[u8], entry: Arc<Dentry>) -> Result<(), Errno> {
        let child = Child::Dentry { entry, cached: false };
        let old = self.children()?.lock().names.insert(name, child).map_err(|_| Errno::ENOMEM)?;
        drop(old);
        Ok(())
    }

    /// Takes a name out, so that the image's, if there is one, doesn't show.
    fn take_out(&self, name: &[u8]) -> Result<(), Errno> {
        let in_image = self.in_image(name)?.is_some();
        let mut children = self.children()?.lock();
        let old = if in_image {
            children.names.insert(name, Child::Whiteout).map_err(|_| Errno::ENOMEM)?
        } else {
            children.names.remove(name)
        };
        drop(children);
        drop(old);
        Ok(())
    }

    pub(super) fn create_name(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        creation: &Creation<'_>,
    ) -> Result<Arc<Dentry>, Errno> {
        let _mutation = self.tree.mutation.lock();
        self.check_free(this, name)?;
        let (mut gid, mut permissions) = (creation.credentials.fsgid, creation.permissions);
        let directory = matches!(creation.contents, crate::fs::inode::Contents::Directory);
        {
            let attributes = self.attributes.lock();
            if attributes.permissions & linux::S_ISGID != 0 {
                gid = attributes.gid;
                permissions |= if directory { linux::S_ISGID } else { 0 };
            }
        }
        let node = self.tree.node(&creation.contents, permissions, creation.credentials.fsuid, gid)?;
        node.flags.inherit(&self.flags);
        self.lend_acl(&node)?;
        let entry = Dentry::new(node, Some(this.clone()), name)?;
        self.put(name, entry.clone())?;
        let mut attributes = self.attributes.lock();
        attributes.touch();
        attributes.links += u32::from(directory);
        Ok(entry)
    }

    pub(super) fn link_name(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        node: &Arc<dyn Inode>,
    ) -> Result<(), Errno> {
        let node = tree_node(node)?;
        if !Arc::ptr_eq(&node.tree, &self.tree) {
            return Err(Errno::EXDEV);
        }
        let _mutation = self.tree.mutation.lock();
        self.check_free(this, name)?;
        {
            let attributes = node.attributes.lock();
            if attributes.links >= LINK_LIMIT {
                return Err(Errno::EMLINK);
            }
            // The last name is gone for good.
            if attributes.links == 0 && !attributes.linkable {
                return Err(Errno::ENOENT);
            }
        }
        self.put(name, Dentry::new(node.clone(), Some(this.clone()), name)?)?;
        let mut attributes = node.attributes.lock();
        attributes.links += 1;
        attributes.linkable = false;
        attributes.touch_metadata();
        drop(attributes);
        self.attributes.lock().touch();
        Ok(())
    }

    /// Whether the directory shows no name.
    fn check_empty(&self, children: &SpinGuard<'_, Children>) -> Result<(), Errno> {
        if children.names.iter().any(|(_, child)| matches!(child, Child::Dentry { .. })) {
            return Err(Errno::ENOTEMPTY);
        }
        let Some((image, inode)) = self.lower() else { return Ok(()) };
        for entry in image.entries(inode, 0).map_err(|_| Errno::EIO)? {
            let name = entry.map_err(|_| Errno::EIO)?.name;
            if !matches!(name, b"." | b"..") && children.names.get(name).is_none() {
                return Err(Errno::ENOTEMPTY);
            }
        }
        Ok(())
    }

    /// Marks a directory that is about to be removed, if it is empty.
    fn kill(&self) -> Result<(), Errno> {
        let mut children = self.children()?.lock();
        self.check_empty(&children)?;
        children.dead = true;
        Ok(())
    }

    /// Notes that a node lost a name.
    fn lose_name(&self) {
        let mut attributes = self.attributes.lock();
        attributes.links =
            if self.kind == FileType::Directory { 0 } else { attributes.links.saturating_sub(1) };
        attributes.touch_metadata();
        let gone = attributes.links == 0;
        drop(attributes);
        if let (true, Some(inode)) = (gone, &self.lower) {
            // Not dropped under the table's lock: that may free the file's pages.
            let old = if is_shared(inode) { self.tree.shared.lock().remove(&inode.nid) } else { None };
            drop(old);
        }
        if gone {
            self.marks.nameless();
        }
    }

    /// Notes that a name of this directory is gone.
    fn lost(&self, kind: FileType) {
        let mut attributes = self.attributes.lock();
        attributes.touch();
        attributes.links = attributes.links.saturating_sub(u32::from(kind == FileType::Directory));
    }

    pub(super) fn unlink_name(&self, entry: &Arc<Dentry>) -> Result<(), Errno> {
        let mutation = self.tree.mutation.lock();
        let name = entry.name()?;
        let current = match self.children()?.lock().names.get(&name) {
            Some(Child::Dentry { entry: current, .. }) => current.clone(),
            _ => return Err(Errno::ENOENT),
        };
        if !Arc::ptr_eq(&current, entry) {
            return Err(Errno::ENOENT);
        }
        let node = tree_node(&entry.node)?;
        if node.kind == FileType::Directory {
            node.kill()?;
        }
        if let Err(error) = self.take_out(&name) {
            if let Ok(children) = node.children() {
                children.lock().dead = false;
            }
            return Err(error);
        }
        entry.mark_removed();
        node.lose_name();
        self.lost(node.kind);
        drop(mutation);
        Ok(())
    }

    pub(super) fn rename_name(
        &self,
        entry: &Arc<Dentry>,
        to: &Arc<Dentry>,
        name: &[u8],
        how: Rename,
        whiteout: Option<&Creation<'_>>,
    ) -> Result<(), Errno> {
        let target = tree_node(&to.node)?;
        if !Arc::ptr_eq(&self.tree, &target.tree) {
            return Err(Errno::EXDEV);
        }
        let _mutation = self.tree.mutation.lock();
        let old_name = entry.name()?;
        let is_here = |child: Option<&Child>| match child {
            Some(Child::Dentry { entry: current, .. }) => Arc::ptr_eq(current, entry),
            _ => false,
        };
        if !is_here(self.children()?.lock().names.get(&old_name)) {
            return Err(Errno::ENOENT);
        }
        if target.children()?.lock().dead {
            return Err(Errno::ENOENT);
        }
        // A directory can't go into itself.
        if to.is_at_or_below(entry) {
            return Err(Errno::EINVAL);
        }
        let node = tree_node(&entry.node)?;
        let replaced = match target.find(to, name) {
            Ok(replaced) => Some(replaced),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        let from = entry.parent().ok_or(Errno::EINVAL)?;
        match (replaced, how) {
            (Some(_), Rename::Keep) => Err(Errno::EEXIST),
            (None, Rename::Exchange) => Err(Errno::ENOENT),
            (Some(other), Rename::Exchange) => {
                if from.is_at_or_below(&other) {
                    return Err(Errno::EINVAL);
                }
                self.exchange(entry, &other, &from, to, (&old_name, name))
            }
            // Two names of one file: nothing happens.
            (Some(other), _) if Arc::ptr_eq(&other.node, &entry.node) => Ok(()),
            (replaced, _) => {
                if let Some(other) = &replaced {
                    Self::check_replace(&node, other, &from)?;
                }
                let left = match whiteout {
                    Some(creation) => {
                        let owner = creation.credentials;
                        let (contents, permissions) = (&creation.contents, creation.permissions);
                        let node = self.tree.node(contents, permissions, owner.fsuid, owner.fsgid)?;
                        Some(Dentry::new(node, Some(from), &old_name)?)
                    }
                    None => None,
                };
                self.move_entry(entry, to, &target, (&old_name, name), replaced, left)
            }
        }
    }

    /// Whether a rename may put `node` in the place of `other`; a directory that may is dead from here on.
    fn check_replace(node: &TreeNode, other: &Arc<Dentry>, from: &Arc<Dentry>) -> Result<(), Errno> {
        match (node.kind == FileType::Directory, other.node.kind() == FileType::Directory) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            (false, false) => Ok(()),
            (true, true) if from.is_at_or_below(other) => Err(Errno::ENOTEMPTY),
            (true, true) => tree_node(&other.node)?.kill(),
        }
    }

    fn move_entry(
        &self,
        entry: &Arc<Dentry>,
        to: &Arc<Dentry>,
        target: &TreeNode,
        (old_name, name): (&[u8], &[u8]),
        replaced: Option<Arc<Dentry>>,
        left: Option<Arc<Dentry>>,
    ) -> Result<(), Errno> {
        let kind = entry.node.kind();
        let copied = copy_name(name)?;
        // Steps that can fail come first: room for a whiteout under the old name is the old entry's own.
        target.put(name, entry.clone())?;
        match left {
            Some(left) => self.put(old_name, left)?,
            None => self.take_out(old_name)?,
        }
        let old = entry.set_position(to.clone(), copied);
        if let Some(replaced) = replaced {
            replaced.mark_removed();
            let node = tree_node(&replaced.node)?;
            node.lose_name();
            target.lost(node.kind);
        }
        self.lost(kind);
        let mut attributes = target.attributes.lock();
        attributes.touch();
        attributes.links += u32::from(kind == FileType::Directory);
        drop(attributes);
        tree_node(&entry.node)?.attributes.lock().touch_metadata();
        drop(old);
        Ok(())
    }

    fn exchange(
        &self,
        entry: &Arc<Dentry>,
        other: &Arc<Dentry>,
        from: &Arc<Dentry>,
        to: &Arc<Dentry>,
        (old_name, name): (&[u8], &[u8]),
    ) -> Result<(), Errno> {
        let target = tree_node(&to.node)?;
        let (copied, old_copied) = (copy_name(name)?, copy_name(old_name)?);
        target.put(name, entry.clone())?;
        self.put(old_name, other.clone())?;
        let old = (entry.set_position(to.clone(), copied), other.set_position(from.clone(), old_copied));
        let change = |directory: &TreeNode, lost: FileType, won: FileType| {
            directory.lost(lost);
            directory.attributes.lock().links += u32::from(won == FileType::Directory);
        };
        change(self, entry.node.kind(), other.node.kind());
        change(&target, other.node.kind(), entry.node.kind());
        drop(old);
        Ok(())
    }
}
