//! Memory of ended coroutines, kept for the next ones of the same size.
//!
//! Each core keeps some blocks of every small size class, 8 bytes apart, in lists that only its thread touches, so
//! that spawning in a steady state costs no call of the allocator.
#![allow(unsafe_code)] // Raw blocks are linked through their own first words.

use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use alloc::alloc::{Layout, alloc, dealloc};
use core::ptr;

/// Bytes between size classes. Coroutines are multiples of it, so no class is larger than what it serves.
const STEP: usize = 8;
/// Every block's alignment, and the most that is served.
const ALIGN: usize = 16;
/// Number of size classes: blocks of up to 504 bytes are kept.
const CLASSES: usize = if cfg!(miri) { 8 } else { 64 };
/// Most bytes of blocks that a core keeps of one class.
const KEPT_BYTES: usize = 128 << 10;

/// The blocks that one core keeps.
pub(crate) struct Blocks([List; CLASSES]);

struct List {
    first: AtomicPtr<u8>,
    count: AtomicU32,
}

/// The size class of `layout` and the layout of its blocks, if it is small.
#[inline(always)]
const fn class(layout: Layout) -> Option<(usize, Layout)> {
    let class = layout.size().div_ceil(STEP);
    if class == 0 || class >= CLASSES || layout.align() > ALIGN {
        return None;
    }
    match layout_of(class) {
        Some(block) => Some((class, block)),
        None => None,
    }
}

#[inline(always)]
const fn layout_of(class: usize) -> Option<Layout> {
    match Layout::from_size_align(class * STEP, ALIGN) {
        Ok(block) => Some(block),
        Err(_) => None,
    }
}

/// A block for `layout`; null if there is no memory.
///
/// # Safety
/// The layout is not zero-sized.
#[inline(always)]
pub(crate) unsafe fn take(layout: Layout) -> *mut u8 {
    let Some((class, block)) = class(layout) else {
        // SAFETY: by the caller not zero-sized.
        return unsafe { alloc(layout) };
    };
    let kept = crate::threads::here().map_or(ptr::null_mut(), |entry| entry.blocks.take(class));
    // SAFETY: as above.
    if kept.is_null() { unsafe { alloc(block) } } else { kept }
}

/// Gives back what [`take`] gave for `layout`.
///
/// # Safety
/// `block` is such a block, and nobody uses it any more.
#[inline(always)]
pub(crate) unsafe fn give(block: *mut u8, layout: Layout) {
    match class(layout) {
        // SAFETY: by the contract, and large blocks are plain allocations.
        None => unsafe { dealloc(block, layout) },
        Some((class, small)) => {
            // SAFETY: a block of this class that nobody uses.
            let kept = crate::threads::here().is_some_and(|entry| unsafe { entry.blocks.keep(class, block) });
            if !kept {
                // SAFETY: small blocks are allocations of their class's layout.
                unsafe { dealloc(block, small) };
            }
        }
    }
}

impl Blocks {
    pub const fn new() -> Blocks {
        Blocks([const { List { first: AtomicPtr::new(ptr::null_mut()), count: AtomicU32::new(0) } }; CLASSES])
    }

    /// Owner: a kept block, or null.
    #[inline(always)]
    fn take(&self, class: usize) -> *mut u8 {
        let Some(list) = self.0.get(class) else { return ptr::null_mut() };
        let first = list.first.load(Ordering::Relaxed);
        if !first.is_null() {
            // SAFETY: a kept block's first word is the link, written by `keep`; blocks are aligned for it.
            list.first.store(unsafe { first.cast::<*mut u8>().read() }, Ordering::Relaxed);
            list.count.store(list.count.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
        }
        first
    }

    /// Owner: keeps `block` unless there are enough.
    ///
    /// # Safety
    /// The block is of this class, and nobody uses it any more.
    #[inline(always)]
    unsafe fn keep(&self, class: usize, block: *mut u8) -> bool {
        let Some(list) = self.0.get(class) else { return false };
        let count = list.count.load(Ordering::Relaxed);
        if (count + 1) as usize * class * STEP > KEPT_BYTES {
            return false;
        }
        // SAFETY: the block is at least a word long, aligned for it and unused.
        unsafe { block.cast::<*mut u8>().write(list.first.load(Ordering::Relaxed)) };
        list.first.store(block, Ordering::Relaxed);
        list.count.store(count + 1, Ordering::Relaxed);
        true
    }

    /// Owner: gives every block back to the allocator.
    pub fn clear(&self) {
        for class in 0..CLASSES {
            loop {
                let block = self.take(class);
                if block.is_null() {
                    break;
                }
                if let Some(layout) = layout_of(class) {
                    // SAFETY: a kept block of this class.
                    unsafe { dealloc(block, layout) };
                }
            }
        }
    }
}
