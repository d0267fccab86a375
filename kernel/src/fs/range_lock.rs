//! Reading and writing bytes of a file at once, as POSIX asks for: who reads a range that another writes sees all of
//! the write or nothing of it, and two writes never mix.
//!
//! Most transfers are small and alone, and take no lock of a range. A small write happens under the short lock of the
//! file's contents, once its source is known to be there; a small read copies without it, and looks at a count of
//! changes afterwards. A transfer that takes several attempts, and a read that a write has overtaken, hold their range
//! of the file from their first byte to their last. While anybody does or waits for it, small transfers hold theirs
//! too, so that those on other ranges go on beside them.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use heddle_range_lock::{OwnedGuard, RangeLock, TryLockError};

use crate::error::Errno;
use crate::fs::File;
use crate::memory::counters::count;
use crate::memory::space::CpuEpoch;
use crate::memory::{counters, fallible};

type Lock = RangeLock<u64, (), CpuEpoch>;

/// The ranges of one file.
pub struct Ranges {
    /// How many transfers hold a range or wait for one. Whoever works without one looks with the lock of the contents
    /// held; whoever holds one takes that lock after having counted itself.
    users: AtomicUsize,
    changes: AtomicU64,
    /// Made for the first who needs it.
    lock: spin::Once<Arc<Lock>>,
}

impl Ranges {
    /// Nobody uses the file.
    pub const fn new() -> Self {
        Self { users: AtomicUsize::new(0), changes: AtomicU64::new(0), lock: spin::Once::new() }
    }

    /// Whether somebody holds a range or waits for one. To be asked with the lock of the contents held.
    pub fn are_used(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }

    /// How often the contents have been changed. To be read with their lock held.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// To be called before a change of the contents, with their lock held.
    pub fn begin_change(&self) {
        self.changes.store(self.changes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Whether a change has begun since then. The data read before is consistent if not.
    pub fn have_changed(&self, since: u64) -> bool {
        fence(Ordering::Acquire);
        self.changes.load(Ordering::Relaxed) != since
    }

    fn lock(&self) -> Result<&Arc<Lock>, Errno> {
        self.lock.try_call_once(|| fallible::try_arc(Lock::new()))
    }
}

/// A range of a file, held until this is dropped.
pub struct RangeGuard {
    file: Arc<dyn File>,
    range: Range<u64>,
    guard: Option<OwnedGuard<u64, (), CpuEpoch>>,
}

impl RangeGuard {
    /// Holds a range of a file that has some, once nobody holds one that it overlaps, unless both only read.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn lock(file: Arc<dyn File>, range: Range<u64>, is_shared: bool) -> Result<Self, Errno> {
        let ranges = file.ranges().ok_or(Errno::EINVAL)?;
        ranges.users.fetch_add(1, Ordering::AcqRel);
        // From here on the drop counts down.
        let mut held = Self { file: file.clone(), range: range.clone(), guard: None };
        let lock = ranges.lock()?;
        let request = || {
            let request = lock.request_owned(range.clone(), ());
            if is_shared { request.shared() } else { request }
        };
        count(&counters::FILE_RANGES);
        let guard = match request().try_lock() {
            Err(TryLockError::Conflict) => {
                count(&counters::FILE_RANGE_WAITS);
                request().lock_async().await.ok()
            }
            guard => guard.ok(),
        };
        held.guard = Some(guard.ok_or(Errno::ENOMEM)?);
        Ok(held)
    }

    /// Whether all of a range is held.
    #[must_use]
    pub const fn covers(&self, range: &Range<u64>) -> bool {
        self.range.start <= range.start && range.end <= self.range.end
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        drop(self.guard.take());
        if let Some(ranges) = self.file.ranges() {
            ranges.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
