//! Mount namespaces, and trees of mounts that are in none yet.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use heddle_kernel_core::fallible::push_reserved;

use crate::arch::{MAX_CPUS, cpu};
use crate::error::Errno;
use crate::fs::mount::change::{CopyScope, copy_tree, dissolve, take_apart};
use crate::fs::mount::sharing::CopyKind;
use crate::fs::mount::{MOUNT_COUNT, MOUNTS_MAX_ALL, MOUNTS_MAX_USER, Mount, Path, ROOT, Topology, lock};
use crate::fs::{Dentry, Directories};
use crate::memory::fallible;
use crate::process::Credentials;
use crate::process::namespace_counts::{CountedNamespace, NamespaceKind, NamespaceMaker};
use crate::process::user_namespace::{Users, is_same};
use crate::sync::SpinLock;

/// The most mounts of a namespace: `/proc/sys/fs/mount-max`.
pub const MOUNTS_MAX: u32 = 4096;

/// The mounts of a namespace as one tree.
pub struct MountSet {
    /// The namespace's number; younger ones have higher ones.
    number: u64,
    root: SpinLock<Option<Arc<Mount>>>,
    count: AtomicU32,
    /// Counts changes, for those who poll a list of its mounts.
    changes: AtomicU64,
    /// The user namespace that owns it.
    owner: Users,
    /// The user who answers for its mounts.
    payer: Arc<NamespaceMaker>,
    /// Whether it is a tree that only a descriptor leads to, and no namespace.
    is_anonymous: bool,
}

/// A mount namespace, or a tree that only a descriptor leads to. Its mounts go with it.
pub struct MountNamespace {
    /// Its number, as `/proc/PID/ns/mnt` shows it.
    pub number: u64,
    /// A tree that only a descriptor leads to is none, and does not count.
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
    let namespace = fallible::try_arc(MountNamespace::made_by(&Credentials::ROOT, hidden)?)?;
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
        let has_room = used + count <= MOUNTS_MAX as usize && (self.payer.is_root() || self.is_fair(count));
        if has_room { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    /// Whether its user, with so many more mounts, leaves enough to other users, and all of them enough to root.
    fn is_fair(&self, count: usize) -> bool {
        let of_user = self.payer.mounts() as usize + count;
        let all = MOUNT_COUNT.load(Ordering::Relaxed);
        of_user <= MOUNTS_MAX_USER as usize && all <= MOUNTS_MAX_ALL - MOUNTS_MAX_USER
    }

    /// The user namespace that owns it.
    #[must_use]
    pub const fn owner(&self) -> &Users {
        &self.owner
    }

    /// Whether a mount of this root may be in it: if that is the file of a mount namespace, then only of a younger one,
    /// so that namespaces don't keep one another.
    pub(super) fn may_hold(&self, root: &Dentry) -> bool {
        root.node.namespace_order().is_none_or(|order| order > self.number)
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
    pub(super) fn enter(self: &Arc<Self>, topology: &Topology, mount: &Arc<Mount>) {
        self.touch(topology);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.payer.add_mount();
        let before = mount.position.lock().set.replace(self.clone());
        if let Some(before) = before {
            before.touch(topology);
            before.forget_one();
        }
    }

    /// Gives a mount away.
    pub(super) fn leave(topology: &Topology, mount: &Arc<Mount>) {
        let before = mount.position.lock().set.take();
        if let Some(before) = before {
            before.touch(topology);
            before.forget_one();
        }
    }

    /// Notes a change, of which those are told who watch once the topology is free.
    pub(super) fn touch(&self, topology: &Topology) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        topology.has_changed.set(true);
    }

    /// How many changes there have been.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(super) fn forget_one(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.payer.remove_mount();
    }

