//! Leaf tables that several roots share after fork: the right to change them, and when a table has a single owner
//! again.
//!
//! After fork both roots lead to one leaf table, by entries without the right to store; the table's frame counts the
//! roots. The owner of a page's range lock in one root may look at the page's entry ([`look`]), and makes the table its
//! root's own before changing one ([`own`]): by a copy, or, when all other roots have left the table, as it is.
//!
//! - The entries of a shared table don't change, with one exception: an owner that copies the table takes the right to
//!   store from both copies. Every copier does the same, so they need no order among themselves.
//! - Owners of different pages of one root may want the table at once: the lock bit in the root's entry lets one in,
//!   and the others find the result.
//! - A table that is left is released when no translation leads to it any more, and its references to pages go with the
//!   last root ([`release`]). A root that finds itself the only one sees what the others did before they left.
//! - [`look`] takes no lock, so the table may be copied meanwhile, and even be released and used for something else.
//!   The root's entry has changed then, and it can't change back while the page is locked: fork and removal of whole
//!   tables lock all pages.

use crate::tlb::sync::{AtomicU64, Ordering, spin_loop};

/// How many entries are looked at together: tables are mostly empty.
pub const GROUP: usize = if cfg!(heddle_loom) { 2 } else { 8 };

/// An entry of a page table, in the processor's form.
pub trait Entry: Copy + PartialEq {
    /// The entry of some bits.
    fn from_bits(bits: u64) -> Self;
    /// The bits.
    fn bits(self) -> u64;
    /// An entry for a table.
    fn for_table(physical: u64) -> Self;
    /// The physical address of the page or table.
    fn address(self) -> u64;
    /// Whether it leads to something.
    fn is_occupied(self) -> bool;
    /// Whether it allows stores.
    fn allows_stores(self) -> bool;
    /// The same without the right to store.
    fn without_stores(self) -> Self;
    /// Whether it holds a reference to its page.
    fn holds_reference(self) -> bool;
    /// Whether fork leaves its right to store.
    fn keeps_stores(self) -> bool;
    /// Whether the table behind it is being replaced.
    fn is_replaced(self) -> bool;
    /// The same, marked as being replaced.
    fn replaced(self) -> Self;
}

/// The tables and counted frames of a machine.
pub trait Tables {
    /// Its entries.
    type Entry: Entry;
    /// The entries of a table.
    fn entries(&self, physical: u64) -> &[AtomicU64];
    /// A table of empty entries, with one reference.
    fn allocate(&self) -> Option<u64>;
    /// References to a frame, exact for the holder of the only one.
    fn references(&self, physical: u64) -> u32;
    /// Adds a reference to a frame.
    fn add_reference(&self, physical: u64);
    /// Drops one; `true` if it was the last.
    fn drop_reference(&self, physical: u64) -> bool;
    /// Frees a frame without references.
    fn free(&self, physical: u64);
}

pub use crate::OutOfMemory;

/// A table that a root has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned<E> {
    /// It had it before, or has it now without any translation being stale for it.
    Kept(E),
    /// It has a copy. The other entry still holds a reference to the table that was shared, and may be cached.
    Copied {
        /// The entry for the copy.
        new: E,
        /// The entry's previous value.
        old: E,
    },
}

/// Reads an entry.
#[inline]
pub fn load<E: Entry>(entry: &AtomicU64) -> E {
    E::from_bits(entry.load(Ordering::Acquire))
}

/// Writes an entry.
#[inline]
pub fn store<E: Entry>(entry: &AtomicU64, value: E) {
    entry.store(value.bits(), Ordering::Release);
}

/// Whether the group of entries that begins at `index` leads nowhere; `false` if none begins there.
#[inline]
pub fn is_group_empty(entries: &[AtomicU64], index: usize) -> bool {
    if !index.is_multiple_of(GROUP) {
        return false;
    }
    let group = entries.get(index..).and_then(|rest| rest.first_chunk::<GROUP>());
    group.is_some_and(is_empty)
}

/// Written out, since a build for size would make a loop of it, on the hottest path of all.
#[cfg(not(heddle_loom))]
#[inline]
fn is_empty(group: &[AtomicU64; GROUP]) -> bool {
    let bits = |index: usize| group[index].load(Ordering::Relaxed);
    bits(0) | bits(1) | bits(2) | bits(3) | bits(4) | bits(5) | bits(6) | bits(7) == 0
}

