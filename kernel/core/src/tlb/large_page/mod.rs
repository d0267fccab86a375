//! Large pages in page tables: an entry that would lead to a leaf table leads to a run of pages instead. How it is
//! shared after fork, split into the entries of a leaf table, and written to again.
//!
//! - An entry is put in by an owner of all addresses that it covers, where there was no table. Whoever owns a part
//!   splits it before changing anything of that part, whatever the change ([`split`]).
//! - After a split each page has the frame and the rights that it had. So a processor that still has the large
//!   translation uses what the small ones say, until one of these is changed. The change is flushed where the page may
//!   be cached, and a flush of one page drops the large translation that covers it.
//! - Owners of different parts may split at once: the lock bit lets one in, and the others find its table.
//! - Fork leaves the entry in both roots, without the right to store ([`share`]). The entries that lead to a large
//!   page, its *mappers*, hold one reference to each of its pages together; an entry of a leaf table has its own.
//! - A mapper that is the last, when nobody else has a reference to any of the pages, may store to all of them again
//!   ([`take_over`]); it owns one page or more, and the mapping allows stores to all. This is the one change that an
//!   owner of a part makes without a split. It is of no harm to those who forbid stores to another part meanwhile: they
//!   split before they change it, so they find either right, and take it.

use crate::tlb::leaf_table::{Entry, Tables, load, store};
use crate::tlb::sync::{AtomicU64, Ordering, spin_loop};

/// An entry that may lead to a large page.
pub trait LargeEntry: Entry {
    /// Whether it does.
    fn is_large(self) -> bool;
    /// The entry of a leaf table for the page of this number in it, with the same rights.
    fn part(self, index: usize) -> Self;
    /// The same with the right to store.
    fn with_stores(self) -> Self;
}

/// The large pages of a machine, by the addresses of their first pages.
pub trait LargePages: Tables<Entry: LargeEntry> {
    /// How many entries lead to one; exact for an owner of the only one.
    fn mappers(&self, large: u64) -> u32;
    /// Another entry leads to it, for which `table` is kept.
    fn add_mapper(&self, large: u64, table: u64);
    /// Takes the table that is kept for an entry. It may contain anything, and has one reference.
    fn take_table(&self, large: u64) -> u64;
    /// An entry no longer leads to it, whose table was taken; `true` if it was the last.
    fn drop_mapper(&self, large: u64) -> bool;
    /// The address of each page.
    fn pages(&self, large: u64) -> impl Iterator<Item = u64>;
    /// Whether only its mappers have references to its pages; exact for the only mapper.
    fn is_whole(&self, large: u64) -> bool;
    /// Frees all pages of one that is whole and has no mapper.
    fn free_whole(&self, large: u64);
}

/// Puts a leaf table in the place of an entry for a large page. A page that it covers is locked. Returns the entry that
/// is there afterwards, which is another owner's work if that was faster.
pub fn split<T: LargePages>(tables: &T, slot: &AtomicU64) -> T::Entry {
    let old = loop {
        let old = load::<T::Entry>(slot);
        if !old.is_large() {
            return old;
        }
        let locked = old.replaced().bits();
        if !old.is_replaced()
            && slot.compare_exchange(old.bits(), locked, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            break old;
        }
        spin_loop();
    };
    let large = old.address();
    let table = tables.take_table(large);
    // The only mapper leaves its references to the entries. Nobody can become another: that takes an owner of all.
    let is_only = tables.mappers(large) == 1;
    if !is_only {
        tables.pages(large).for_each(|page| tables.add_reference(page));
    }
    for (index, entry) in tables.entries(table).iter().enumerate() {
        entry.store(old.part(index).bits(), Ordering::Relaxed);
    }
    // Before anybody finds the table: owners of other parts may free the pages then, and with the first of them its
    // bookkeeping.
    if tables.drop_mapper(large) && !is_only {
        release_pages(tables, large);
    }
    let new = T::Entry::for_table(table);
    store(slot, new);
    new
}

/// Lets another root, through `to`, lead to the large page of `entry`, which `from` holds. All of it is locked in both;
/// translations of the right to store are stale. `table` is a frame with one reference.
pub fn share<T: LargePages>(tables: &T, entry: T::Entry, from: &AtomicU64, to: &AtomicU64, table: u64) {
    let shared = entry.without_stores();
    store(from, shared);
    tables.add_mapper(entry.address(), table);
    store(to, shared);
}

/// Gives an entry the right to store if nobody else has any page of its large page; `false` if somebody may have, or
/// the page is being split. A page of it is locked, and the mapping allows stores to all of it.
pub fn take_over<T: LargePages>(tables: &T, slot: &AtomicU64) -> bool {
    let old = load::<T::Entry>(slot);
    if !old.is_large() || old.is_replaced() {
        return false;
    }
    let large = old.address();
    if tables.mappers(large) != 1 || !tables.is_whole(large) {
        return false;
    }
    let new = old.with_stores().bits();
    slot.compare_exchange(old.bits(), new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Gives up what an entry for a large page held, when no translation leads there any more.
pub fn release<T: LargePages>(tables: &T, large: u64) {
    let table = tables.take_table(large);
    if tables.drop_reference(table) {
        tables.free(table);
    }
    if !tables.drop_mapper(large) {
        return;
    }
    if tables.is_whole(large) {
        tables.free_whole(large);
    } else {
        release_pages(tables, large);
    }
}

/// Gives up the references that the mappers held together.
fn release_pages<T: LargePages>(tables: &T, large: u64) {
    for page in tables.pages(large) {
        if tables.drop_reference(page) {
            tables.free(page);
        }
    }
}

#[cfg(test)]
mod machine;
#[cfg(all(test, heddle_loom))]
mod models;
#[cfg(all(test, not(heddle_loom)))]
mod tests;