    /// Takes all its mounts apart.
    fn end(&self) {
        let root = self.root.lock().clone();
        if let Some(root) = root {
            dissolve(root, |topology| drop(self.take_root(topology)));
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
    /// Whether a mount here shows a file system of this kind whole, under rules that one with these flags keeps: then
    /// another mount of it shows nothing new. A mount on a part of it that may not be taken away hides that part.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn shows_whole(&self, kind: &str, flags: u32) -> Result<bool, Errno> {
        let topology = super::lock();
        let mounts = self.set.list(&topology, 0)?;
        let is_whole = |mount: &Arc<Mount>| {
            mount.file_system.kind == kind
                && mount.root.parent().is_none()
                && mount.is_no_stricter(flags)
                && !mount.has_locked_children()
        };
        Ok(mounts.iter().any(is_whole))
    }

    /// A namespace made with these credentials, whose root is a mount that is in none.
    fn made_by(maker: &Credentials, root: &Arc<Mount>) -> Result<Self, Errno> {
        let counted = CountedNamespace::new(maker, NamespaceKind::Mounts)?;
        let (owner, payer) = (counted.owner().clone(), counted.top().clone());
        Self::of(root, owner, payer, Some(counted))
    }

    /// A namespace, or a tree that is none and does not count.
    fn of(
        root: &Arc<Mount>,
        owner: Users,
        payer: Arc<NamespaceMaker>,
        counted: Option<CountedNamespace>,
    ) -> Result<Self, Errno> {
        let is_anonymous = counted.is_none();
        let number = next_namespace_number();
        let set = fallible::try_arc(MountSet {
            number,
            root: SpinLock::new(Some(root.clone())),
            count: AtomicU32::new(0),
            changes: AtomicU64::new(0),
            owner,
            payer,
            is_anonymous,
        })?;
        let made = Self { number, _counted: counted, set };
        let topology = lock();
        let mounts = root.subtree(&topology)?;
        made.set.check_room(mounts.len())?;
        for mount in &mounts {
            made.set.enter(&topology, mount);
        }
        drop(topology);
        Ok(made)
    }

    /// A tree that is in no namespace, for a descriptor that leads to it. Otherwise it is as the caller's mounts.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    pub fn anonymous(own: &MountSet, root: &Arc<Mount>) -> Result<Self, Errno> {
        Self::of(root, own.owner.clone(), own.payer.clone(), None)
    }

    /// The user namespace that owns it.
    #[must_use]
    pub fn owner(&self) -> &Users {
        self.set.owner()
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

    /// A copy with mounts of its own, made with these credentials, into which these directories move. Where another
    /// user namespace owns it, its mounts get what happens here and give nothing back, and stay as they are.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    pub fn copy(&self, maker: &Credentials, directories: &Directories) -> Result<Arc<Self>, Errno> {
        let (root, working) = (directories.root(), directories.working());
        let (mut new_root, mut new_working) = (None, None);
        let topology = lock();
        let old = self.set.root.lock().clone().ok_or(Errno::EINVAL)?;
        let entry: Arc<Dentry> = old.root.clone();
        let is_less = !is_same(&maker.users, self.owner());
        let kind = if is_less { CopyKind::Slave { is_shared: false } } else { CopyKind::Same };
        let top = copy_tree(&topology, &old, entry, kind, CopyScope::NAMESPACE, &mut |old_mount, new| {
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
        let made = Self::made_by(maker, &top).inspect_err(|_| take_apart(&lock(), &top))?;
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
        let is_ending = &IS_ENDING[cpu::id()];
        if is_ending.swap(true, Ordering::Relaxed) {
            end_later(&self.set);
            return;
        }
        self.set.end();
        while let Some(set) = next_ended() {
            set.end();
        }
        is_ending.store(false, Ordering::Relaxed);
    }
}

/// Whether a CPU is about to take the mounts of a namespace apart. The file of another may be among them, which ends
/// then, and so on: that is no recursion.
static IS_ENDING: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];
/// Namespaces that have ended meanwhile.
static ENDED: SpinLock<Vec<Arc<MountSet>>> = SpinLock::new(Vec::new());

/// Leaves the end of a namespace to whoever is at it. Without memory for that its mounts stay.
fn end_later(set: &Arc<MountSet>) {
    let mut ended = ENDED.lock();
    if ended.try_reserve(1).is_ok() {
        push_reserved(&mut ended, set.clone());
    }
}

fn next_ended() -> Option<Arc<MountSet>> {
    let mut ended = ENDED.lock();
    let next = ended.pop();
    let unused = if ended.is_empty() { core::mem::take(&mut *ended) } else { Vec::new() };
    drop(ended);
    drop(unused);
    next
}
