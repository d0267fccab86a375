//! A sparse array: values at 64-bit indices, in a radix tree of 64-way nodes.
//!
//! It holds the pages of a file. Against an ordered map it has two advantages: every allocation can fail and says so,
//! and a lookup touches one cache line a level, with three levels for a file of a gigabyte. Nodes that become empty
//! are freed, so an array from which everything was removed holds no memory.

#[cfg(test)]
mod tests;

use crate::fallible::try_collect;
use alloc::vec::Vec;

/// Bits of the index that one level decides.
const LEVEL_BITS: u32 = 6;
/// Slots in a node.
const FANOUT: usize = 1 << LEVEL_BITS;

pub use crate::OutOfMemory;

/// A node: a leaf holds values, an inner node holds nodes one level below.
#[derive(Debug)]
enum XArrayNode<T> {
    Inner(Slots<XArrayNode<T>>),
    Leaf(Slots<T>),
}

/// The slots of a node and how many are in use.
#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Option<T>>,
    used: usize,
}

impl<T> Slots<T> {
    fn new() -> Result<Self, OutOfMemory> {
        let slots = try_collect((0..FANOUT).map(|_| None)).map_err(|_| OutOfMemory)?;
        Ok(Self { slots, used: 0 })
    }

    fn replace(&mut self, slot: usize, value: T) -> Option<T> {
        let old = self.slots[slot].replace(value);
        self.used += usize::from(old.is_none());
        old
    }

    fn take(&mut self, slot: usize) -> Option<T> {
        let old = self.slots[slot].take();
        self.used -= usize::from(old.is_some());
        old
    }
}

/// A sparse array.
#[derive(Debug)]
pub struct Sparse<T> {
    root: Option<XArrayNode<T>>,
    /// Levels below and including the root; 0 without one.
    height: u32,
    length: u64,
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The slot of `index` in a node that has `height` levels.
const fn slot(index: u64, height: u32) -> usize {
    let shift = (height - 1) * LEVEL_BITS;
    if shift >= u64::BITS { 0 } else { (index >> shift) as usize % FANOUT }
}

/// Whether `index` is below what a tree of `height` levels can hold.
const fn fits(index: u64, height: u32) -> bool {
    let bits = height * LEVEL_BITS;
    bits >= u64::BITS || index >> bits == 0
}

impl<T> Sparse<T> {
    /// An empty array; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { root: None, height: 0, length: 0 }
    }

    /// The number of values.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are no values.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The value at `index`.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<&T> {
        if !fits(index, self.height) {
            return None;
        }
        let (mut node, mut height) = (self.root.as_ref()?, self.height);
        loop {
            match node {
                XArrayNode::Leaf(leaf) => return leaf.slots[slot(index, height)].as_ref(),
                XArrayNode::Inner(inner) => node = inner.slots[slot(index, height)].as_ref()?,
            }
            height -= 1;
        }
    }

    /// Puts a value at `index` and returns the one that was there.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the array is unchanged then.
    pub fn insert(&mut self, index: u64, value: T) -> Result<Option<T>, OutOfMemory> {
        while self.root.is_some() && !fits(index, self.height) {
            let mut inner = Slots::new()?;
            if let Some(root) = self.root.take() {
                inner.replace(0, root);
            }
            self.root = Some(XArrayNode::Inner(inner));
            self.height += 1;
        }
        if self.root.is_none() {
            let mut height = 1;
            while !fits(index, height) {
                height += 1;
            }
            self.root = Some(path(index, height, value)?);
            self.height = height;
            self.length = 1;
            return Ok(None);
        }
        let (mut node, mut height) = (self.root.as_mut(), self.height);
        while let Some(current) = node {
            let slot = slot(index, height);
            match current {
                XArrayNode::Leaf(leaf) => {
                    let old = leaf.replace(slot, value);
                    self.length += u64::from(old.is_none());
                    return Ok(old);
                }
                XArrayNode::Inner(inner) if inner.slots[slot].is_none() => {
                    inner.replace(slot, path(index, height - 1, value)?);
                    self.length += 1;
                    return Ok(None);
                }
                XArrayNode::Inner(inner) => node = inner.slots[slot].as_mut(),
            }
            height -= 1;
        }
        Ok(None)
    }

    /// Takes the value at `index` out.
    pub fn remove(&mut self, index: u64) -> Option<T> {
        if !fits(index, self.height) {
            return None;
        }
        let (old, empty) = remove(self.root.as_mut()?, index, self.height);
        if empty {
            self.root = None;
            self.height = 0;
        }
        self.length -= u64::from(old.is_some());
        old
    }

    /// The first value at `index` or after it, and its index.
    #[must_use]
    pub fn next(&self, index: u64) -> Option<(u64, &T)> {
        if !fits(index, self.height) {
            return None;
        }
        next(self.root.as_ref()?, index, self.height)
    }

    /// The last value, and its index.
    #[must_use]
    pub fn last(&self) -> Option<(u64, &T)> {
        let (mut node, mut index) = (self.root.as_ref()?, 0);
        loop {
            match node {
                XArrayNode::Leaf(leaf) => {
                    let slot = leaf.slots.iter().rposition(Option::is_some)?;
                    return leaf.slots[slot].as_ref().map(|value| (index << LEVEL_BITS | slot as u64, value));
                }
                XArrayNode::Inner(inner) => {
                    let slot = inner.slots.iter().rposition(Option::is_some)?;
                    index = index << LEVEL_BITS | slot as u64;
                    node = inner.slots[slot].as_ref()?;
                }
            }
        }
    }
}

/// A new node of `height` levels that holds only `value`.
fn path<T>(index: u64, height: u32, value: T) -> Result<XArrayNode<T>, OutOfMemory> {
    let mut leaf = Slots::new()?;
    leaf.replace(slot(index, 1), value);
    let mut node = XArrayNode::Leaf(leaf);
    for level in 2..=height {
        let mut inner = Slots::new()?;
        inner.replace(slot(index, level), node);
        node = XArrayNode::Inner(inner);
    }
    Ok(node)
}

/// Removes below `node`; also says whether `node` has become empty. Recursion is as deep as the tree: 11 at most.
fn remove<T>(node: &mut XArrayNode<T>, index: u64, height: u32) -> (Option<T>, bool) {
    let slot = slot(index, height);
    match node {
        XArrayNode::Leaf(leaf) => {
            let old = leaf.take(slot);
            (old, leaf.used == 0)
        }
        XArrayNode::Inner(inner) => {
            let Some(child) = inner.slots[slot].as_mut() else { return (None, false) };
            let (old, empty) = remove(child, index, height - 1);
            if empty {
                inner.take(slot);
            }
            (old, inner.used == 0)
        }
    }
}

fn next<T>(node: &XArrayNode<T>, index: u64, height: u32) -> Option<(u64, &T)> {
    let first = slot(index, height);
    let unit = 1_u64 << ((height - 1) * LEVEL_BITS);
    let base = if height * LEVEL_BITS >= u64::BITS { 0 } else { index & !(unit * FANOUT as u64 - 1) };
    for slot in first..FANOUT {
        let from = if slot == first { index } else { base.wrapping_add(unit.wrapping_mul(slot as u64)) };
        let found = match node {
            XArrayNode::Leaf(leaf) => leaf.slots[slot].as_ref().map(|value| (from, value)),
            XArrayNode::Inner(inner) => {
                inner.slots[slot].as_ref().and_then(|child| next(child, from, height - 1))
            }
        };
        if found.is_some() {
            return found;
        }
    }
    None
}
