//! Where a thread's paths start.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::Path;
use crate::sync::SpinLock;

/// Root, working directory and file creation mask, shared by the threads that `CLONE_FS` joins.
pub struct Directories {
    /// Root, then working directory.
    places: SpinLock<(Path, Path)>,
    umask: AtomicU32,
    /// The number of threads that use them.
    users: AtomicU32,
}

impl Directories {
    /// The directories of the first program: the root of everything, and a mask that denies writing to others.
    #[must_use]
    pub fn new(root: Path) -> Self {
        Self {
            places: SpinLock::new((root.clone(), root)),
            umask: AtomicU32::new(0o022),
            users: AtomicU32::new(0),
        }
    }

    /// A copy, for a `clone` without `CLONE_FS`.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let (places, umask) = (self.places.lock().clone(), self.umask());
        Self { places: SpinLock::new(places), umask: AtomicU32::new(umask), users: AtomicU32::new(0) }
    }

    /// Counts a thread that uses them.
    pub fn attach(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a thread less.
    pub fn detach(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether several threads use them.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 1
    }

    /// Puts `new` in the place of `old`, where root or working directory is that.
    pub fn replace(&self, old: &Path, new: &Path) {
        let mut places = self.places.lock();
        let before = places.clone();
        if places.0.is(old) {
            places.0 = new.clone();
        }
        if places.1.is(old) {
            places.1 = new.clone();
        }
        drop(places);
        drop(before);
    }

    /// Where absolute paths start, and above which nothing is seen.
    #[must_use]
    pub fn root(&self) -> Path {
        self.places.lock().0.clone()
    }

    /// Where relative paths start.
    #[must_use]
    pub fn working(&self) -> Path {
        self.places.lock().1.clone()
    }

    /// Changes the root.
    pub fn set_root(&self, place: Path) {
        let old = core::mem::replace(&mut self.places.lock().0, place);
        drop(old);
    }

    /// Changes the working directory.
    pub fn set_working(&self, place: Path) {
        let old = core::mem::replace(&mut self.places.lock().1, place);
        drop(old);
    }

    /// The permission bits that new files don't get.
    #[must_use]
    pub fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    /// Sets the mask and returns the old one.
    pub fn set_umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }
}
