//! Mount namespaces, and trees of mounts that are in none yet.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::Errno;
use crate::fs::mount::change::{copy_tree, dissolve, take_apart};
use crate::fs::mount::sharing::CopyKind;
use crate::fs::mount::{Mount, Path, ROOT, Topology, lock};
use crate::fs::{Dentry, Directories};
use crate::memory::fallible;
use crate::process::user_namespace::{CountedNamespace, NamespaceKind, Users, is_same};
use crate::sync::SpinLock;

/// The most mounts of a namespace: `/proc/sys/fs/mount-max`.
pub const MOUNTS_MAX: u32 = 4096;

/// The mounts of a namespace as one tree.
pub struct MountSet {
    root: SpinLock<Option<Arc<Mount>>>,
    count: AtomicU32,
    /// Whether it is a tree that only a descriptor leads to, and no namespace.
    is_anonymous: bool,
}

/// A mount namespace, or a tree that only a descriptor leads to. Its mounts go with it.
pub struct MountNamespace {
    /// Its number, as `/proc/PID/ns/mnt` shows it.
    pub number: u64,
    /// The user namespace that owns it; a tree that only a descriptor leads to counts for none.
    owner: Users,
    _counted: Option<CountedNamespace>,
    set: Arc<MountSet>,
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0xf000_0000);

/// A number for a new namespace of any kind.
#[must_use]
pub fn next_namespace_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

static INITIAL: spin::Once<Arc<MountNamespace>> = spin::Once::new();

/// The namespace in which the first program runs.
///
/// # Errors
/// `ENODEV`: nothing has been mounted.
pub fn initial() -> Result<&'static Arc<MountNamespace>, Errno> {
    INITIAL.get().ok_or(Errno::ENODEV)
}

/// Makes `mount` what programs see as the root of everything. As in Linux it lies over an empty file system that nobody
/// sees, so that it can be moved: pivot_root(2).
///
/// # Errors
/// `ENOMEM`.
pub fn set_root(hidden: &Arc<Mount>, mount: &Arc<Mount>) -> Result<(), Errno> {
    let namespace = fallible::try_arc(MountNamespace::of(hidden, Some(&None))?)?;
    let topology = lock();
    hidden.reserve_child()?;
    mount.attach_reserved(&topology, hidden.top());
    namespace.set.enter(&topology, mount);
    drop(topology);
    INITIAL.call_once(|| namespace);
    ROOT.call_once(|| mount.top());
    Ok(())
}

