//! Free slots that belong to no core: a lock-free stack of batches.
//!
//! A batch is a list of free slots linked through `next`; batches are linked through their first slots' `inbox_next`.
//! The head carries a tag against ABA, because slots come back.

use super::Table;
use crate::sync::{AtomicU64, Ordering, maybe_const};

/// A stack of batches of free slots: `tag << 32 | first slot of the first batch`.
pub struct Batches(AtomicU64);

impl Batches {
    maybe_const! {
        /// An empty stack.
        pub fn new() -> Batches {
            Batches(AtomicU64::new(0))
        }
    }

    /// Takes a batch: the index of its first slot. Nobody else knows its slots then.
    pub fn take(&self, table: &impl Table) -> Option<u32> {
        // Acquire: the links that the giver wrote.
        let mut head = self.0.load(Ordering::Acquire);
        while let Some(slot) = if head as u32 == 0 { None } else { table.slot(head as u32) } {
            // The link may be stale if another took the batch meanwhile; then the tag differs and the exchange fails.
            let next = (head >> 32).wrapping_add(1) << 32 | slot.inbox_next.load(Ordering::Relaxed) as u64;
            match self.0.compare_exchange_weak(head, next, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => return Some(head as u32),
                Err(now) => head = now,
            }
        }
        None
    }

    /// Gives a batch of slots that only the caller knows.
    pub fn put(&self, table: &impl Table, first: u32) {
        let Some(slot) = table.slot(first) else { return };
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            slot.inbox_next.store(head as u32, Ordering::Relaxed);
            let next = (head >> 32).wrapping_add(1) << 32 | first as u64;
            match self.0.compare_exchange_weak(head, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

impl Default for Batches {
    fn default() -> Batches {
        Batches::new()
    }
}