#[cfg(heddle_loom)]
fn is_empty(group: &[AtomicU64; GROUP]) -> bool {
    group.iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
}

/// Calls `visit` with the index and value of each entry that leads somewhere.
///
/// # Errors
/// The error of `visit`.
#[inline]
pub fn each_occupied<E: Entry, F>(
    entries: &[AtomicU64],
    mut visit: impl FnMut(usize, E) -> Result<(), F>,
) -> Result<(), F> {
    for (number, group) in entries.chunks_exact(GROUP).enumerate() {
        let Some(group) = group.first_chunk::<GROUP>().filter(|group| !is_empty(group)) else { continue };
        for (index, entry) in group.iter().enumerate() {
            let entry = load::<E>(entry);
            if entry.is_occupied() {
                visit(number * GROUP + index, entry)?;
            }
        }
    }
    Ok(())
}

/// Lets another root, through `to`, lead to the leaf table behind `entry`, which `from` holds. All that either root
/// covers with the table is locked; translations of the right to store are stale.
#[inline]
pub fn share<T: Tables>(tables: &T, entry: T::Entry, from: &AtomicU64, to: &AtomicU64) {
    let shared = entry.without_stores();
    store(from, shared);
    tables.add_reference(entry.address());
    store(to, shared);
}

/// The entry for a page as it is, in the leaf table behind `slot`; `None` if there is no table. The page is locked.
#[inline]
pub fn look<T: Tables>(tables: &T, slot: &AtomicU64, index: usize) -> Option<T::Entry> {
    loop {
        let before = load::<T::Entry>(slot);
        if !before.is_occupied() {
            return None;
        }
        let found = load(&tables.entries(before.address())[index]);
        if load::<T::Entry>(slot).address() == before.address() {
            return Some(found);
        }
    }
}

/// Makes the leaf table behind `slot` its root's own. A page that it covers is locked.
///
/// # Errors
/// [`OutOfMemory`] for a copy; the table is shared as before.
pub fn own<T: Tables>(tables: &T, slot: &AtomicU64) -> Result<Owned<T::Entry>, OutOfMemory> {
    let old = loop {
        let old = load::<T::Entry>(slot);
        if old.allows_stores() {
            return Ok(Owned::Kept(old));
        }
        let locked = old.replaced().bits();
        if !old.is_replaced()
            && slot.compare_exchange(old.bits(), locked, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            break old;
        }
        spin_loop();
    };
    if tables.references(old.address()) == 1 {
        let new = T::Entry::for_table(old.address());
        store(slot, new);
        return Ok(Owned::Kept(new));
    }
    let Some(copy) = tables.allocate() else {
        store(slot, old);
        return Err(OutOfMemory);
    };
    let (from, to) = (tables.entries(old.address()), tables.entries(copy));
    let _ = each_occupied::<T::Entry, ()>(from, |index, mut entry| {
        if entry.holds_reference() {
            tables.add_reference(entry.address());
        }
        if entry.allows_stores() && !entry.keeps_stores() {
            entry = entry.without_stores();
            store(&from[index], entry);
        }
        to[index].store(entry.bits(), Ordering::Relaxed);
        Ok(())
    });
    let new = T::Entry::for_table(copy);
    store(slot, new);
    Ok(Owned::Copied { new, old })
}

/// Gives up a reference to what an entry of a table of `level` led to: a page, or a table and what is below it.
pub fn release<T: Tables>(tables: &T, physical: u64, level: usize) {
    // Leaf tables may be shared: only the last owner may take the references that are in one.
    if !tables.drop_reference(physical) {
        return;
    }
    if level > 0 {
        let _ = each_occupied::<T::Entry, ()>(tables.entries(physical), |_, entry| {
            if level > 1 || entry.holds_reference() {
                release(tables, entry.address(), level - 1);
            }
            Ok(())
        });
    }
    tables.free(physical);
}

#[cfg(test)]
pub(super) mod machine;
#[cfg(all(test, heddle_loom))]
mod models;
#[cfg(all(test, not(heddle_loom)))]
mod tests;