impl MountSet {
    /// Whether there is room for so many more mounts.
    pub(super) fn check_room(&self, count: usize) -> Result<(), Errno> {
        let used = self.count.load(Ordering::Relaxed) as usize;
        if used + count > MOUNTS_MAX as usize { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    /// Whether only a descriptor leads to it.
    #[must_use]
    pub const fn is_anonymous(&self) -> bool {
        self.is_anonymous
    }

    /// Whether this mount is the top of its tree.
    pub(super) fn is_root(&self, mount: &Arc<Mount>) -> bool {
        self.root.lock().as_ref().is_some_and(|root| Arc::ptr_eq(root, mount))
    }

    /// Its root.
    ///
    /// # Errors
    /// `EINVAL`: it has none.
    pub fn top(&self) -> Result<Path, Errno> {
        let root = self.root.lock().clone();
        Ok(root.ok_or(Errno::EINVAL)?.top())
    }

    /// Takes a mount in.
    pub(super) fn enter(self: &Arc<Self>, _: &Topology, mount: &Arc<Mount>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let before = mount.position.lock().set.replace(self.clone());
        if let Some(before) = before {
            before.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives a mount away.
    pub(super) fn leave(_: &Topology, mount: &Arc<Mount>) {
        let before = mount.position.lock().set.take();
        if let Some(before) = before {
            before.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives up its root, so that it can become part of another tree.
    pub(super) fn take_root(&self, _: &Topology) -> Option<Arc<Mount>> {
        self.root.lock().take()
    }

    /// The mounts from number `from` on, in the order of their numbers.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn list(&self, topology: &Topology, from: u64) -> Result<Vec<Arc<Mount>>, Errno> {
        let root = self.root.lock().clone();
        let Some(root) = root else { return Ok(Vec::new()) };
        let mut found = root.subtree(topology)?;
        found.retain(|mount| u64::from(mount.id) >= from);
        found.sort_unstable_by_key(|mount| mount.id);
        Ok(found)
    }
}

impl MountNamespace {
    /// A namespace of some owner, or a tree in none, whose root is a mount that is in none.
    fn of(root: &Arc<Mount>, owner: Option<&Users>) -> Result<Self, Errno> {
        let counted = owner.map(|owner| CountedNamespace::new(owner, NamespaceKind::Mounts)).transpose()?;
        let set = fallible::try_arc(MountSet {
            root: SpinLock::new(Some(root.clone())),
            count: AtomicU32::new(0),
            is_anonymous: owner.is_none(),
        })?;
        let (number, owner) = (next_namespace_number(), owner.cloned().flatten());
        let made = Self { number, owner, _counted: counted, set };
        let topology = lock();
        let mounts = root.subtree(&topology)?;
        made.set.check_room(mounts.len())?;
        for mount in &mounts {
            made.set.enter(&topology, mount);
        }
        drop(topology);
        Ok(made)
    }

    /// A tree that is in no namespace, for a descriptor that leads to it.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    pub fn anonymous(root: &Arc<Mount>) -> Result<Self, Errno> {
        Self::of(root, None)
    }

    /// The user namespace that owns it.
    #[must_use]
    pub const fn owner(&self) -> &Users {
        &self.owner
    }

    /// Its mounts.
    #[must_use]
    pub const fn set(&self) -> &Arc<MountSet> {
        &self.set
    }

    /// The topmost mount at its root.
    ///
    /// # Errors
    /// `EINVAL`: it has none.
    pub fn top(&self) -> Result<Path, Errno> {
        self.set.top().map(Path::covered)
    }

    /// A copy with mounts of its own, into which these directories move. Where another user namespace owns it, its
    /// mounts get what happens here and give nothing back, and stay as they are.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    pub fn copy(&self, owner: &Users, directories: &Directories) -> Result<Arc<Self>, Errno> {
        let (root, working) = (directories.root(), directories.working());
        let (mut new_root, mut new_working) = (None, None);
        let topology = lock();
        let old = self.set.root.lock().clone().ok_or(Errno::EINVAL)?;
        let entry: Arc<Dentry> = old.root.clone();
        let is_less = !is_same(owner, &self.owner);
        let kind = if is_less { CopyKind::Slave { is_shared: false } } else { CopyKind::Same };
        let top = copy_tree(&topology, &old, entry, kind, true, &mut |old_mount, new| {
            if is_less {
                new.lock_settings(!Arc::ptr_eq(old_mount, &old));
            }
            let old = old_mount;
            if Arc::ptr_eq(old, &root.mount) {
                new_root = Some(Path { mount: new.clone(), entry: root.entry.clone() });
            }
            if Arc::ptr_eq(old, &working.mount) {
                new_working = Some(Path { mount: new.clone(), entry: working.entry.clone() });
            }
        });
        drop(topology);
        let top = top?;
        let made = Self::of(&top, Some(owner)).inspect_err(|_| take_apart(&lock(), &top))?;
        let made = fallible::try_arc(made)?;
        if let Some(place) = new_root {
            directories.set_root(place);
        }
        if let Some(place) = new_working {
            directories.set_working(place);
        }
        Ok(made)
    }
}

impl Drop for MountNamespace {
    fn drop(&mut self) {
        let root = self.set.root.lock().clone();
        if let Some(root) = root {
            dissolve(root, |topology| drop(self.set.take_root(topology)));
        }
    }
}
