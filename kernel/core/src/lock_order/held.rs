//! The locks that one processor or task holds.

use core::ops::Range;

use crate::lock_order::Place;

/// A lock that is held, or about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The number of its class, from [`crate::lock_order::Graph::number`].
    pub class: u16,
    /// The address of the lock, which tells it from others of the class.
    pub lock: usize,
    /// The part that is locked; `0..usize::MAX` of a lock without parts.
    pub part: Range<usize>,
    /// Where it was taken.
    pub place: Place,
}

impl Taken {
    /// Whether the same lock cannot be had twice like this.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.lock == other.lock && self.part.start < other.part.end && other.part.start < self.part.end
    }
}

/// The locks that one processor or task holds, at most `MAX`, in the order in which they were taken.
#[derive(Debug)]
pub struct Held<const MAX: usize> {
    list: [Option<Taken>; MAX],
    count: usize,
}

impl<const MAX: usize> Held<MAX> {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: [const { None }; MAX], count: 0 }
    }

    /// Adds a lock; `false` if there are too many.
    #[must_use]
    pub fn push(&mut self, taken: Taken) -> bool {
        let Some(place) = self.list.get_mut(self.count) else { return false };
        *place = Some(taken);
        self.count += 1;
        true
    }

    /// Removes a lock, which need not be the one that was taken last; `false` if it is not held.
    #[must_use]
    pub fn remove(&mut self, lock: usize, part_start: usize) -> bool {
        let is_it = |taken: &Option<Taken>| {
            taken.as_ref().is_some_and(|t| t.lock == lock && t.part.start == part_start)
        };
        let Some(at) = self.list[..self.count].iter().rposition(is_it) else { return false };
        self.list[at..self.count].rotate_left(1);
        self.count -= 1;
        self.list[self.count] = None;
        true
    }

    /// The locks, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Taken> {
        self.list[..self.count].iter().flatten()
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<const MAX: usize> Default for Held<MAX> {
    fn default() -> Self {
        Self::new()
    }
}
