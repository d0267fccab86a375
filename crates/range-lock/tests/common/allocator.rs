//! An allocator that remembers each block's layout and counts those that come back with another one. Blocks are
//! overwritten when they come back.
#![allow(dead_code, unsafe_code)] // Each program takes what it needs; a global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator behind the check.
pub struct Checking;

static WRONG: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Bytes taken so far, whether given back or not.
pub fn taken() -> usize {
    TAKEN.load(Ordering::Relaxed)
}

/// Blocks that came back with another layout than they were taken with.
pub fn wrong() -> usize {
    WRONG.load(Ordering::Relaxed)
}

/// The layout with room in front for a note of it, and that room's size.
fn padded(layout: Layout) -> (Layout, usize) {
    let room = layout.align().max(size_of::<[usize; 2]>());
    let size = layout.size() + room;
    // SAFETY: the alignment is one already; sizes near the address space's end are refused before.
    (unsafe { Layout::from_size_align_unchecked(size, room.next_power_of_two()) }, room)
}

// SAFETY: what the system's allocator gives, less the note in front of it, whose room keeps the alignment.
unsafe impl GlobalAlloc for Checking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(layout.size(), Ordering::Relaxed);
        let (padded, room) = padded(layout);
        // SAFETY: the block is `room` longer than asked for, and the note lies in that room.
        unsafe {
            let block = System.alloc(padded);
            if block.is_null() {
                return block;
            }
            let place = block.add(room);
            place.cast::<[usize; 2]>().sub(1).write([layout.size(), layout.align()]);
            place
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the note was written when the block was taken, and tells the layout it was taken with.
        unsafe {
            let [size, align] = place.cast::<[usize; 2]>().sub(1).read();
            if (size, align) != (layout.size(), layout.align()) {
                WRONG.fetch_add(1, Ordering::Relaxed);
            }
            // Whoever still reads it finds nothing that makes sense.
            place.write_bytes(0xd5, size);
            let (padded, room) = padded(Layout::from_size_align_unchecked(size, align));
            System.dealloc(place.sub(room), padded);
        }
    }
}

// Miri compares layouts itself, and knows no notes in front of a block.
#[cfg(not(miri))]
#[global_allocator]
static ALLOCATOR: Checking = Checking;
