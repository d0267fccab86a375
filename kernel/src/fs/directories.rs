//! Where a thread's paths start.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::Path;
use crate::sync::SpinLock;

/// Root, working directory and file creation mask, shared by the threads that `CLONE_FS` joins.
pub struct Directories {
    /// Root, then working directory.
    places: SpinLock<(Path, Path)>,
    umask: AtomicU32,
}

impl Directories {
    /// The directories of the first program: the root of everything, and a mask that denies writing to others.
    #[must_use]
    pub fn new(root: Path) -> Self {
        Self { places: SpinLock::new((root.clone(), root)), umask: AtomicU32::new(0o022) }
    }

    /// A copy, for a `clone` without `CLONE_FS`.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        Self { places: SpinLock::new(self.places.lock().clone()), umask: AtomicU32::new(self.umask()) }
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
