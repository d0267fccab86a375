//! The table of coroutines after a burst: its memory comes back, ids of the burst stay stale, and the end of an
//! executor does not touch what never was its own. In a process of its own, because it looks at the pages of the whole
//! table.
#![cfg(all(feature = "std", target_os = "linux", not(heddle_portable), not(heddle_loom), not(miri)))]
#![allow(unsafe_code)] // An allocator's functions are unsafe by type.

use heddle_coroutine::time::sleep;
use heddle_coroutine::{Builder, Executor, Id, LocalExecutor, abort, set_priority, spawn, wake, yield_now};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes and alignment of a chunk of the table.
const CHUNK: Layout = match Layout::from_size_align(16 << 10, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a layout"),
};
const PAGE: usize = 4096;

static CHUNKS: [AtomicUsize; 8192] = [const { AtomicUsize::new(0) }; 8192];
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// The memory of a sort of all free slots: two numbers for each chunk that there may be.
const SORT: Layout = match Layout::from_size_align(8192 * 8, 4) {
    Ok(layout) => layout,
    Err(_) => panic!("a layout"),
};

thread_local! {
    static SORTS: Cell<usize> = const { Cell::new(0) };
}

/// Notes the chunks of the table.
struct Noting;

// SAFETY: every call is passed on to the system's allocator unchanged; the other functions are made of these.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's contract.
        let memory = unsafe { System.alloc(layout) };
        if layout == CHUNK {
            CHUNKS[NUMBER.fetch_add(1, Ordering::Relaxed)].store(memory.addr(), Ordering::Relaxed);
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // It goes with the thread that has sorted.
        if layout == SORT {
            SORTS.set(SORTS.get() + 1);
        }
        assert_ne!(layout, CHUNK, "chunks stay");
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

/// The tests share the table.
static ALONE: Mutex<()> = Mutex::new(());

/// Pages of the table that have memory.
fn resident() -> usize {
    let mut pages = [0u8; CHUNK.size() / PAGE];
    let chunks = CHUNKS.iter().map(|chunk| chunk.load(Ordering::Relaxed)).filter(|chunk| *chunk != 0);
    chunks.fold(0, |sum, chunk| {
        // SAFETY: the range is a chunk's, and there is a byte for each of its pages.
        let result = unsafe { libc::mincore(chunk as *mut _, CHUNK.size(), pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        sum + pages.iter().filter(|page| **page & 1 != 0).count()
    })
}

const BURST: u32 = 200_000;
/// Pages of a chunk.
const OF_CHUNK: usize = CHUNK.size() / PAGE;
/// Chunks that may stay after a burst: those that are kept, as many that don't pay for their return, and parts.
const MAY_STAY: usize = 200;

/// The pages that stay, once they are no more than may, or have had time enough to go: another thread gives them back.
fn stay() -> usize {
    let begun = Instant::now();
    loop {
        let left = resident();
        if left <= MAY_STAY * OF_CHUNK || begun.elapsed() > Duration::from_secs(60) {
            return left;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Numbers below `BURST`, each once, in no order.
fn shuffled() -> impl Iterator<Item = u32> {
    // A generator of full period modulo 2^19, of which larger numbers are left out.
    let mut number = 1u32;
    (0..1 << 19).filter_map(move |_| {
        number = (number.wrapping_mul(1_103_515_245).wrapping_add(12_345)) & ((1 << 19) - 1);
        (number < BURST).then_some(number)
    })
}

#[test]
fn memory_of_a_burst_comes_back_whatever_the_order_of_the_ends() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let executor = LocalExecutor::new();
    let ended = Rc::new(Cell::new(0));
    for in_order in [true, false] {
        let ids: Vec<Id> = (0..BURST)
            .map(|_| {
                let handle = executor.spawn(pending::<()>());
                let id = handle.id();
                handle.detach();
                id
            })
            .collect();
        executor.run_until_idle();
        assert!(resident() > BURST as usize * 32 / PAGE, "the table is measured");
        let order: Box<dyn Iterator<Item = u32>> =
            if in_order { Box::new(0..BURST) } else { Box::new(shuffled()) };
        for number in order {
            abort(ids[number as usize]);
            executor.run_until_idle();
        }
        // It comes back when there is nothing to do, if not before.
        executor.block_on(sleep(Duration::from_millis(1)));
        let left = stay();
        assert_eq!(SORTS.get(), 0, "the thread that runs coroutines sorts what is free");
        assert!(left <= MAY_STAY * OF_CHUNK, "{left} pages of the table stayed (in order: {in_order})");

        // Those that come after it have other names, also in memory that has come back.
        for _ in 0..BURST {
            let ended = ended.clone();
            let body = async move {
                yield_now().await;
                ended.set(ended.get() + 1);
            };
            executor.spawn(body).detach();
        }
        for id in ids {
            abort(id);
            wake(id);
            set_priority(id, 1);
        }
        executor.run();
        assert_eq!(ended.take(), BURST, "each ended by itself");
    }
}

#[test]
fn the_end_of_an_executor_looks_at_its_own_part_of_the_table() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let burst = LocalExecutor::new();
    for _ in 0..BURST {
        burst.spawn(pending::<()>()).detach();
    }
    drop(burst);
    let before = stay();
    assert!(before <= MAY_STAY * OF_CHUNK, "{before} pages of the table stayed");

    let alive = Rc::new(());
    let executor = LocalExecutor::new();
    let kept = alive.clone();
    executor
        .spawn(async move {
            let _kept = kept;
            pending::<()>().await;
        })
        .detach();
    executor.run_until_idle();
    drop(executor);
    assert_eq!(Rc::strong_count(&alive), 1);

    // Coroutines that have moved from core to core, and others that were posted.
    let several = Executor::new(3);
    let count = std::sync::Arc::new(());
    let clone = count.clone();
    several
        .spawn(async move {
            for _ in 0..300 {
                let clone = clone.clone();
                spawn(async move {
                    let _clone = clone;
                    yield_now().await;
                    pending::<()>().await;
                })
                .detach();
                yield_now().await;
            }
        })
        .detach();
    let posted = count.clone();
    several
        .try_spawn(Builder::new().priority(60), async move {
            let _posted = posted;
            pending::<()>().await;
        })
        .unwrap()
        .detach();
    drop(several);
    assert_eq!(std::sync::Arc::strong_count(&count), 1);
    let after = resident();
    // Looking at a page is enough to have it there.
    assert!(after <= before + 4 * OF_CHUNK, "{before} pages before, {after} after");
}
