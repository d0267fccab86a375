//! Memory of each side, by a counting allocator.
#![allow(unsafe_code)] // A global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::side::Side;
use crate::workload::UNIT;

/// The system's allocator, counted.
pub struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Bytes of a side with so many ranges held, and after all were released and as many locked and released again.
pub fn measure<S: Side>(ranges: u64) -> (usize, usize) {
    let before = HELD.load(Ordering::Relaxed);
    let lock = S::new(2 * ranges * UNIT);
    let mut held: Vec<S::Held> = Vec::with_capacity(ranges as usize);
    let own = held.capacity() * size_of::<S::Held>();
    let now = || HELD.load(Ordering::Relaxed).saturating_sub(before + own);
    held.extend((0..ranges).rev().filter_map(|at| lock.try_lock(2 * at * UNIT, (2 * at + 1) * UNIT)));
    let full = now();
    held.drain(..).for_each(|held| lock.unlock(held));
    for at in (0..ranges).rev() {
        if let Some(held) = lock.try_lock(2 * at * UNIT, (2 * at + 1) * UNIT) {
            lock.unlock(held);
        }
    }
    (full, now())
}
