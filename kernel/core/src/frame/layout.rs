//! The physical addresses that have descriptors.

use crate::frame::{BLOCK_FRAMES, FRAME_BYTES};

/// The most regions.
pub(crate) const REGIONS_MAX: usize = 8;
const BLOCK_BYTES: u64 = BLOCK_FRAMES as u64 * FRAME_BYTES;

/// A range of usable memory, in frames' boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Physical address of the first frame.
    pub start: u64,
    /// Physical address behind the last frame.
    pub end: u64,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    region: Region,
    /// `region.start` rounded down to a block.
    base: u64,
    /// Index of the descriptor for `base`.
    first: u32,
}

/// The mapping between physical addresses and descriptor indices: a few regions, each of whole blocks of indices.
/// Addresses between a block's start and the region's have an index and no frame.
#[derive(Debug, Default)]
pub struct Layout {
    parts: [Option<Part>; REGIONS_MAX],
    indices: u32,
}

impl Layout {
    /// A layout without regions.
    #[must_use]
    pub const fn new() -> Self {
        Self { parts: [None; REGIONS_MAX], indices: 0 }
    }

    /// Adds a region; `false` if there is no room for it. Regions must not overlap; parts of frames at its ends are
    /// left out.
    pub fn add(&mut self, region: Region) -> bool {
        let start = region.start.div_ceil(FRAME_BYTES) * FRAME_BYTES;
        let end = region.end / FRAME_BYTES * FRAME_BYTES;
        if start >= end {
            return true;
        }
        let base = start / BLOCK_BYTES * BLOCK_BYTES;
        let blocks = (end - base).div_ceil(BLOCK_BYTES);
        let Some(slot) = self.parts.iter_mut().find(|part| part.is_none()) else { return false };
        let Some(indices) = u32::try_from(blocks)
            .ok()
            .and_then(|blocks| blocks.checked_mul(BLOCK_FRAMES))
            .and_then(|count| self.indices.checked_add(count))
        else {
            return false;
        };
        *slot = Some(Part { region: Region { start, end }, base, first: self.indices });
        self.indices = indices;
        true
    }

    /// How many descriptors are needed.
    #[must_use]
    pub const fn indices(&self) -> u32 {
        self.indices
    }

    /// The regions that were added.
    pub fn regions(&self) -> impl Iterator<Item = Region> {
        self.parts.iter().flatten().map(|part| part.region)
    }

    /// The index of the frame at a physical address; `None` if it lies in no region.
    #[must_use]
    pub fn index(&self, physical: u64) -> Option<u32> {
        self.parts
            .iter()
            .map_while(Option::as_ref)
            .find(|part| (part.region.start..part.region.end).contains(&physical))
            .map(|part| part.first + ((physical - part.base) / FRAME_BYTES) as u32)
    }

    /// The physical address of the frame with this index.
    ///
    /// # Panics
    /// If no region has the index: the caller made it up.
    #[must_use]
    pub fn physical(&self, index: u32) -> u64 {
        let mut found = None;
        for part in self.parts.iter().map_while(Option::as_ref) {
            if part.first <= index {
                found = Some(part);
            }
        }
        let part = found.expect("an index of the layout");
        part.base + u64::from(index - part.first) * FRAME_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_indices_are_inverse_inside_the_regions_only() {
        let mut layout = Layout::new();
        let block = BLOCK_BYTES;
        assert!(layout.add(Region { start: 0x10_0123, end: 3 * block + 0x5fff }));
        assert!(layout.add(Region { start: 9 * block + 0x3000, end: 10 * block }));
        assert_eq!(layout.indices(), 5 * BLOCK_FRAMES);
        assert_eq!(layout.index(0x10_0000), None);
        assert_eq!(layout.index(3 * block + 0x5000), None);
        assert_eq!(layout.index(9 * block + 0x2fff), None);
        for physical in [0x10_1000, 0x20_0000, 3 * block + 0x4000, 9 * block + 0x3000, 10 * block - 0x1000] {
            let index = layout.index(physical).unwrap();
            assert_eq!(layout.physical(index), physical);
            assert_eq!(u64::from(index % BLOCK_FRAMES), physical / FRAME_BYTES % u64::from(BLOCK_FRAMES));
        }
    }

    #[test]
    fn too_many_regions_are_refused() {
        let mut layout = Layout::new();
        let region = |n: u64| Region { start: n * 0x2000, end: n * 0x2000 + 0x1000 };
        assert!((0..8).all(|n| layout.add(region(n))));
        assert!(!layout.add(region(8)));
        assert!(layout.add(Region { start: 0x1001, end: 0x1fff }), "an empty region needs no room");
    }
}
