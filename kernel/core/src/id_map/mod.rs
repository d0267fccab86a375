//! The numbers of a user namespace: `/proc/PID/uid_map`, user_namespaces(7).
//!
//! A map says which numbers of the namespace stand for which *lower* ones: those of its parent as a program writes it,
//! and those of the first namespace once it is in force ([`IdMap::lowered`]).

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::OutOfMemory;
use crate::fallible::push_reserved;

/// The most extents of a map.
pub const EXTENTS_MAX: usize = 340;
/// Maps with more extents are kept in the order of their first numbers.
const ORDERED_FROM: usize = 6;
/// The number that stands for nobody.
pub const NO_ID: u32 = u32::MAX;
/// The number that stands for all that have none in a namespace.
pub const OVERFLOW_ID: u32 = 65534;

/// Numbers in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first of the namespace's.
    pub first: u32,
    /// The first of the lower ones.
    pub lower: u32,
    /// How many there are.
    pub count: u32,
}

/// A map.
#[derive(Debug, PartialEq, Eq)]
pub struct IdMap {
    extents: Vec<Extent>,
}

/// A text that is no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMapError {
    /// `EINVAL`.
    Invalid,
    /// `EPERM`: the parent does not have some of the numbers.
    Unmapped,
    /// `ENOMEM`.
    OutOfMemory,
}

impl From<OutOfMemory> for IdMapError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl Extent {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().map(str::parse);
        let mut next = || words.next()?.ok();
        let extent = Self { first: next()?, lower: next()?, count: next()? };
        let is_valid = words.next().is_none()
            && extent.count > 0
            && extent.first != NO_ID
            && extent.lower != NO_ID
            && extent.first.checked_add(extent.count).is_some()
            && extent.lower.checked_add(extent.count).is_some();
        is_valid.then_some(extent)
    }

    const fn overlaps(&self, other: &Self) -> bool {
        const fn meet(one: u32, other: u32, counts: (u32, u32)) -> bool {
            one < other + counts.1 && other < one + counts.0
        }
        let counts = (self.count, other.count);
        meet(self.first, other.first, counts) || meet(self.lower, other.lower, counts)
    }
}

impl IdMap {
    /// Reads what a program writes: three numbers a line.
    ///
    /// # Errors
    /// [`IdMapError`].
    pub fn parse(text: &[u8]) -> Result<Self, IdMapError> {
        let text = core::str::from_utf8(text).map_err(|_| IdMapError::Invalid)?;
        let text = text.split('\0').next().unwrap_or_default();
        let mut extents: Vec<Extent> = Vec::new();
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            let extent = Extent::parse(line).ok_or(IdMapError::Invalid)?;
            if extents.len() == EXTENTS_MAX || extents.iter().any(|other| other.overlaps(&extent)) {
                return Err(IdMapError::Invalid);
            }
            extents.try_reserve(1).map_err(|_| OutOfMemory)?;
            push_reserved(&mut extents, extent);
        }
        Ok(Self { extents })
    }

    /// The extents.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The map with lower numbers that `lower` finds for each extent: for its first number and how many there are.
    ///
    /// # Errors
    /// [`IdMapError::Unmapped`]: it finds none.
    pub fn lowered(mut self, lower: impl Fn(u32, u32) -> Option<u32>) -> Result<Self, IdMapError> {
        for extent in &mut self.extents {
            extent.lower = lower(extent.lower, extent.count).ok_or(IdMapError::Unmapped)?;
        }
        if self.extents.len() >= ORDERED_FROM {
            self.extents.sort_unstable_by_key(|extent| extent.first);
        }
        Ok(self)
    }

    /// The first of the lower numbers for so many of the namespace's, which must be in one extent.
    #[must_use]
    pub fn range_to_lower(&self, id: u32, count: u32) -> Option<u32> {
        let extent = self.extents.iter().find(|extent| id.wrapping_sub(extent.first) < extent.count)?;
        let offset = id - extent.first;
        (count <= extent.count - offset).then_some(extent.lower + offset)
    }

    /// The lower number for one of the namespace's.
    #[must_use]
    pub fn to_lower(&self, id: u32) -> Option<u32> {
        self.range_to_lower(id, 1)
    }

    /// The namespace's number for a lower one.
    #[must_use]
    pub fn to_upper(&self, lower: u32) -> Option<u32> {
        let extent = self.extents.iter().find(|extent| lower.wrapping_sub(extent.lower) < extent.count)?;
        Some(extent.first + (lower - extent.lower))
    }
}
