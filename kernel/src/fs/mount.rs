//! Mounts, and places: an entry as it is seen through a mount.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::dentry::{Dentry, copy_name};
use crate::fs::tree::Tree;
use crate::memory::fallible;
use crate::sync::SpinLock;

use heddle_kernel_core::fallible::{extend_items_reserved, push_reserved};

/// A tree that is visible somewhere.
pub struct Mount {
    /// Its number, as in `/proc/PID/mountinfo`.
    pub id: u32,
    /// The top of what is visible.
    pub root: Arc<Dentry>,
    /// Where it is mounted; none for the first, and for trees that are visible nowhere.
    at: SpinLock<Option<Path>>,
    /// The kind of file system: `tmpfs`, `proc`.
    pub kind: &'static str,
    /// The source that mount(2) was given.
    pub source: Box<[u8]>,
    flags: AtomicU32,
}

/// An entry as seen through a mount.
#[derive(Clone)]
pub struct Path {
    /// The mount.
    pub mount: Arc<Mount>,
    /// The entry.
    pub entry: Arc<Dentry>,
}

static MOUNTS: SpinLock<Vec<Arc<Mount>>> = SpinLock::new(Vec::new());
static NEXT_ID: AtomicU32 = AtomicU32::new(1);
static ROOT: spin::Once<Path> = spin::Once::new();

impl Mount {
    /// A mount that is not yet visible.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(root: Arc<Dentry>, kind: &'static str, source: &[u8], flags: u32) -> Result<Arc<Self>, Errno> {
        let source = copy_name(source)?;
        Tree::begin_mount(&root);
        // Dropped on failure, which counts it back.
        fallible::try_arc(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            root,
            at: SpinLock::new(None),
            kind,
            source,
            flags: AtomicU32::new(flags),
        })
    }

    /// Its root, seen through it.
    #[must_use]
    pub fn top(self: &Arc<Self>) -> Path {
        Path { mount: self.clone(), entry: self.root.clone() }
    }

    /// Whether nothing may be changed through it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.flags() & linux::MS_RDONLY != 0
    }

    /// The `MS_` flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the `MS_` flags.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Where it is mounted.
    #[must_use]
    pub fn at(&self) -> Option<Path> {
        self.at.lock().clone()
    }

    /// Makes it visible at `place`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn attach(self: &Arc<Self>, place: Path) -> Result<(), Errno> {
        let mut mounts = MOUNTS.lock();
        mounts.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        place.entry.add_mount();
        *self.at.lock() = Some(place);
        push_reserved(&mut mounts, self.clone());
        Ok(())
    }

    /// Makes it invisible.
    ///
    /// # Errors
    /// `EINVAL` (it is the root), `EBUSY` (something is mounted in it, or, unless `lazy`, it is in use).
    pub fn detach(self: &Arc<Self>, lazy: bool) -> Result<(), Errno> {
        let mut mounts = MOUNTS.lock();
        let inside = |mount: &Arc<Mount>| mount.at().is_some_and(|at| Arc::ptr_eq(&at.mount, self));
        // The table and the caller's place hold one reference each.
        if mounts.iter().any(inside) || (!lazy && Arc::strong_count(self) > 2) {
            return Err(Errno::EBUSY);
        }
        let at = self.at.lock().take().ok_or(Errno::EINVAL)?;
        at.entry.remove_mount();
        mounts.retain(|mount| !Arc::ptr_eq(mount, self));
        drop(mounts);
        drop(at);
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        Tree::end_mount(&self.root);
    }
}

/// Makes `mount` the root of everything; the first call counts.
///
/// # Errors
/// `ENOMEM`.
pub fn set_root(mount: &Arc<Mount>) -> Result<(), Errno> {
    let mut mounts = MOUNTS.lock();
    mounts.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    push_reserved(&mut mounts, mount.clone());
    ROOT.call_once(|| mount.top());
    Ok(())
}

