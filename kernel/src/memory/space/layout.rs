//! Where the parts of a program go in its space.

use core::ops::Range;

use crate::arch::{cpu, paging};

/// Where the image of a position-independent program goes in a whole space, or above.
const IMAGE_BASE: usize = 0x5555_0000_0000;
/// Slots kept free below the top of the stack for its growth.
pub(super) const STACK_MAX_BYTES: usize = 64 << 20;

/// Where things go in a space, randomized once.
#[derive(Clone, Copy, Debug)]
pub struct SpaceLayout {
    /// Where the image of a position-independent program goes.
    pub image_base: usize,
    /// Mappings without a wish are placed below this.
    pub mmap_top: usize,
    /// End of the first stack.
    pub stack_top: usize,
}

impl SpaceLayout {
    /// Randomized, in a slot.
    pub(super) fn in_slot(slot: Range<usize>) -> Self {
        // Image low, stack and mappings high; each within a gigabyte or a few, to need few tables.
        let random = cpu::random();
        let page = |bits: u32, shift: u32| (random >> shift & ((1 << bits) - 1)) as usize * paging::PAGE_SIZE;
        let stack_top = slot.end - page(18, 0);
        let mmap_top = stack_top - STACK_MAX_BYTES - page(12, 18);
        let image_base = slot.start + (1 << 30) + page(22, 32);
        Self { image_base, mmap_top, stack_top }
    }

    /// Where things go in a whole space that is not randomized.
    pub const FIXED: Self = Self {
        image_base: IMAGE_BASE,
        mmap_top: paging::USER_END - STACK_MAX_BYTES - paging::PAGE_SIZE,
        stack_top: paging::USER_END - paging::PAGE_SIZE,
    };

    /// Randomized, in a whole space.
    pub(super) fn in_lower_half() -> Self {
        let random = cpu::random();
        let page = |bits: u32, shift: u32| (random >> shift & ((1 << bits) - 1)) as usize * paging::PAGE_SIZE;
        let stack_top = paging::USER_END - page(22, 0);
        let mmap_top = stack_top - STACK_MAX_BYTES - page(12, 22);
        let image_base = IMAGE_BASE + page(24, 34);
        Self { image_base, mmap_top, stack_top }
    }
}
