//! Levels that are lent outside of locks: a thread that waits for what another one does is as urgent to that one as
//! a waiter for one of its locks ([`super::pi`]).
//!
//! The object at which a thread waits knows whom it awaits: the client of a connection awaits the thread that accepted
//! it, or received from it last; the reader of a pipe the thread of the same user that wrote to it last, and its writer
//! the one that read. A server that waits for requests lends its clients nothing: it accepted, and did not choose who
//! connects. Only realtime threads lend, as they do for locks, and what runs at a lent level counts as realtime.
//!
//! The level that a thread is lent is worked out anew from the ranks that the donors before it have of their own, or
//! from locks, so that threads which wait for each other in a circle do not keep a level that nobody lends any more.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::process::futex::pi;
use crate::process::{Thread, table};
use crate::wait::node::{AwaitedThread, WaitNode, set_take_back};

use heddle_kernel_core::fallible::push_reserved;

/// More donations than this at once are not made: the threads of a machine are worked through in one go.
const DONATIONS_MAX: usize = 64;

/// A wait that lends its thread's level, until it is dropped.
pub struct Donation(Arc<Thread>);

impl Donation {
    /// The thread waits for `awaited`; `None` where it lends nothing.
    #[inline(never)]
    pub fn begin(donor: &Arc<Thread>, awaited: AwaitedThread) -> Option<Self> {
        let server = table::thread(awaited.mark.tid())?;
        if server.mark() != awaited.mark || Arc::ptr_eq(&server, donor) {
            return None;
        }
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

/// The donor that waits with this node is woken: what it has lent goes back at once, as the server may go on computing.
fn donor_is_woken(node: &WaitNode) {
    pi::with_locks(|locks| {
        if let Some(server) = locks.donations.end(node) {
            locks.settle(server);
        }
        // The donor may have lent anew since the wake, which has ended that too.
        node.set_lends(false);
    });
}

/// Prepares for donations.
pub fn initialize() {
    set_take_back(donor_is_woken);
}

impl Drop for Donation {
    fn drop(&mut self) {
        let ended = pi::with_locks(|locks| {
            self.0.node().set_lends(false);
            let ended = locks.donations.remove(&self.0);
            if let Some(loan) = &ended {
                locks.settle(loan.server.clone());
            }
            ended
        });
        drop(ended);
    }
}

/// All donations: each thread waits once, and so is the donor of one at most.
pub(super) struct Donations(Vec<Loan>);

struct Loan {
    donor: Arc<Thread>,
    server: Arc<Thread>,
    /// Not after the donor has been woken. Then nothing may be freed, so that the record stays until the wait ends.
    is_lent: bool,
}

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
            push_reserved(&mut self.0, Loan { donor: donor.clone(), server: server.clone(), is_lent: true });
            donor.node().set_lends(true);
        }
        has_room
    }

    fn remove(&mut self, donor: &Arc<Thread>) -> Option<Loan> {
        let at = self.0.iter().position(|loan| Arc::ptr_eq(&loan.donor, donor))?;
        Some(self.0.swap_remove(at))
    }

    /// Takes back what the donor with this node has lent. Returns to whom.
    fn end(&mut self, node: &WaitNode) -> Option<Arc<Thread>> {
        let is_it = |loan: &&mut Loan| core::ptr::eq(Arc::as_ptr(loan.donor.node()), node);
        let loan = self.0.iter_mut().find(is_it)?;
        loan.is_lent = false;
        Some(loan.server.clone())
    }

    /// Whom a thread awaits.
    pub(super) fn server_of(&self, donor: &Arc<Thread>) -> Option<Arc<Thread>> {
        let loan = self.0.iter().find(|loan| loan.is_lent && Arc::ptr_eq(&loan.donor, donor));
        loan.map(|loan| loan.server.clone())
    }

    /// The donations for a thread, a bit each.
    fn to(&self, server: &Arc<Thread>) -> u64 {
        let is_to = |loan: &Loan| loan.is_lent && Arc::ptr_eq(&loan.server, server);
        self.0
            .iter()
            .enumerate()
            .filter(|(_, loan)| is_to(loan))
            .fold(0, |set, (number, _)| set | 1 << number)
    }

    /// The rank of the most urgent thread that waits for this one, along whatever chain.
    pub(super) fn rank_for(&self, server: &Arc<Thread>) -> Option<u8> {
        let (mut left, mut seen, mut best) = (self.to(server), 0, None);
        while left != 0 {
            let number = left.trailing_zeros();
            seen |= 1 << number;
            let donor = &self.0.get(number as usize)?.donor;
            let rank = donor.own_rank().min(donor.rank_by_locks());
            best = Some(best.map_or(rank, |best: u8| best.min(rank)));
            left = (left | self.to(donor)) & !seen;
        }
        best
    }
}
