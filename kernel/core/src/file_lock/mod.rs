//! Advisory locks on byte ranges of a file, as fcntl(2) defines them.
//!
//! A table holds the locks of one file. An owner's locks never overlap one another: setting a range replaces what the
//! owner held there, splits what sticks out and joins what touches and is of the same kind. The caller keeps the
//! waiters for a lock, and finds cycles among them.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::fallible::push_reserved;

pub use crate::OutOfMemory;

/// Bytes `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub first: u64,
    /// The last byte; `u64::MAX` stands for whatever the file may grow to.
    pub last: u64,
}

impl ByteRange {
    /// Every byte.
    pub const ALL: Self = Self { first: 0, last: u64::MAX };

    const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    const fn touches(self, other: Self) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Others may hold shared locks too.
    Shared,
    /// No other owner may hold a lock.
    Exclusive,
}

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock<O> {
    /// The owner.
    pub owner: O,
    /// The range it covers.
    pub range: ByteRange,
    /// Its kind.
    pub kind: LockKind,
}

/// The locks on one file.
#[derive(Debug)]
pub struct Table<O> {
    locks: Vec<Lock<O>>,
}

impl<O> Default for Table<O> {
    fn default() -> Self {
        Self::new()
    }
}

impl<O> Table<O> {
    /// No locks; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { locks: Vec::new() }
    }
}

impl<O: Copy + PartialEq> Table<O> {
    /// Whether no lock is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// The lock of another owner that keeps `owner` from taking this one; of several the one that starts first.
    #[must_use]
    pub fn conflict(&self, owner: O, range: ByteRange, kind: LockKind) -> Option<Lock<O>> {
        let exclusive = |lock: &Lock<O>| kind == LockKind::Exclusive || lock.kind == LockKind::Exclusive;
        self.locks
            .iter()
            .filter(|lock| lock.owner != owner && lock.range.overlaps(range) && exclusive(lock))
            .min_by_key(|lock| lock.range.first)
            .copied()
    }

    /// Gives `owner` a lock of this kind on the range, or with `None` takes away what it holds there. The caller
    /// has made sure that there is no [conflict](Table::conflict).
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing has changed then.
    pub fn set(&mut self, owner: O, range: ByteRange, kind: Option<LockKind>) -> Result<(), OutOfMemory> {
        // At most one lock is split in two, and one is added.
        self.locks.try_reserve(2).map_err(|_| OutOfMemory)?;
        let mut joined = range;
        let mut index = 0;
        while let Some(&lock) = self.locks.get(index) {
            let same = lock.owner == owner;
            if same && Some(lock.kind) == kind && lock.range.touches(range) {
                joined.first = joined.first.min(lock.range.first);
                joined.last = joined.last.max(lock.range.last);
                self.locks.swap_remove(index);
            } else if same && lock.range.overlaps(range) {
                self.locks.swap_remove(index);
                // The part outside of the range stays. It goes to the end of the vector and is met again there, without
                // overlap.
                if lock.range.first < range.first {
                    let range = ByteRange { first: lock.range.first, last: range.first - 1 };
                    push_reserved(&mut self.locks, Lock { range, ..lock });
                }
                if lock.range.last > range.last {
                    let range = ByteRange { first: range.last + 1, last: lock.range.last };
                    push_reserved(&mut self.locks, Lock { range, ..lock });
                }
            } else {
                index += 1;
            }
        }
        if let Some(kind) = kind {
            push_reserved(&mut self.locks, Lock { owner, range: joined, kind });
        }
        if self.locks.is_empty() {
            self.locks = Vec::new();
        }
        Ok(())
    }

    /// Takes away everything `owner` holds; says whether that was anything.
    pub fn release(&mut self, owner: O) -> bool {
        let before = self.locks.len();
        self.locks.retain(|lock| lock.owner != owner);
        let after = self.locks.len();
        if after == 0 {
            self.locks = Vec::new();
        }
        after < before
    }
}
