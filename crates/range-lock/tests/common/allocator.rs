//! An allocator that remembers each block's layout, and ends the process if one comes back with another layout, or
//! twice. Blocks are overwritten when they come back. A program has it by having this module.
#![allow(dead_code, unsafe_code)] // Each program takes what it needs; a global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator behind the check.
pub struct Checking;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Bytes taken so far, whether given back or not.
pub fn taken() -> usize {
    TAKEN.load(Ordering::Relaxed)
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
            let note = place.cast::<[usize; 2]>().sub(1);
            if note.read() != [layout.size(), layout.align()] {
                eprintln!("a block came back twice, or as {layout:?}: {:?}", note.read());
                std::process::abort();
            }
            // An alignment of 0 is that of no layout. Whoever still reads the block finds nothing that makes sense.
            note.write([0; 2]);
            place.write_bytes(0xd5, layout.size());
            let (padded, room) = padded(layout);
            System.dealloc(place.sub(room), padded);
        }
    }
}

// Miri compares layouts itself, and knows no notes in front of a block.
#[cfg(not(miri))]
#[global_allocator]
static ALLOCATOR: Checking = Checking;
