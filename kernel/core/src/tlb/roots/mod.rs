//! The roots of page tables that processors compose of the tables of slots.
//!
//! Every processor has a root of its own. Each entry of its lower half is for one *slot*, and leads to the table of one
//! of the programs that claim the slot, or nowhere. A program runs on any root whose entry for its slot leads to its
//! table, whatever the others lead to. So going from one program to another changes nothing where both are there, fills
//! an empty entry where one is missing, and replaces an entry only between two that claim one slot; that alone needs a
//! flush.
//!
//! # Rules
//! - Only the processor itself puts tables into its root ([`put`]), and flushes when it has replaced something.
//! - When it replaces one, it empties the rest of its root too: all its translations go, and with them its records of
//!   whom it has used, so that nobody tells it what is taken out of the others' tables. They come back one by one, each
//!   by a store.
//! - Any processor takes a table out whose program leaves ([`take_out`]), before it asks those that have used it to
//!   flush. The owner of the root may have translations from it cached until it does. The entry that stays is a
//!   *remnant*: absent for the processor, and different from an empty entry, so that the next table there is put in
//!   with a flush.
//! - When those have flushed that had it, the remnants become empty entries ([`forget`]), and the table can be
//!   released. A remnant is known by the table's address, which nothing else has until then.
//! - A program whose table leaves the roots, for good or to be looked at anew, has no identity meanwhile
//!   ([`Identity::change`]). The processor looks at the identity again after [`put`], and takes the table out itself if
//!   it was too late. One that sees the new identity puts the table in after it was taken out, so that it stays.

use crate::tlb::sync::{AtomicU64, AtomicUsize, Ordering, implied_fence};

/// The bit of an entry by which the processor follows it.
const PRESENT: u64 = 1;

/// The number by which processors know that they have a program's table in their root; 0 while that changes.
#[derive(Debug)]
pub struct Identity(AtomicUsize);

impl Identity {
    /// One with this number, which no other has or had.
    #[must_use]
    pub fn new(number: usize) -> Self {
        Self(AtomicUsize::new(number))
    }

    /// The number, 0 while it changes.
    #[inline]
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// The number for a first look, which is repeated after the processor has said that it uses the program.
    #[inline]
    #[must_use]
    pub fn glance(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Does what makes processors look anew, such as [`take_out`], and gives the next number. Processors wait for the
    /// end of it on the spot, so it must be short.
    pub fn change(&self, next: usize, work: impl FnOnce()) {
        self.0.store(0, Ordering::SeqCst);
        work();
        self.0.store(next, Ordering::SeqCst);
    }

    /// Gives the number to a program that no processor has used.
    pub fn set(&self, number: usize) {
        self.0.store(number, Ordering::SeqCst);
    }
}

/// The change of a root that a program needs to run on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// An entry that led nowhere, and from which nothing is cached.
    Add,
    /// An entry of which something may be cached: a flush is needed.
    Replace,
}

/// The change of `root` that the program needs that has `table` in `slot`.
#[inline]
#[must_use]
pub fn needed(root: &[AtomicU64], slot: usize, table: u64) -> Change {
    match root[slot].load(Ordering::SeqCst) {
        0 => Change::Add,
        found if found == table => Change::Nothing,
        _ => Change::Replace,
    }
}

/// Puts a table into this processor's own root. The program's use has been recorded before
/// ([`crate::tlb::shootdown::Shootdown::note`]), because the processor may walk the table at once.
#[inline]
pub fn put(root: &[AtomicU64], slot: usize, table: u64) {
    // An exchange, which is what x86 makes of a sequentially consistent store. loom would let a plain one come before a
    // concurrent exchange that had not seen it.
    root[slot].swap(table, Ordering::SeqCst);
    implied_fence();
}

/// Takes a table out of any processor's root, if it is there; leaves a remnant. The program has announced before that
/// it leaves.
pub fn take_out(root: &[AtomicU64], slot: usize, table: u64) -> bool {
    implied_fence();
    root[slot].compare_exchange(table, table & !PRESENT, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// Makes a table's remnant an empty entry, when the owner of the root has flushed since [`take_out`].
pub fn forget(root: &[AtomicU64], slot: usize, table: u64) {
    let _ = root[slot].compare_exchange(table & !PRESENT, 0, Ordering::SeqCst, Ordering::SeqCst);
}

/// Empties these slots of this processor's own root, which it flushes afterwards. To be called where the processor's
/// uses become void ([`crate::tlb::shootdown::Shootdown::begin_root_change`]).
pub fn clear(root: &[AtomicU64], slots: impl Iterator<Item = usize>) {
    for slot in slots {
        root[slot].store(0, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests;

#[cfg(all(test, heddle_loom))]
mod models;