/// The root of everything; none before it was mounted.
#[must_use]
pub fn root() -> Option<Path> {
    ROOT.get().cloned()
}

/// All visible mounts, in the order of their mounting.
///
/// # Errors
/// `ENOMEM`.
pub fn all() -> Result<Vec<Arc<Mount>>, Errno> {
    let mounts = MOUNTS.lock();
    let mut copy = Vec::new();
    copy.try_reserve_exact(mounts.len()).map_err(|_| Errno::ENOMEM)?;
    extend_items_reserved(&mut copy, mounts.iter().cloned());
    Ok(copy)
}

impl Path {
    /// The same entry through the same mount.
    #[must_use]
    pub fn is(&self, other: &Path) -> bool {
        Arc::ptr_eq(&self.mount, &other.mount) && Arc::ptr_eq(&self.entry, &other.entry)
    }

    /// The tree that is visible here: the root of what is mounted on this place, if anything is.
    #[must_use]
    pub fn covered(self) -> Path {
        let mut place = self;
        while place.entry.is_mount_point() {
            let on_top = |mount: &&Arc<Mount>| mount.at().is_some_and(|at| at.is(&place));
            let Some(mount) = MOUNTS.lock().iter().rev().find(on_top).cloned() else { break };
            place = mount.top();
        }
        place
    }

    /// The mount point that is `name` in this directory, of a file system that makes a new entry for each look at a
    /// name: a mount on one of them is to be seen by all.
    #[must_use]
    pub fn mount_point(&self, name: &[u8]) -> Option<Path> {
        let mounts = MOUNTS.lock();
        mounts.iter().rev().filter_map(|mount| mount.at()).find(|at| {
            let parent = at.entry.parent().filter(|_| Arc::ptr_eq(&at.mount, &self.mount));
            at.entry.with_name(|other| other == name)
                && parent.is_some_and(|parent| parent.is_called_as(&self.entry))
        })
    }

    /// The place from which this one hangs: for the root of a mount, where that is mounted.
    #[must_use]
    fn uncovered(self) -> Path {
        let mut place = self;
        while Arc::ptr_eq(&place.entry, &place.mount.root) {
            let Some(at) = place.mount.at() else { break };
            place = at;
        }
        place
    }

    /// The directory above, for someone whose root is `root`.
    #[must_use]
    pub fn parent(&self, root: &Path) -> Path {
        if self.is(root) {
            return self.clone();
        }
        let place = self.clone().uncovered();
        // Above the root of the topmost mount there is only itself.
        match place.entry.parent() {
            Some(entry) if !Arc::ptr_eq(&place.entry, &place.mount.root) => {
                Path { mount: place.mount, entry }.covered()
            }
            _ => self.clone(),
        }
    }

    /// Whether it is `root` or somewhere below it.
    #[must_use]
    pub fn is_at_or_below(&self, root: &Path) -> bool {
        let mut place = self.clone();
        while !place.is(root) {
            let above = place.parent(root);
            if above.is(&place) {
                return false;
            }
            place = above;
        }
        true
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
            place = place.uncovered();
            if place.is(root) {
                break;
            }
            let Some(parent) = place.entry.parent() else {
                // An object without a place in any directory shows its own name, say `pipe:[7]`.
                place.entry.with_name(|name| push_reversed(&mut path, name))?;
                if depth > 0 && !is_topmost(&place) {
                    push_reversed(&mut path, b"(unreachable)")?;
                }
                depth += usize::from(!place.entry.with_name(<[u8]>::is_empty));
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

fn push_reversed(path: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Errno> {
    path.try_reserve(bytes.len()).map_err(|_| Errno::ENOMEM)?;
    extend_items_reserved(path, bytes.iter().rev().copied());
    Ok(())
}

fn is_topmost(place: &Path) -> bool {
    ROOT.get().is_some_and(|root| Arc::ptr_eq(&root.mount, &place.mount))
}
