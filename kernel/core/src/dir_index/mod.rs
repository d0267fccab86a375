//! The names in a directory: found by name, listed in a stable order.
//!
//! A listing continues where it was, over several calls and while names come and go: each name has a *cookie*, a number
//! that grows with every insertion and is never used again. A name that was there when the listing began and is still
//! there is seen exactly once, which is what readdir(3) promises.
//!
//! # Implementation notes
//! Entries lie in a vector in the order of their cookies; insertion appends. A removal leaves a gap, and when gaps
//! outnumber entries the vector is compacted, which keeps the order and therefore the bisection by cookie. A table
//! hashed by name holds cookies. An ordered map would need no table, but its allocations can't fail gracefully.

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use hashbrown::HashTable;

use crate::fallible::{extend_reserved, into_box, push_reserved};
use crate::hash::KeyedState;

pub use crate::OutOfMemory;

/// A name and what it stands for.
#[derive(Debug)]
struct NameEntry<T> {
    name: Box<[u8]>,
    value: T,
}

#[derive(Debug)]
struct Slot<T> {
    cookie: u64,
    /// Nothing once it has been removed.
    entry: Option<NameEntry<T>>,
}

/// The names of a directory.
#[derive(Debug)]
pub struct Names<T> {
    slots: Vec<Slot<T>>,
    by_name: HashTable<u64>,
    hasher: KeyedState,
    next_cookie: u64,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A copy of a name.
///
/// # Errors
/// [`OutOfMemory`].
pub fn copy_name(name: &[u8]) -> Result<Box<[u8]>, OutOfMemory> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(name.len()).map_err(|_| OutOfMemory)?;
    extend_reserved(&mut copy, name);
    Ok(into_box(copy))
}

fn position<T>(slots: &[Slot<T>], cookie: u64) -> usize {
    slots.partition_point(|slot| slot.cookie < cookie)
}

fn entry<T>(slots: &[Slot<T>], cookie: u64) -> Option<&NameEntry<T>> {
    let slot = slots.get(position(slots, cookie))?;
    slot.entry.as_ref().filter(|_| slot.cookie == cookie)
}

impl<T> Names<T> {
    /// No names; allocates nothing.
    #[must_use]
    pub fn new() -> Self {
        let hasher = KeyedState::default();
        Self { slots: Vec::new(), by_name: HashTable::new(), hasher, next_cookie: 1 }
    }

    /// The number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    fn cookie(&self, name: &[u8]) -> Option<u64> {
        let same = |&cookie: &u64| entry(&self.slots, cookie).is_some_and(|entry| &*entry.name == name);
        self.by_name.find(self.hasher.hash_one(name), same).copied()
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&T> {
        Some(&entry(&self.slots, self.cookie(name)?)?.value)
    }

    /// The value of `name`, mutable.
    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut T> {
        let cookie = self.cookie(name)?;
        let index = position(&self.slots, cookie);
        self.slots.get_mut(index)?.entry.as_mut().map(|entry| &mut entry.value)
    }

    /// Makes room for one more name, so that the next [`Names::insert`] cannot fail for the table.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve(&mut self) -> Result<(), OutOfMemory> {
        self.slots.try_reserve(1).map_err(|_| OutOfMemory)?;
        let (slots, hasher) = (&self.slots, &self.hasher);
        let hash = |&cookie: &u64| entry(slots, cookie).map_or(0, |entry| hasher.hash_one(&*entry.name));
        self.by_name.try_reserve(1, hash).map_err(|_| OutOfMemory)
    }

    /// Makes `name` stand for `value`; returns what it stood for before. A name that was there keeps its place in
    /// the listing.
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing has changed then.
    pub fn insert(&mut self, name: &[u8], value: T) -> Result<Option<T>, OutOfMemory> {
        if let Some(old) = self.get_mut(name) {
            return Ok(Some(core::mem::replace(old, value)));
        }
        let copy = copy_name(name)?;
        self.reserve()?;
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        push_reserved(&mut self.slots, Slot { cookie, entry: Some(NameEntry { name: copy, value }) });
        let (slots, hasher) = (&self.slots, &self.hasher);
        let hash = |&cookie: &u64| entry(slots, cookie).map_or(0, |entry| hasher.hash_one(&*entry.name));
        self.by_name.insert_unique(hasher.hash_one(name), cookie, hash);
        Ok(None)
    }

    /// Takes `name` out.
    pub fn remove(&mut self, name: &[u8]) -> Option<T> {
        let slots = &self.slots;
        let same = |&cookie: &u64| entry(slots, cookie).is_some_and(|entry| &*entry.name == name);
        let (cookie, _) = self.by_name.find_entry(self.hasher.hash_one(name), same).ok()?.remove();
        let index = position(&self.slots, cookie);
        let removed = self.slots.get_mut(index)?.entry.take()?;
        if self.by_name.is_empty() {
            self.slots = Vec::new();
            self.by_name = HashTable::new();
        } else if self.slots.len() > 16 && self.by_name.len() < self.slots.len() / 2 {
            self.slots.retain(|slot| slot.entry.is_some());
        }
        Some(removed.value)
    }

    /// Takes some name out, without needing memory.
    pub fn pop(&mut self) -> Option<T> {
        let mut last = self.slots.pop()?;
        while last.entry.is_none() {
            last = self.slots.pop()?;
        }
        let entry = last.entry?;
        let hash = self.hasher.hash_one(&*entry.name);
        if let Ok(found) = self.by_name.find_entry(hash, |&cookie| cookie == last.cookie) {
            found.remove();
        }
        if self.by_name.is_empty() {
            self.slots = Vec::new();
            self.by_name = HashTable::new();
        }
        Some(entry.value)
    }

    /// The first entry whose cookie is greater than `cookie` (0 for the very first): its cookie, name and value.
    #[must_use]
    pub fn after(&self, cookie: u64) -> Option<(u64, &[u8], &T)> {
        let from = position(&self.slots, cookie.saturating_add(1));
        self.slots[from..]
            .iter()
            .find_map(|slot| slot.entry.as_ref().map(|entry| (slot.cookie, &*entry.name, &entry.value)))
    }

    /// All names and values, in the order of their cookies.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref().map(|entry| (&*entry.name, &entry.value)))
    }
}
