//! The kernel's heap: slabs for what is smaller than a page, whole frames for the rest.
//!
//! One spinlock per size class, and in front of it a few objects per CPU: most are given back soon, on the CPU that
//! took them. Requests of a page or less may use the emergency reserve of frames, larger ones may
//! not; see the [module above](super) for why.
//!
//! `unsafe` here: the allocator interface.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use heddle_kernel_core::frame::slab::{SIZES, SizeClass, Usage, class_of};

use crate::arch::paging::PAGE_SIZE;
use crate::arch::{MAX_CPUS, cpu};
use crate::error::Errno;
use crate::memory::frame;
use crate::memory::frame::Slabs;
use crate::sync::SpinLock;

static CLASSES: [SpinLock<SizeClass>; SIZES.len()] = {
    let mut classes = [const { SpinLock::new(SizeClass::new(0)) }; SIZES.len()];
    let mut number = 0;
    while number < SIZES.len() {
        classes[number] = SpinLock::new(SizeClass::new(number));
        number += 1;
    }
    classes
};

/// Frames of objects that no class serves.
static LARGE_FRAMES: AtomicUsize = AtomicUsize::new(0);

/// The most objects that a CPU keeps of a class, and their most bytes.
const KEPT_OBJECTS: usize = 16;
const KEPT_BYTES: usize = 4096;

/// Objects of one class that one CPU keeps.
struct Kept {
    objects: [*mut u8; KEPT_OBJECTS],
    count: usize,
}

// SAFETY: the pointers are to free objects, which have no other owner.
unsafe impl Send for Kept {}

impl Kept {
    const EMPTY: Self = Self { objects: [core::ptr::null_mut(); KEPT_OBJECTS], count: 0 };

    fn take(&mut self) -> Option<NonNull<u8>> {
        self.count = self.count.checked_sub(1)?;
        NonNull::new(*self.objects.get(self.count)?)
    }

    /// `false`: there are enough.
    fn keep(&mut self, class: usize, object: NonNull<u8>) -> bool {
        let is_full = self.count >= KEPT_OBJECTS.min(KEPT_BYTES / SIZES[class]);
        if !is_full {
            self.objects[self.count] = object.as_ptr();
            self.count += 1;
        }
        !is_full
    }
}

/// By CPU and class. Locked by the CPU itself, and by the CPU that drains all caches.
static KEPT: [[SpinLock<Kept>; SIZES.len()]; MAX_CPUS] =
    [const { [const { SpinLock::new(Kept::EMPTY) }; SIZES.len()] }; MAX_CPUS];

fn take(class: usize) -> Option<NonNull<u8>> {
    let kept = KEPT[cpu::id()][class].lock().take();
    kept.or_else(|| CLASSES[class].lock().allocate(&Slabs))
}

/// # Safety
/// `object` is from [`take`] of the same class, and not used any more.
unsafe fn give(class: usize, object: NonNull<u8>) {
    if !KEPT[cpu::id()][class].lock().keep(class, object) {
        // SAFETY: the caller's promise.
        unsafe { CLASSES[class].lock().release(&Slabs, object) };
    }
}

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
        #[cfg(feature = "checking")]
        if crate::memory::fault_injection::allocation_fails() {
            return core::ptr::null_mut();
        }
        let object = match class_of(layout.size(), layout.align()) {
            Some(class) => take(class),
            None => frames_of(layout).and_then(take_large),
        };
        object.map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let Some(object) = NonNull::new(object) else { return };
        match class_of(layout.size(), layout.align()) {
            // SAFETY: the caller's promise: the object came from `alloc` with this layout.
            Some(class) => unsafe { give(class, object) },
            None => give_large(object, frames_of(layout).unwrap_or(0)),
        }
    }
}

fn take_large(frames: usize) -> Option<NonNull<u8>> {
    // Objects between the largest class and a page are promised like smaller ones.
    let memory = if frames == 1 { frame::take_single() } else { frame::take_contiguous(frames) }?;
    LARGE_FRAMES.fetch_add(frames, Relaxed);
    Some(memory)
}

fn give_large(memory: NonNull<u8>, frames: usize) {
    LARGE_FRAMES.fetch_sub(frames, Relaxed);
    frame::give_contiguous(memory, frames);
}

/// Memory use of the kernel's own objects.
pub fn usage() -> Usage {
    let large = LARGE_FRAMES.load(Relaxed);
    CLASSES.iter().enumerate().fold(
        Usage { frames: large, bytes: large * PAGE_SIZE },
        |sum, (class, slabs)| {
            let kept: usize = KEPT.iter().map(|by_class| by_class[class].lock().count).sum();
            let part = slabs.lock().usage();
            // Objects may come and go on other CPUs between the two reads.
            let bytes = part.bytes.saturating_sub(kept * SIZES[class]);
            Usage { frames: sum.frames + part.frames, bytes: sum.bytes + bytes }
        },
    )
}

/// The sizes of the kernel's objects, and how many of each are in use; those that have frames of their own last, as
/// frames.
pub fn objects() -> impl Iterator<Item = (usize, usize)> {
    let classes = CLASSES.iter().enumerate().map(|(class, slabs)| {
        let kept: usize = KEPT.iter().map(|by_class| by_class[class].lock().count).sum();
        (SIZES[class], (slabs.lock().usage().bytes / SIZES[class]).saturating_sub(kept))
    });
    classes.chain(core::iter::once_with(|| (PAGE_SIZE, LARGE_FRAMES.load(Relaxed))))
}

/// Makes sure that the next `count` allocations on this CPU succeed, of at most a page each, if no await lies between.
///
/// Each takes at most one frame, and this CPU keeps as many: no other takes them, no interrupt handler allocates, and
/// nothing else runs on this CPU until the coroutine awaits. Objects of a slab may be taken by other CPUs as soon as it
/// is in its list, so one frame for several objects would not do.
///
/// # Errors
/// `ENOMEM`.
pub fn reserve(count: usize) -> Result<(), Errno> {
    #[cfg(feature = "checking")]
    {
        if crate::memory::fault_injection::fails(crate::memory::fault_injection::FailurePoint::Heap) {
            return Err(Errno::ENOMEM);
        }
        let before = crate::memory::fault_injection::promise(0);
        crate::memory::fault_injection::promise(before + count);
    }
    if frame::is_above_reserve() && frame::keep(count, false) { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// The same with frames of the emergency reserve, for what gives memory back.
///
/// # Errors
/// `ENOMEM`.
pub fn reserve_urgently(count: usize) -> Result<(), Errno> {
    if frame::keep(count, true) { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// Gives the slabs without objects back to the frame allocator.
pub fn drain() {
    for (class, slabs) in CLASSES.iter().enumerate() {
        for by_class in &KEPT {
            let mut kept = by_class[class].lock();
            while let Some(object) = kept.take() {
                // SAFETY: it came from this class, and was given back.
                unsafe { slabs.lock().release(&Slabs, object) };
            }
        }
        slabs.lock().drain(&Slabs);
    }
}
