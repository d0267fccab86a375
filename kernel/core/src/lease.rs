//! Leases on a file: `F_SETLEASE` of fcntl(2).
//!
//! A lease belongs to an open file description and says that nobody else uses the file (`F_WRLCK`), or that nobody
//! writes to it (`F_RDLCK`). Whoever opens the file otherwise *breaks* the leases in the way: their holders are told,
//! and have until a moment to give them up or to take less. After that moment the kernel does so for them.
//!
//! The caller counts who has the file open, tells the holders, keeps those who wait, and asks often enough what has
//! expired.

use alloc::vec::Vec;

use crate::OutOfMemory;
use crate::fallible::push_reserved;

/// Leases that a file has at most, so that looking at all of them is a bounded amount of work.
pub const LEASES_MAX: usize = 1024;

/// The promise of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// Nobody opens the file for writing unnoticed.
    Read,
    /// Nobody opens the file unnoticed.
    Write,
}

/// The users of a file at the moment, its open descriptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Openers {
    /// Those that may write; negative where programs run from the file.
    pub writers: i32,
    /// Those that may only read.
    pub readers: u32,
}

impl Openers {
    /// Whether others than the lease's own description (which may write, or read only) keep a lease away.
    #[must_use]
    pub const fn conflict(self, kind: LeaseKind, own_writes: bool) -> bool {
        match kind {
            LeaseKind::Read => self.writers > 0,
            LeaseKind::Write => self.writers != own_writes as i32 || self.readers != !own_writes as u32,
        }
    }
}

/// The reasons why a lease is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Other leases are in the way.
    Conflict,
    /// There are too many.
    TooMany,
    /// There is no memory.
    OutOfMemory,
}

impl From<OutOfMemory> for Refused {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

#[derive(Debug)]
struct Lease<H> {
    description: u64,
    kind: LeaseKind,
    /// When it becomes a read lease, or goes, at the latest: since it was broken.
    shared_by_ns: Option<u64>,
    gone_by_ns: Option<u64>,
    holder: H,
}

impl<H> Lease<H> {
    const fn is_in_the_way(&self, writes: bool) -> bool {
        writes || matches!(self.kind, LeaseKind::Write)
    }
}

/// The leases on one file; `H` is how a holder is told.
#[derive(Debug)]
pub struct Leases<H>(Vec<Lease<H>>);

impl<H> Default for Leases<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H> Leases<H> {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Gives a lease to an open file description, or changes the one that it has. Returns whether it is a new one.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn set(&mut self, description: u64, kind: LeaseKind, holder: H) -> Result<bool, Refused> {
        for other in self.0.iter().filter(|lease| lease.description != description) {
            if kind == LeaseKind::Write || other.gone_by_ns.is_some() {
                return Err(Refused::Conflict);
            }
        }
        if let Some(own) = self.0.iter_mut().find(|lease| lease.description == description) {
            own.kind = kind;
            if kind == LeaseKind::Read {
                own.shared_by_ns = None;
            }
            return Ok(false);
        }
        if self.0.len() >= LEASES_MAX {
            return Err(Refused::TooMany);
        }
        self.0.try_reserve(1).map_err(|_| OutOfMemory)?;
        let lease = Lease { description, kind, shared_by_ns: None, gone_by_ns: None, holder };
        push_reserved(&mut self.0, lease);
        Ok(true)
    }

    /// Takes a description's lease away.
    pub fn remove(&mut self, description: u64) -> Option<H> {
        let place = self.0.iter().position(|lease| lease.description == description)?;
        Some(self.0.remove(place).holder)
    }

    /// The lease that a description has, or what it is to become if it is being broken.
    #[must_use]
    pub fn of(&self, description: u64) -> Option<LeaseKind> {
        let lease = self.0.iter().find(|lease| lease.description == description)?;
        match lease {
            Lease { gone_by_ns: Some(_), .. } => None,
            Lease { shared_by_ns: Some(_), .. } => Some(LeaseKind::Read),
            lease => Some(lease.kind),
        }
    }

    /// Whether leases are in the way of an opening that may write, or one that only reads.
    #[must_use]
    pub fn conflict(&self, writes: bool) -> bool {
        self.0.iter().any(|lease| lease.is_in_the_way(writes))
    }

