//! Names in the tree: an entry is a node under a name in a directory (Linux's dentry).
//!
//! The directory's node holds its entries; an entry holds its parent, so that a path can be told for whatever is open,
//! and a working directory stays usable after it was removed. The circle is broken when the entry leaves its
//! directory. A rename moves the entry, so what is open under it knows its new path.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::Errno;
use crate::fs::inode::{FileType, Inode};
use crate::memory::fallible;
use crate::sync::SpinLock;

/// A name in a directory.
pub struct Dentry {
    /// The file that it names.
    pub node: Arc<dyn Inode>,
    position: SpinLock<Position>,
    /// The number of mounts on this entry.
    mounts: AtomicU32,
}

/// The number of moves of directories so far.
static MOVES: AtomicU64 = AtomicU64::new(0);

/// Something with directories in it gets another place. Whoever finds the new place must find it counted.
pub fn count_move() {
    MOVES.fetch_add(1, Ordering::SeqCst);
}

/// How many directories have got another place so far. As long as the number stays, so does what is above any of them.
#[must_use]
pub fn moves() -> u64 {
    MOVES.load(Ordering::SeqCst)
}

struct Position {
    parent: Option<Arc<Dentry>>,
    name: Box<[u8]>,
    removed: bool,
}

/// A copy of a name.
///
/// # Errors
/// `ENOMEM`.
pub fn copy_name(name: &[u8]) -> Result<Box<[u8]>, Errno> {
    heddle_kernel_core::dir_index::copy_name(name).map_err(|_| Errno::ENOMEM)
}

impl Dentry {
    /// An entry of directory `parent`, or the root of a file system.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(node: Arc<dyn Inode>, parent: Option<Arc<Dentry>>, name: &[u8]) -> Result<Arc<Self>, Errno> {
        let position = SpinLock::new(Position { parent, name: copy_name(name)?, removed: false });
        fallible::try_arc(Self { node, position, mounts: AtomicU32::new(0) })
    }

    /// The directory it is in, or was in when it was removed; none for the root of a file system.
    #[must_use]
    pub fn parent(&self) -> Option<Arc<Dentry>> {
        self.position.lock().parent.clone()
    }

    /// Calls `f` with the name.
    pub fn with_name<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.position.lock().name)
    }

    /// A copy of the name.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn name(&self) -> Result<Box<[u8]>, Errno> {
        copy_name(&self.position.lock().name)
    }

    /// Whether it has been taken out of its directory.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.position.lock().removed
    }

    /// Notes that the directory no longer holds it.
    pub fn mark_removed(&self) {
        self.position.lock().removed = true;
    }

    /// Notes that it is now `name` in `parent`. The old position is returned, to be dropped without a lock held.
    #[must_use]
    pub fn set_position(&self, parent: Arc<Dentry>, name: Box<[u8]>) -> impl Sized + use<> {
        let is_directory = self.node.kind() == FileType::Directory;
        let mut position = self.position.lock();
        // With the lock held: whoever finds the new parent finds that something was moved, too.
        if is_directory {
            count_move();
        }
        let new = Position { parent: Some(parent), name, removed: false };
        core::mem::replace(&mut *position, new)
    }

    /// Whether `other` is this entry or above it.
    #[must_use]
    pub fn is_at_or_below(self: &Arc<Self>, other: &Arc<Dentry>) -> bool {
        let mut current = self.clone();
        loop {
            if Arc::ptr_eq(&current, other) {
                return true;
            }
            match current.parent() {
                Some(parent) => current = parent,
                None => return false,
            }
        }
    }

    /// Whether `other` is this entry, or one of the same name in a directory for which the same holds. Without memory
    /// for a name it is another one.
    #[must_use]
    pub fn is_called_as(self: &Arc<Self>, other: &Arc<Dentry>) -> bool {
        self.is_called_as_by_steps(other, || Ok(())).unwrap_or(false)
    }

    /// The same, with a call of `step` for each entry on the way up.
    fn is_called_as_by_steps(
        self: &Arc<Self>,
        other: &Arc<Dentry>,
        mut step: impl FnMut() -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        let (mut one, mut other) = (self.clone(), other.clone());
        loop {
            if Arc::ptr_eq(&one, &other) {
                return Ok(true);
            }
            let is_same_name = one.name().is_ok_and(|name| other.with_name(|other| *other == *name));
            match (one.parent(), other.parent()) {
                (Some(above), Some(above_other)) if is_same_name => (one, other) = (above, above_other),
                _ => return Ok(false),
            }
            step()?;
        }
    }

    /// Whether it is `other` or below it, in a file system that may make a new entry for each look at a name.
    #[must_use]
    pub fn is_in(self: &Arc<Self>, other: &Arc<Dentry>) -> bool {
        self.is_in_by_steps(other, || Ok(())).unwrap_or(false)
    }

    /// The same, with a call of `step` for each entry on the way up.
    ///
    /// # Errors
    /// That of `step`.
    pub fn is_in_by_steps(
        self: &Arc<Self>,
        other: &Arc<Dentry>,
        mut step: impl FnMut() -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        let mut current = self.clone();
        if !self.node.keeps_entries() {
            // Entries of one name are equally deep.
            let (own, above) = (self.depth(&mut step)?, other.depth(&mut step)?);
            let Some(difference) = own.checked_sub(above) else { return Ok(false) };
            for _ in 0..difference {
                let Some(parent) = current.parent() else { return Ok(false) };
                current = parent;
                step()?;
            }
            return current.is_called_as_by_steps(other, step);
        }
        loop {
            if Arc::ptr_eq(&current, other) {
                return Ok(true);
            }
            match current.parent() {
                Some(parent) => current = parent,
                None => return Ok(false),
            }
            step()?;
        }
    }

    /// The number of entries above it.
    fn depth(self: &Arc<Self>, step: &mut impl FnMut() -> Result<(), Errno>) -> Result<usize, Errno> {
        let (mut current, mut depth) = (self.clone(), 0);
        while let Some(parent) = current.parent() {
            (current, depth) = (parent, depth + 1);
            step()?;
        }
        Ok(depth)
    }

    /// Whether something is mounted on it.
    #[must_use]
    pub fn is_mount_point(&self) -> bool {
        self.mounts.load(Ordering::Relaxed) > 0
    }

    pub(super) fn add_mount(&self) {
        self.mounts.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_mount(&self) {
        self.mounts.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Dentry {
    /// Lets go of the chain of parents step by step: a program can make it longer than the kernel's stack would bear.
    fn drop(&mut self) {
        let mut parent = self.position.get_mut().parent.take();
        while let Some(entry) = parent {
            parent = Arc::into_inner(entry).and_then(|mut entry| entry.position.get_mut().parent.take());
        }
    }
}
