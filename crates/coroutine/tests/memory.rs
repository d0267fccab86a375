//! The memory of a coroutine beyond its future. In a process of its own, because it counts what the process allocates.
#![cfg(all(feature = "std", not(heddle_loom), not(miri)))]
#![allow(unsafe_code)] // An allocator's functions are unsafe by type.

use heddle_coroutine::{Builder, LocalExecutor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};

static BYTES: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged; the other functions are made of these.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NUMBER: usize = 50_000;

/// Bytes beyond its future that each of `NUMBER` coroutines costs, its share of the table included.
fn cost(builder: Builder) -> f64 {
    let future = || async {
        let kept = [1u64; 4];
        pending::<()>().await;
        std::hint::black_box(kept);
    };
    let size = size_of_val(&future());
    let executor = LocalExecutor::new();
    let (bytes, calls) = (BYTES.load(Ordering::Relaxed), CALLS.load(Ordering::Relaxed));
    for _ in 0..NUMBER {
        executor.try_spawn(builder, future()).unwrap().detach();
    }
    executor.run_until_idle();
    let calls = CALLS.load(Ordering::Relaxed) - calls;
    assert!(calls <= NUMBER + NUMBER / 100, "{calls} allocations for {NUMBER} coroutines");
    (BYTES.load(Ordering::Relaxed) - bytes) as f64 / NUMBER as f64 - size as f64
}

#[test]
fn a_coroutine_costs_one_allocation_and_at_most_96_bytes_beyond_its_future() {
    // The first pays for the table's growth, of which the second uses what is there.
    let named = cost(Builder::new().name("named").kind(7));
    assert!(named <= 96.0, "{named} bytes with a name and a kind");
    let plain = cost(Builder::new());
    assert!(plain <= 32.0, "{plain} bytes, the table not included");
}
