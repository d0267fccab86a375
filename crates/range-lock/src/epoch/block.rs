//! Blocks of memory with a header, in size classes.

use alloc::alloc::{Layout, alloc, dealloc};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};

use crate::sync::AtomicU32;

/// Every block starts with this.
#[repr(C)]
pub(crate) struct Header {
    /// The next block of a free list or limbo; null while in use.
    /// In a cell: a retiring context writes it while readers still hold references to the block.
    link: UnsafeCell<*mut Header>,
    /// Bytes of the whole block.
    size: u32,
    /// Free for the block's user; here because nodes would otherwise pad a word for it.
    pub(crate) state: AtomicU32,
    /// Stands for the block's contents in the models: readers read it, reuse writes it.
    #[cfg(heddle_loom)]
    pub(crate) contents: loom::cell::UnsafeCell<()>,
}

impl Header {
    /// Keeps a number where the link is, while the block is in use.
    #[inline]
    pub(crate) fn note(&self, number: usize) {
        // SAFETY: the user of a block writes this before anyone else sees it, and readers never look at it.
        unsafe { *self.link.get() = ptr::without_provenance_mut(number) }
    }

    /// That number, for whoever noted it.
    #[inline]
    pub(crate) fn noted(&self) -> usize {
        // SAFETY: the link is written again when the block is retired only, which its user has not allowed yet.
        unsafe { (*self.link.get()).addr() }
    }
}

/// Blocks are whole cache lines.
pub(super) const ALIGN: usize = 64;

/// Free blocks are kept by size: steps of one line up to eight lines, of two up to sixteen, then powers of two up to
/// 4 KiB. Most chunks have eight to ten lines.
pub(super) const CLASSES: usize = 14;

/// The class of a size that was rounded to one, if it is kept.
#[inline]
pub(super) fn class_of_rounded(size: usize) -> Option<usize> {
    match size.div_ceil(ALIGN) {
        lines @ 1..=8 => Some(lines - 1),
        lines @ 9..=16 => Some(lines.div_ceil(2) + 3),
        lines @ 17..=64 => Some(lines.trailing_zeros() as usize + 7),
        _ => None,
    }
}

/// The size of a class's blocks.
#[inline]
pub(super) const fn size_of_class(class: usize) -> usize {
    match class {
        0..8 => (class + 1) * ALIGN,
        8..12 => 2 * (class - 3) * ALIGN,
        _ => ALIGN << (class - 7),
    }
}

/// The class a size falls in and the class's size; `None` for sizes that are not kept.
#[inline]
pub(super) fn class_of(size: usize) -> Option<(usize, usize)> {
    let lines = size.div_ceil(ALIGN).max(1);
    match lines {
        1..=8 => Some((lines - 1, lines * ALIGN)),
        9..=16 => Some((lines.div_ceil(2) + 3, lines.next_multiple_of(2) * ALIGN)),
        17..=64 => {
            let lines = lines.next_power_of_two();
            Some((lines.trailing_zeros() as usize + 7, lines * ALIGN))
        }
        _ => None,
    }
}

/// Takes a block of at least `size` bytes from the allocator.
pub(super) fn allocate(size: usize) -> Option<NonNull<Header>> {
    let size = class_of(size).map_or(size, |(_, rounded)| rounded);
    let layout = Layout::from_size_align(size, ALIGN).ok()?;
    let stored = u32::try_from(size).ok()?;
    // SAFETY: the size is at least one line.
    let block = NonNull::new(unsafe { alloc(layout) }.cast::<Header>())?;
    // SAFETY: freshly allocated, aligned to 64, larger than a header.
    unsafe { init(block, stored) };
    Some(block)
}

/// Writes a block's header anew.
///
/// # Safety
/// The block is exclusively the caller's and `size` bytes long.
pub(super) unsafe fn init(block: NonNull<Header>, size: u32) {
    // SAFETY: see the contract.
    unsafe {
        block.write(Header {
            link: UnsafeCell::new(ptr::null_mut()),
            size,
            state: AtomicU32::new(0),
            #[cfg(heddle_loom)]
            contents: loom::cell::UnsafeCell::new(()),
        });
        // The allocating context writes the contents: a reader that is not ordered behind it fails the model.
        #[cfg(heddle_loom)]
        (*block.as_ptr()).contents.with_mut(|_| ());
    }
}

/// The block behind this one in its list.
///
/// # Safety
/// The block is in a list of the caller's.
pub(super) unsafe fn link(block: NonNull<Header>) -> *mut Header {
    // SAFETY: only the list's owner writes the link.
    unsafe { *(*block.as_ptr()).link.get() }
}

/// Puts the block in front of `next`.
///
/// # Safety
/// The block is free, or retired by the caller.
pub(super) unsafe fn set_link(block: NonNull<Header>, next: *mut Header) {
    // SAFETY: readers of a retired block never look at its link.
    unsafe { *(*block.as_ptr()).link.get() = next }
}

/// The block's size in bytes.
pub(super) fn size_of(block: NonNull<Header>) -> usize {
    // SAFETY: `size` never changes while the block exists.
    unsafe { (*block.as_ptr()).size as usize }
}

/// Gives a block back to the allocator.
///
/// # Safety
/// The block came from `allocate` and nothing refers to it.
pub(super) unsafe fn deallocate(block: NonNull<Header>) {
    // SAFETY: allocated with this size and alignment.
    unsafe {
        let layout = Layout::from_size_align_unchecked(size_of(block), ALIGN);
        dealloc(block.as_ptr().cast(), layout);
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::*;

    #[test]
    fn classes_are_dense_and_hold_their_sizes() {
        let mut last = None;
        for size in (1..=4096).filter(|size| !cfg!(miri) || size % 64 < 2) {
            let (class, rounded) = class_of(size).unwrap();
            assert!(rounded >= size && class < CLASSES && class_of_rounded(rounded) == Some(class));
            assert_eq!(size_of_class(class), rounded);
            if let Some((before, held)) = last {
                assert!(class == before && rounded == held || class == before + 1 && rounded > held);
            }
            last = Some((class, rounded));
        }
        // A size that is not kept is stored as it is, so that the allocator gets back what it gave.
        assert!((4097..5000).all(|size| class_of(size).is_none() && class_of_rounded(size).is_none()));
        assert_eq!(last, Some((CLASSES - 1, 4096)));
    }
}
