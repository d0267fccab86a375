//! Mounts: trees that are visible at places of other trees, mount_namespaces(7).
//!
//! A [`Mount`] shows a file system from one of its dentries on. It knows its place, and the mounts on places within it;
//! the mounts of a namespace form one tree so, whose members belong to its [`MountSet`].
//!
//! Lookups take one mount's own lock at a time. Whoever changes a tree, or walks one whole, holds [`Topology`], Linux's
//! `namespace_sem`: it comes before the locks of mounts and peer groups, of which nobody holds two at once.
//! [`MOUNTS_MAX`] and [`MOUNTS_MAX_ALL`] bound what happens under it.

mod change;
mod namespace;
mod path;
mod places;
mod sharing;
mod unmount;
mod writers;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::dentry::{Dentry, copy_name, count_move};
use crate::fs::tree::Tree;
use crate::memory::fallible;
use crate::process::user_namespace::Users;
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::queue::{Events, WaitQueue, Watch};

use heddle_kernel_core::fallible::{extend_items_reserved, push_reserved};

pub use crate::fs::mount::change::{
    add, bind, change_attributes, detached_copy, move_to, pivot, set_propagation,
};
pub use crate::fs::mount::namespace::{
    MOUNTS_MAX, MountNamespace, MountSet, initial, next_namespace_number, set_root,
};
pub use crate::fs::mount::path::Path;
pub use crate::fs::mount::sharing::Propagation;
pub use crate::fs::mount::unmount::{detach_all, has_own_mount, is_unused, unmount};

/// The most mounts of all namespaces together.
const MOUNTS_MAX_ALL: u32 = 32768;
/// Those that one user answers for: root has this many to itself, and may have the others, too.
const MOUNTS_MAX_USER: u32 = MOUNTS_MAX_ALL / 4;

/// A file system as all mounts of it share it.
pub struct Superblock {
    /// Its kind: `tmpfs`, `proc`.
    pub kind: &'static str,
    /// The user namespace in which it was mounted; none for the first.
    owner: spin::Once<Users>,
    /// The `MS_` flags that are its own.
    flags: AtomicU32,
    writers: writers::Writers,
    words: spin::Once<SuperblockWords>,
}

/// The words of `/proc/mounts` about a file system beside its kind and flags.
pub struct SuperblockWords {
    /// The name behind the kind and a dot; nothing without a letter.
    pub subtype: Box<[u8]>,
    /// Its options.
    pub options: Box<[u8]>,
}

impl Superblock {
    /// The flags of mount(2) that belong to the file system.
    pub const FLAGS: u32 = linux::MS_RDONLY | linux::MS_SYNCHRONOUS | linux::MS_DIRSYNC | linux::MS_LAZYTIME;

    /// The user namespace in which it was mounted.
    #[must_use]
    pub fn owner(&self) -> &Users {
        self.owner.get().unwrap_or(&None)
    }

    /// Says in which user namespace it is mounted, before anybody sees it.
    pub fn set_owner(&self, owner: &Users) {
        self.owner.call_once(|| owner.clone());
    }

    /// Says what `/proc/mounts` says of it, before anybody sees it.
    pub fn set_words(&self, words: SuperblockWords) {
        self.words.call_once(|| words);
    }

    /// The words of `/proc/mounts` about it.
    #[must_use]
    pub fn words(&self) -> Option<&SuperblockWords> {
        self.words.get()
    }

    /// Its `MS_` flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets its `MS_` flags, whoever writes.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags & Self::FLAGS, Ordering::Relaxed);
    }
}

/// A tree that is visible somewhere.
pub struct Mount {
    /// Its number, as in `/proc/PID/mountinfo`.
    pub id: u32,
    /// The top of what is visible.
    pub root: Arc<Dentry>,
    /// The file system.
    pub file_system: Arc<Superblock>,
    /// The source that mount(2) was given.
    pub source: Box<[u8]>,
    flags: AtomicU32,
    /// The `MS_` flags that its namespace may not change, and [`Mount::LOCKED`].
    locks: AtomicU32,
    /// How often a lookup has come in since `MNT_EXPIRE` marked it; 0 while it is not marked.
    uses: AtomicU32,
    writers: writers::Writers,
    position: SpinLock<MountPosition>,
    /// Its place among the mounts on one entry.
    beside: SpinLock<places::PlaceLinks>,
    sharing: SpinLock<sharing::Sharing>,
}