    /// Breaks a lease that is in the way and was not broken before; it is kept until `until_ns`. Returns its holder,
    /// who is to be told, or nothing if there is no such lease.
    pub fn break_one(&mut self, writes: bool, until_ns: u64) -> Option<&H> {
        let is_whole = |lease: &&mut Lease<H>| {
            let is_broken = if writes {
                lease.gone_by_ns.is_some()
            } else {
                lease.gone_by_ns.is_some() || lease.shared_by_ns.is_some()
            };
            lease.is_in_the_way(writes) && !is_broken
        };
        let lease = self.0.iter_mut().find(is_whole)?;
        let until = if writes { &mut lease.gone_by_ns } else { &mut lease.shared_by_ns };
        *until = Some(until_ns);
        Some(&lease.holder)
    }

    /// The first moment at which a lease that is being broken changes by itself.
    #[must_use]
    pub fn next_expiry_ns(&self) -> Option<u64> {
        self.0.iter().flat_map(|lease| [lease.shared_by_ns, lease.gone_by_ns]).flatten().min()
    }

    /// Lessens what has expired, and takes one lease away whose time is over. Returns its holder.
    pub fn expire_one(&mut self, now_ns: u64) -> Option<H> {
        let is_over = |moment: Option<u64>| moment.is_some_and(|moment| moment <= now_ns);
        for lease in &mut self.0 {
            if is_over(lease.shared_by_ns) {
                (lease.kind, lease.shared_by_ns) = (LeaseKind::Read, None);
            }
        }
        let place = self.0.iter().position(|lease| is_over(lease.gone_by_ns))?;
        Some(self.0.remove(place).holder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: LeaseKind = LeaseKind::Read;
    const WRITE: LeaseKind = LeaseKind::Write;

    #[test]
    fn a_write_lease_is_alone() {
        let mut leases = Leases::new();
        assert_eq!(leases.set(1, READ, ()), Ok(true));
        assert_eq!(leases.set(2, READ, ()), Ok(true));
        assert_eq!(leases.set(2, WRITE, ()), Err(Refused::Conflict));
        assert!(leases.remove(1).is_some() && leases.remove(1).is_none());
        assert_eq!(leases.set(2, WRITE, ()), Ok(false));
        assert_eq!(leases.of(2), Some(WRITE));
        assert!(leases.conflict(false));
    }

    #[test]
    fn readers_leave_read_leases() {
        let mut leases = Leases::new();
        leases.set(1, READ, ()).unwrap();
        assert!(!leases.conflict(false) && leases.conflict(true));
        assert!(leases.break_one(false, 10).is_none());
        assert!(leases.break_one(true, 10).is_some() && leases.break_one(true, 10).is_none());
        assert_eq!(leases.of(1), None);
        assert_eq!(leases.set(2, READ, ()), Err(Refused::Conflict));
        assert!(leases.expire_one(9).is_none() && leases.expire_one(10).is_some());
        assert!(!leases.conflict(true));
    }

    #[test]
    fn a_broken_write_lease_becomes_one_to_read() {
        let mut leases = Leases::new();
        leases.set(1, WRITE, ()).unwrap();
        assert!(leases.break_one(false, 10).is_some() && leases.break_one(false, 10).is_none());
        assert_eq!((leases.of(1), leases.next_expiry_ns()), (Some(READ), Some(10)));
        // A writer wants more.
        assert!(leases.break_one(true, 20).is_some());
        assert_eq!(leases.of(1), None);
        assert!(leases.expire_one(10).is_none());
        assert!(!leases.conflict(false) && leases.conflict(true));
        assert!(leases.expire_one(20).is_some());
        // A holder that takes less is done with a reader.
        leases.set(1, WRITE, ()).unwrap();
        leases.break_one(false, 30);
        assert_eq!(leases.set(1, READ, ()), Ok(false));
        assert_eq!((leases.conflict(false), leases.next_expiry_ns()), (false, None));
    }

    #[test]
    fn openers_keep_leases_away() {
        let alone = Openers { writers: 0, readers: 1 };
        assert!(!alone.conflict(READ, false) && !alone.conflict(WRITE, false));
        let writer = Openers { writers: 1, readers: 0 };
        assert!(writer.conflict(READ, true) && !writer.conflict(WRITE, true));
        let run = Openers { writers: -1, readers: 1 };
        assert!(!run.conflict(READ, false) && run.conflict(WRITE, false));
        assert!(Openers { writers: 0, readers: 2 }.conflict(WRITE, false));
    }

    #[test]
    fn there_is_a_limit() {
        let mut leases = Leases::new();
        for description in 0..LEASES_MAX as u64 {
            leases.set(description, READ, ()).unwrap();
        }
        assert_eq!(leases.set(LEASES_MAX as u64, READ, ()), Err(Refused::TooMany));
    }
}
