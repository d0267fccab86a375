//! The kernel's heap: slabs for what is smaller than a page, whole frames for the rest.
//!
//! One spinlock per size class. Requests of a page or less may use the emergency reserve of frames, larger ones may
//! not; see the [module above](super) for why.
//!
//! `unsafe` here: the allocator interface.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use heddle_frame::slab::{Class, SIZES, Usage, class_of};

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

/// Frames of objects that no class serves.
static LARGE_FRAMES: AtomicUsize = AtomicUsize::new(0);

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
            None => frames_of(layout).and_then(take_large),
        };
        object.map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let Some(object) = NonNull::new(object) else { return };
        match class_of(layout.size(), layout.align()) {
            // SAFETY: the caller's promise: the object came from `alloc` with this layout.
            Some(class) => unsafe { CLASSES[class].lock().release(&Slabs, object) },
            None => give_large(object, frames_of(layout).unwrap_or(0)),
        }
    }
}

fn take_large(frames: usize) -> Option<NonNull<u8>> {
    let memory = frame::take_contiguous(frames)?;
    LARGE_FRAMES.fetch_add(frames, Relaxed);
    Some(memory)
}

fn give_large(memory: NonNull<u8>, frames: usize) {
    LARGE_FRAMES.fetch_sub(frames, Relaxed);
    frame::give_contiguous(memory, frames);
}

/// What the kernel's own objects take.
pub fn usage() -> Usage {
    let large = LARGE_FRAMES.load(Relaxed);
    CLASSES.iter().fold(Usage { frames: large, bytes: large * PAGE_SIZE }, |sum, class| {
        let part = class.lock().usage();
        Usage { frames: sum.frames + part.frames, bytes: sum.bytes + part.bytes }
    })
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