/// The place of a mount in its tree.
struct MountPosition {
    /// Where it is mounted; none for the root of a namespace, and for what is visible nowhere.
    at: Option<Path>,
    /// The mounts on places in this one.
    children: Vec<MountedChild>,
    /// The namespace that it belongs to; none before it is mounted and after it was unmounted.
    set: Option<Arc<MountSet>>,
    /// Whether the unmounting that is under way takes it along.
    is_leaving: bool,
}

/// A mount on a place in another.
struct MountedChild {
    at: Arc<Dentry>,
    mount: Arc<Mount>,
    /// Both are in no namespace any more. It stays, because what it covers is not to be seen, and goes with its parent.
    is_left: bool,
}

static TOPOLOGY: SpinLock<()> = SpinLock::new(());
static NEXT_ID: AtomicU32 = AtomicU32::new(1);
static MOUNT_COUNT: AtomicU32 = AtomicU32::new(0);
static ROOT: spin::Once<Path> = spin::Once::new();

/// Whoever polls lists of mounts waits here, for changes in any namespace.
static CHANGED: WaitQueue = WaitQueue::new();

/// The right to change trees of mounts.
pub struct Topology {
    guard: Option<SpinGuard<'static, ()>>,
    /// Whether a namespace has changed meanwhile.
    has_changed: Cell<bool>,
}

/// Waits for the right to change trees of mounts.
#[must_use]
pub fn lock() -> Topology {
    Topology { guard: Some(TOPOLOGY.lock()), has_changed: Cell::new(false) }
}

impl Drop for Topology {
    fn drop(&mut self) {
        drop(self.guard.take());
        if self.has_changed.get() {
            CHANGED.wake(Events::all());
        }
    }
}

impl Mount {
    /// The flags of mount(2) that belong to a mount.
    pub const FLAGS: u32 = linux::MS_RDONLY
        | linux::MS_NOSUID
        | linux::MS_NODEV
        | linux::MS_NOEXEC
        | linux::MS_NOATIME
        | linux::MS_NODIRATIME
        | linux::MS_RELATIME
        | linux::MS_NOSYMFOLLOW;
    /// Those that say when access times change.
    pub const ACCESS_TIME: u32 = linux::MS_NOATIME | linux::MS_NODIRATIME | linux::MS_RELATIME;

