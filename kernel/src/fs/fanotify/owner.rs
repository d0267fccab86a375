//! How many groups and marks of fanotify(7) each user has.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use heddle_kernel_core::fallible::push_reserved;

use crate::error::Errno;
use crate::memory::fallible;
use crate::sync::SpinLock;

/// The most of each that a user has, as in Linux.
pub const GROUPS_MAX: usize = 128;
/// See [`GROUPS_MAX`].
pub const MARKS_MAX: usize = 8192;
/// The most users that have groups at a time.
const OWNERS_MAX: usize = 1024;

static OWNERS: SpinLock<Vec<Arc<FanOwner>>> = SpinLock::new(Vec::new());

/// A user with groups.
pub(super) struct FanOwner {
    user: u32,
    /// Changed with the list locked.
    groups: AtomicUsize,
    marks: AtomicUsize,
}

impl FanOwner {
    /// One more group of a user.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`.
    pub fn enter(user: u32) -> Result<Arc<Self>, Errno> {
        let mut owners = OWNERS.lock();
        if let Some(known) = owners.iter().find(|owner| owner.user == user) {
            if known.groups.load(Ordering::Relaxed) >= GROUPS_MAX {
                return Err(Errno::EMFILE);
            }
            known.groups.fetch_add(1, Ordering::Relaxed);
            return Ok(known.clone());
        }
        if owners.len() >= OWNERS_MAX {
            return Err(Errno::EMFILE);
        }
        owners.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let new = fallible::try_arc(Self { user, groups: AtomicUsize::new(1), marks: AtomicUsize::new(0) })?;
        push_reserved(&mut owners, new.clone());
        Ok(new)
    }

    /// A group ends.
    pub fn leave(&self) {
        let mut owners = OWNERS.lock();
        if self.groups.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let place = owners.iter().position(|owner| core::ptr::eq(&raw const **owner, self));
        let gone = place.map(|place| owners.swap_remove(place));
        drop(owners);
        drop(gone);
    }

    /// One more mark; `is_unlimited` if the group has as many as it likes.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn add_mark(&self, is_unlimited: bool) -> Result<(), Errno> {
        if self.marks.fetch_add(1, Ordering::Relaxed) < MARKS_MAX || is_unlimited {
            return Ok(());
        }
        self.remove_mark();
        Err(Errno::ENOSPC)
    }

    /// A mark is gone.
    pub fn remove_mark(&self) {
        self.marks.fetch_sub(1, Ordering::Relaxed);
    }
}
