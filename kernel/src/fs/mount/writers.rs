//! Files that are open to be written: while there are some, mount and file system do not become read-only.
//!
//! Whoever opens counts first and looks at the flags then; whoever makes something read-only sets the flag first and
//! looks at the count then. So one of the two sees the other, and both may: then both fail.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::mount::{Mount, Superblock, Topology};

use heddle_kernel_core::fallible::push_reserved;

/// How many files are open to be written.
pub(super) struct Writers(AtomicU32);

impl Writers {
    pub const fn none() -> Self {
        Self(AtomicU32::new(0))
    }

    fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

const fn turns(before: u32, after: u32) -> bool {
    after & !before & linux::MS_RDONLY != 0
}

impl Superblock {
    /// Changes its `MS_` flags, while nobody else does.
    ///
    /// # Errors
    /// `EBUSY`: it was to be read-only, and a file is open to be written.
    pub fn change_flags(&self, _: &Topology, flags: u32) -> Result<(), Errno> {
        let before = self.flags();
        let turns = turns(before, flags);
        if turns && self.writers.is_any() {
            return Err(Errno::EBUSY);
        }
        self.set_flags(flags);
        fence(Ordering::SeqCst);
        if turns && self.writers.is_any() {
            self.set_flags(before);
            return Err(Errno::EBUSY);
        }
        Ok(())
    }
}

impl Mount {
    /// Counts a file that is open to be written; the caller looks whether the mount is read-only afterwards.
    pub fn begin_writing(&self) {
        self.writers.begin();
        self.file_system.writers.begin();
        fence(Ordering::SeqCst);
    }

    /// The file is closed.
    pub fn end_writing(&self) {
        self.writers.end();
        self.file_system.writers.end();
    }
}

/// Makes those of `mounts` read-only for which `flags` asks that: all, or none.
///
/// # Errors
/// `EBUSY` (a file is open to be written through one), `ENOMEM`.
pub(super) fn make_read_only(
    _: &Topology,
    mounts: &[Arc<Mount>],
    flags: impl Fn(u32) -> u32,
) -> Result<(), Errno> {
    let mut turning: Vec<&Mount> = Vec::new();
    turning.try_reserve_exact(mounts.len()).map_err(|_| Errno::ENOMEM)?;
    for mount in mounts.iter().filter(|mount| turns(mount.flags(), flags(mount.flags()))) {
        push_reserved(&mut turning, mount);
    }
    if turning.iter().any(|mount| mount.writers.is_any()) {
        return Err(Errno::EBUSY);
    }
    turning.iter().for_each(|mount| mount.set_flags(mount.flags() | linux::MS_RDONLY));
    fence(Ordering::SeqCst);
    if turning.iter().any(|mount| mount.writers.is_any()) {
        turning.iter().for_each(|mount| mount.set_flags(mount.flags() & !linux::MS_RDONLY));
        return Err(Errno::EBUSY);
    }
    Ok(())
}
