//! Levels that are lent outside of locks: a thread that waits for what another one does is as urgent to that one as
//! a waiter for one of its locks ([`super::pi`]).
//!
//! Who is awaited, the object knows that is waited at: the client of a connection awaits the thread that accepted it, or
//! received from it last; the reader of a pipe the thread of the same user that wrote to it last, and its writer the one
//! that read. A server is lent nothing by the wait for its clients' next requests: whoever accepted did not choose who
//! connects. Only realtime threads lend, as they do for locks, and what runs at a lent level counts as realtime.
//!
//! What a thread is lent is worked out anew from the ranks that the donors before it have of their own, or from locks,
//! so that threads which wait for each other in a circle do not keep a level that nobody lends any more.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::process::futex::pi;
use crate::process::{Thread, table};
use crate::wait::node::AwaitedThread;

use heddle_kernel_core::fallible::push_reserved;

/// More donations than this at once are not made: the threads of a machine are worked through in one go.
const DONATIONS_MAX: usize = 64;

/// A wait that lends its thread's level, until it is dropped.
pub struct Donation(Arc<Thread>);

impl Donation {
    /// The thread waits for `awaited`; `None` where it lends nothing.
    #[inline(never)]
    pub fn begin(donor: &Arc<Thread>, awaited: AwaitedThread) -> Option<Self> {
        let server = table::thread(awaited.tid).filter(|server| !Arc::ptr_eq(server, donor))?;
        if !awaited.is_chosen && server.credentials().uid != donor.credentials().uid {
            return None;
        }
        let is_made = pi::with_locks(|locks| {
            let is_made = locks.donations.add(donor, &server);
            if is_made {
                locks.settle(server);
            }
            is_made
        });
        is_made.then(|| Self(donor.clone()))
    }
}

impl Drop for Donation {
    fn drop(&mut self) {
        let ended = pi::with_locks(|locks| {
            let ended = locks.donations.remove(&self.0);
            if let Some((_, server)) = &ended {
                locks.settle(server.clone());
            }
            ended
        });
        drop(ended);
    }
}

/// All donations: each thread waits once, and so is the donor of one at most.
pub(super) struct Donations(Vec<(Arc<Thread>, Arc<Thread>)>);

impl Donations {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) const fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether there is room for it.
    fn add(&mut self, donor: &Arc<Thread>, server: &Arc<Thread>) -> bool {
        let has_room = self.0.len() < DONATIONS_MAX && self.0.try_reserve(1).is_ok();
        if has_room {
            push_reserved(&mut self.0, (donor.clone(), server.clone()));
        }
        has_room
    }

    fn remove(&mut self, donor: &Arc<Thread>) -> Option<(Arc<Thread>, Arc<Thread>)> {
        let at = self.0.iter().position(|(other, _)| Arc::ptr_eq(other, donor))?;
        Some(self.0.swap_remove(at))
    }

    /// Whom a thread awaits.
    pub(super) fn server_of(&self, donor: &Arc<Thread>) -> Option<Arc<Thread>> {
        self.0.iter().find(|(other, _)| Arc::ptr_eq(other, donor)).map(|(_, server)| server.clone())
    }

    /// The donations for a thread, a bit each.
    fn to(&self, server: &Arc<Thread>) -> u64 {
        let is_it = |(number, (_, other)): (usize, &(_, Arc<Thread>))| {
            if Arc::ptr_eq(other, server) { 1 << number } else { 0 }
        };
        self.0.iter().enumerate().map(is_it).sum()
    }

    /// The rank of the most urgent thread that waits for this one, along whatever chain; `from_locks` is what a donor is
    /// lent by those who wait for its locks.
    pub(super) fn rank_for(
        &self,
        server: &Arc<Thread>,
        from_locks: impl Fn(&Arc<Thread>) -> Option<u8>,
    ) -> Option<u8> {
        let (mut left, mut seen, mut best) = (self.to(server), 0, None);
        while left != 0 {
            let number = left.trailing_zeros();
            seen |= 1 << number;
            let (donor, _) = self.0.get(number as usize)?;
            let ranks = [Some(donor.own_rank()), from_locks(donor), best];
            best = ranks.into_iter().flatten().min();
            left = (left | self.to(donor)) & !seen;
        }
        best
    }
}
