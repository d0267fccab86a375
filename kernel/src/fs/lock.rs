//! Advisory locks of files: `fcntl` locks of processes, those of open file descriptions, and `flock`.

use heddle_kernel_core::file_lock::{ByteRange, Lock, LockKind, Table};

use crate::error::Errno;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue, Watch};

/// Whose a byte-range lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOwner {
    /// A process, by its number: `F_SETLK`.
    Process(i32),
    /// An open file description, by its number: `F_OFD_SETLK`.
    Description(u64),
}

/// The locks on one file.
pub struct FileLocks {
    tables: SpinLock<LockTables>,
    released: WaitQueue,
}

struct LockTables {
    ranges: Table<LockOwner>,
    /// `flock` locks cover the whole file and don't meet the others.
    whole: Table<u64>,
}

impl Default for FileLocks {
    fn default() -> Self {
        Self::new()
    }
}

impl FileLocks {
    /// No locks.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            tables: SpinLock::new(LockTables { ranges: Table::new(), whole: Table::new() }),
            released: WaitQueue::new(),
        }
    }

    /// The lock that keeps `owner` from this one.
    #[must_use]
    pub fn conflict(&self, owner: LockOwner, range: ByteRange, kind: LockKind) -> Option<Lock<LockOwner>> {
        self.tables.lock().ranges.conflict(owner, range, kind)
    }

    /// Sets or (with `None`) takes away a byte-range lock; false if somebody else's is in the way. A watch is
    /// registered first and is notified when a lock goes.
    ///
    /// # Errors
    /// `ENOLCK`, `ENOMEM`.
    pub fn set(
        &self,
        owner: LockOwner,
        range: ByteRange,
        kind: Option<LockKind>,
        watch: Option<&Watch>,
    ) -> Result<bool, Errno> {
        self.watch(watch)?;
        let mut tables = self.tables.lock();
        if kind.is_some_and(|kind| tables.ranges.conflict(owner, range, kind).is_some()) {
            return Ok(false);
        }
        tables.ranges.set(owner, range, kind).map_err(|_| Errno::ENOLCK)?;
        drop(tables);
        // A lock that became shared lets others in, too.
        self.released.wake(Events::IN);
        Ok(true)
    }

    /// Sets or takes away a `flock` lock.
    ///
    /// # Errors
    /// As [`FileLocks::set`].
    pub fn set_whole(
        &self,
        description: u64,
        kind: Option<LockKind>,
        watch: Option<&Watch>,
    ) -> Result<bool, Errno> {
        self.watch(watch)?;
        let mut tables = self.tables.lock();
        let range = ByteRange::ALL;
        if kind.is_some_and(|kind| tables.whole.conflict(description, range, kind).is_some()) {
            // A lock of another kind is given up before the new one is waited for, so that two holders that both want
            // more don't wait for each other.
            let is_released = tables.whole.release(description);
            drop(tables);
            if is_released {
                self.released.wake(Events::IN);
            }
            return Ok(false);
        }
        tables.whole.set(description, range, kind).map_err(|_| Errno::ENOLCK)?;
        drop(tables);
        self.released.wake(Events::IN);
        Ok(true)
    }

    /// Takes away what an open file description holds.
    pub fn release_description(&self, description: u64) {
        let mut tables = self.tables.lock();
        if tables.whole.is_empty() && tables.ranges.is_empty() {
            return;
        }
        let released =
            tables.whole.release(description) | tables.ranges.release(LockOwner::Description(description));
        drop(tables);
        if released {
            self.released.wake(Events::IN);
        }
    }

    /// Takes away what a process holds: when it closes any descriptor of the file, or ends.
    pub fn release_process(&self, pid: i32) {
        let mut tables = self.tables.lock();
        let released = !tables.ranges.is_empty() && tables.ranges.release(LockOwner::Process(pid));
        drop(tables);
        if released {
            self.released.wake(Events::IN);
        }
    }

    fn watch(&self, watch: Option<&Watch>) -> Result<(), Errno> {
        watch.map_or(Ok(()), |watch| self.released.watch(watch, Events::IN))
    }
}
