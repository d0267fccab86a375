//! The kernel's heap: slabs for what is smaller than a page, whole frames for the rest.
//!
//! One spinlock per size class. Requests of a page or less may use the emergency reserve of frames, larger ones may
//! not; see the [module above](super) for why.
//!
//! `unsafe` here: the allocator interface.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

use heddle_frame::slab::{Class, SIZES, class_of};

use super::frame::{self, EMERGENCY_FRAMES, Slabs};
use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::sync::SpinLock;

static CLASSES: [SpinLock<Class>; SIZES.len()] = {
    let mut classes = [const { SpinLock::new(Class::new(0)) }; SIZES.len()];
    let mut number = 0;
    while number < SIZES.len() {
        classes[number] = SpinLock::new(Class::new(number));
        number += 1;
    }
    classes
};

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// Frames for a request that no class serves; `None` if no block could hold it.
fn frames_of(layout: Layout) -> Option<usize> {
    // Contiguous frames are aligned to their number only when that is a power of two.
    let frames = layout.size().div_ceil(PAGE_SIZE).max(1);
    if layout.align() <= PAGE_SIZE {
        Some(frames)
    } else {
        frames.max(layout.align() / PAGE_SIZE).checked_next_power_of_two()
    }
}

// SAFETY: objects come from slabs or the buddy allocator, which give memory to one owner at a time, at least as large
// and as aligned as asked (`class_of`, `frames_of`); `dealloc` finds the same class or number of frames from the same
// layout.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let object = match class_of(layout.size(), layout.align()) {
            Some(class) => CLASSES[class].lock().allocate(&Slabs),
            None => frames_of(layout).and_then(frame::take_contiguous),
        };
        object.map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let Some(object) = NonNull::new(object) else { return };
        match class_of(layout.size(), layout.align()) {
            // SAFETY: the caller's promise: the object came from `alloc` with this layout.
            Some(class) => unsafe { CLASSES[class].lock().release(&Slabs, object) },
            None => frame::give_contiguous(object, frames_of(layout).unwrap_or(0)),
        }
    }
}

/// Makes sure that allocations which cannot report failure succeed, if they follow at once, without an await between,
/// and ask for no more than `bytes` in all; one of them may be larger than a page.
///
/// # Errors
/// `ENOMEM`.
pub fn reserve(bytes: usize) -> Result<(), Errno> {
    let frames = bytes.div_ceil(PAGE_SIZE);
    let enough =
        if frames <= 1 { frame::free_frames() > EMERGENCY_FRAMES } else { frame::can_allocate(frames) };
    if enough { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// Gives the slabs without objects back to the frame allocator.
pub fn drain() {
    for class in &CLASSES {
        class.lock().drain(&Slabs);
    }
}
