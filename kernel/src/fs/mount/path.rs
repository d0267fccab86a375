//! Paths: an entry as it is seen through a mount, and the way up from it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::error::Errno;
use crate::fs::dentry::Dentry;
use crate::fs::mount::Mount;

use heddle_kernel_core::fallible::extend_items_reserved;

/// An entry as seen through a mount.
#[derive(Clone)]
pub struct Path {
    /// The mount.
    pub mount: Arc<Mount>,
    /// The entry.
    pub entry: Arc<Dentry>,
}

impl Path {
    /// The same entry through the same mount.
    #[must_use]
    pub fn is(&self, other: &Path) -> bool {
        Arc::ptr_eq(&self.mount, &other.mount) && Arc::ptr_eq(&self.entry, &other.entry)
    }

    /// Whether it is the root of its mount.
    #[must_use]
    pub fn is_mount_root(&self) -> bool {
        Arc::ptr_eq(&self.entry, &self.mount.root)
    }

    /// The tree that is visible here: the root of what is mounted on this place, if anything is.
    #[must_use]
    pub fn covered(self) -> Path {
        let mut place = self;
        while place.entry.is_mount_point() {
            let Some(mount) = place.mount.child_on(&place.entry) else { break };
            mount.note_use();
            place = mount.top();
        }
        place
    }

    /// The mount point that is `name` in this directory, of a file system that makes a new entry for each look at a
    /// name: a mount on one of them is to be seen by all.
    #[must_use]
    pub fn mount_point(&self, name: &[u8]) -> Option<Path> {
        let position = self.mount.position.lock();
        let is_here = |at: &Arc<Dentry>| {
            at.with_name(|other| other == name)
                && at.parent().is_some_and(|parent| parent.is_called_as(&self.entry))
        };
        let child = position.children.iter().rev().find(|child| is_here(&child.at))?;
        Some(Path { mount: self.mount.clone(), entry: child.at.clone() })
    }

    /// The place from which this one hangs: for the root of a mount, where that is mounted. `root` hangs nowhere.
    #[must_use]
    fn uncovered(self, root: &Path) -> Path {
        let mut place = self;
        while place.is_mount_root() && !place.is(root) {
            let Some(at) = place.mount.at() else { break };
            place = at;
        }
        place
    }

    /// The directory above, for someone whose root is `root`.
    #[must_use]
    pub fn parent(&self, root: &Path) -> Path {
        let place = self.clone().uncovered(root);
        // Above the root, and above the topmost mount, there is only itself, with what lies over it.
        if place.is(root) || place.is_mount_root() {
            return self.clone().covered();
        }
        match place.entry.parent() {
            Some(entry) => Path { mount: place.mount, entry }.covered(),
            None => self.clone(),
        }
    }

    /// Whether it is `root` or somewhere below it, though other mounts may hide it.
    #[must_use]
    pub fn is_reachable_from(&self, root: &Path) -> bool {
        let mut place = self.clone();
        while !Arc::ptr_eq(&place.mount, &root.mount) {
            let Some(at) = place.mount.at() else { return false };
            place = at;
        }
        place.entry.is_in(&root.entry)
    }

    /// The absolute path, for someone whose root is `root`. A removed name is marked as Linux does.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn path(&self, root: &Path) -> Result<Vec<u8>, Errno> {
        // Built from its end: each name is appended backwards, and the whole is turned round at last.
        let mut path = Vec::new();
        if self.entry.is_removed() {
            push_reversed(&mut path, b" (deleted)")?;
        }
        let mut place = self.clone();
        let mut depth = 0;
        while !place.is(root) {
            place = place.uncovered(root);
            if place.is(root) {
                break;
            }
            let parent = if place.is_mount_root() { None } else { place.entry.parent() };
            let Some(parent) = parent else {
                // An object without a place in any directory shows its own name, say `pipe:[7]`.
                if place.entry.parent().is_none() {
                    place.entry.with_name(|name| push_reversed(&mut path, name))?;
                }
                if depth > 0 && place.mount.set().is_none() {
                    push_reversed(&mut path, b"(unreachable)")?;
                }
                let is_nameless = place.is_mount_root() || place.entry.with_name(<[u8]>::is_empty);
                depth += usize::from(!is_nameless);
                break;
            };
            place.entry.with_name(|name| push_reversed(&mut path, name))?;
            push_reversed(&mut path, b"/")?;
            depth += 1;
            place = Path { mount: place.mount, entry: parent };
        }
        if depth == 0 {
            push_reversed(&mut path, b"/")?;
        }
        path.reverse();
        Ok(path)
    }
}

impl Dentry {
    /// Its path within its file system.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn own_path(self: &Arc<Self>) -> Result<Vec<u8>, Errno> {
        let mut path = Vec::new();
        if self.is_removed() {
            push_reversed(&mut path, b"//deleted")?;
        }
        let mut entry = self.clone();
        while let Some(parent) = entry.parent() {
            entry.with_name(|name| push_reversed(&mut path, name))?;
            push_reversed(&mut path, b"/")?;
            entry = parent;
        }
        // A namespace's file has a name, and is in no directory.
        entry.with_name(|name| push_reversed(&mut path, name))?;
        if path.is_empty() {
            push_reversed(&mut path, b"/")?;
        }
        path.reverse();
        Ok(path)
    }
}

fn push_reversed(path: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Errno> {
    path.try_reserve(bytes.len()).map_err(|_| Errno::ENOMEM)?;
    extend_items_reserved(path, bytes.iter().rev().copied());
    Ok(())
}