    /// A mount of a file system of its own, not yet visible.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    pub fn new(root: Arc<Dentry>, kind: &'static str, source: &[u8], flags: u32) -> Result<Arc<Self>, Errno> {
        // Access times change as with `relatime` unless somebody says otherwise.
        let flags = flags | if flags & linux::MS_NOATIME == 0 { linux::MS_RELATIME } else { 0 };
        let file_system = fallible::try_arc(Superblock {
            kind,
            owner: spin::Once::new(),
            flags: AtomicU32::new(flags & Superblock::FLAGS),
            writers: writers::Writers::none(),
            words: spin::Once::new(),
        })?;
        Self::of(file_system, root, source, flags)
    }

    /// A mount of a file system from a dentry on.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`.
    pub fn of(
        file_system: Arc<Superblock>,
        root: Arc<Dentry>,
        source: &[u8],
        flags: u32,
    ) -> Result<Arc<Self>, Errno> {
        let source = copy_name(source)?;
        Tree::begin_mount(&root);
        let count = MOUNT_COUNT.fetch_add(1, Ordering::Relaxed);
        // Dropped on failure, which counts it back.
        let made = fallible::try_arc(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            root,
            file_system,
            source,
            flags: AtomicU32::new(flags & Self::FLAGS),
            locks: AtomicU32::new(0),
            uses: AtomicU32::new(0),
            writers: writers::Writers::none(),
            position: SpinLock::new(MountPosition {
                at: None,
                children: Vec::new(),
                set: None,
                is_leaving: false,
            }),
            beside: SpinLock::new(places::PlaceLinks::NONE),
            sharing: SpinLock::new(sharing::Sharing::PRIVATE),
        })?;
        if count >= MOUNTS_MAX_ALL { Err(Errno::ENOSPC) } else { Ok(made) }
    }

    /// Its root, seen through it.
    #[must_use]
    pub fn top(self: &Arc<Self>) -> Path {
        Path { mount: self.clone(), entry: self.root.clone() }
    }

    /// Whether nothing may be changed through it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        (self.flags() | self.file_system.flags()) & linux::MS_RDONLY != 0
    }

    /// Its own `MS_` flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes its own `MS_` flags.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags & Self::FLAGS, Ordering::Relaxed);
    }

    /// Changes the flags of a mount that programs see, and tells those who watch its namespace.
    pub fn change_flags(&self, topology: &Topology, flags: u32) {
        self.set_flags(flags);
        if let Some(set) = self.set() {
            set.touch(topology);
        }
    }

    /// A mark among the locks: it may not be taken away, since what it covers was not to be seen.
    const LOCKED: u32 = 1 << 31;

    /// Keeps its settings as they are, and with `is_covering` the mount where it is: it comes from a namespace whose
    /// owner may more.
    fn lock_settings(&self, is_covering: bool) {
        const KEPT: u32 = linux::MS_RDONLY | linux::MS_NOSUID | linux::MS_NODEV | linux::MS_NOEXEC;
        let locks = self.flags() & KEPT | Self::ACCESS_TIME;
        self.locks.fetch_or(locks | if is_covering { Self::LOCKED } else { 0 }, Ordering::Relaxed);
    }

    /// Whether it may not be taken away.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locks.load(Ordering::Relaxed) & Self::LOCKED != 0
    }

    /// Whether it may get these flags.
    #[must_use]
    pub fn may_have_flags(&self, flags: u32) -> bool {
        let locks = self.locks.load(Ordering::Relaxed) & Self::FLAGS;
        (self.flags() ^ flags) & locks == 0
    }

    /// Whether a mount with these flags keeps the rules that this one's namespace may not change.
    fn is_no_stricter(&self, flags: u32) -> bool {
        let flags = flags | if flags & linux::MS_NOATIME == 0 { linux::MS_RELATIME } else { 0 };
        let locks = self.locks.load(Ordering::Relaxed) & (linux::MS_RDONLY | Self::ACCESS_TIME);
        (self.flags() ^ flags) & locks == 0
    }

    /// Whether one of the mounts on it may not be taken away.
    fn has_locked_children(&self) -> bool {
        self.position.lock().children.iter().any(|child| child.mount.is_locked())
    }

    /// Has a copy keep what this one keeps.
    fn pass_locks(&self, copy: &Self) {
        copy.locks.store(self.locks.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// It may not be taken away.
    fn lock_in_place(&self) {
        self.locks.fetch_or(Self::LOCKED, Ordering::Relaxed);
    }

    /// It may be taken away: whoever mounts it at another place covers nothing by it that others mean.
    fn unlock(&self) {
        self.locks.fetch_and(!Self::LOCKED, Ordering::Relaxed);
    }

    /// Where it is mounted.
    #[must_use]
    pub fn at(&self) -> Option<Path> {
        self.position.lock().at.clone()
    }

    /// The namespace that it belongs to.
    fn set(&self) -> Option<Arc<MountSet>> {
        self.position.lock().set.clone()
    }

    /// Whether it belongs to this namespace.
    #[must_use]
    pub fn is_in(&self, set: &Arc<MountSet>) -> bool {
        self.position.lock().set.as_ref().is_some_and(|own| Arc::ptr_eq(own, set))
    }

    /// The mount on a place in this one.
    fn child_on(&self, entry: &Arc<Dentry>) -> Option<Arc<Mount>> {
        let position = self.position.lock();
        position.children.iter().find(|child| Arc::ptr_eq(&child.at, entry)).map(|child| child.mount.clone())
    }

    fn has_children(&self) -> bool {
        !self.position.lock().children.is_empty()
    }

    fn reserve_child(&self) -> Result<(), Errno> {
        self.position.lock().children.try_reserve(1).map_err(|_| Errno::ENOMEM)
    }

    /// Puts it on a place whose mount has room for one more.
    fn attach_reserved(self: &Arc<Self>, topology: &Topology, at: Path) {
        at.entry.add_mount();
        places::enter(topology, self, &at.entry);
        push_reserved(
            &mut at.mount.position.lock().children,
            MountedChild { at: at.entry.clone(), mount: self.clone(), is_left: false },
        );
        let before = {
            let mut position = self.position.lock();
            // Its directories have another way up now.
            count_move();
            position.at.replace(at)
        };
        debug_assert!(before.is_none());
    }

    /// Takes it from its place, which is returned.
    fn detach(self: &Arc<Self>, topology: &Topology) -> Option<Path> {
        let at = self.position.lock().at.take()?;
        places::leave(topology, self, &at.entry);
        let mut position = at.mount.position.lock();
        let index = position.children.iter().position(|child| Arc::ptr_eq(&child.mount, self));
        let child = index.map(|index| position.children.remove(index));
        drop(position);
        drop(child);
        at.entry.remove_mount();
        Some(at)
    }

    /// Leaves it on its place, of which it knows no more. The place is returned.
    fn leave_in_place(self: &Arc<Self>, topology: &Topology) -> Option<Path> {
        let at = self.position.lock().at.take()?;
        places::leave(topology, self, &at.entry);
        let mut position = at.mount.position.lock();
        if let Some(child) = position.children.iter_mut().find(|child| Arc::ptr_eq(&child.mount, self)) {
            child.is_left = true;
        }
        drop(position);
        Some(at)
    }

    /// It and all that is mounted in it, each behind the one that it is mounted in.
    fn subtree(self: &Arc<Self>, _: &Topology) -> Result<Vec<Arc<Mount>>, Errno> {
        let mut found = Vec::new();
        found.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        push_reserved(&mut found, self.clone());
        let mut next = 0;
        while let Some(mount) = found.get(next).cloned() {
            let position = mount.position.lock();
            found.try_reserve(position.children.len()).map_err(|_| Errno::ENOMEM)?;
            for child in &position.children {
                push_reserved(&mut found, child.mount.clone());
            }
            next += 1;
        }
        Ok(found)
    }

    /// For the file of a namespace, what [`crate::fs::Inode::namespace_order`] says.
    fn namespace_order(&self) -> Option<u64> {
        self.root.node.namespace_order()
    }

    /// Notes that a lookup came in.
    #[inline]
    fn note_use(&self) {
        if self.uses.load(Ordering::Relaxed) != 0 {
            self.uses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// `MNT_EXPIRE`: whether nothing but the caller's own lookup came in since it was marked; it is marked now.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.uses.swap(1, Ordering::Relaxed) == 2
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        MOUNT_COUNT.fetch_sub(1, Ordering::Relaxed);
        if let Some(set) = self.position.get_mut().set.take() {
            set.forget_one();
        }
        Tree::end_mount(&self.root);
        // Those that were left on it go one by one: a program decides how deep they lie in one another.
        let mut left = core::mem::take(&mut self.position.get_mut().children);
        while let Some(child) = left.pop() {
            child.at.remove_mount();
            let Some(mut mount) = Arc::into_inner(child.mount) else { continue };
            let inner = core::mem::take(&mut mount.position.get_mut().children);
            if left.try_reserve(inner.len()).is_ok() {
                extend_items_reserved(&mut left, inner);
            }
        }
    }
}

/// Tells `watch` of changes in any namespace.
///
/// # Errors
/// `ENOMEM`.
pub fn watch_changes(watch: &Watch, events: Events) -> Result<(), Errno> {
    CHANGED.watch(watch, events)
}

/// The root of everything as the kernel itself sees it; none before it was mounted.
#[must_use]
pub fn root() -> Option<Path> {
    ROOT.get().cloned()
}
