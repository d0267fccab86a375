//! The memory of a coroutine beyond its future, and that waiting takes none. In a process of its own, because it counts
//! what the process allocates.
#![cfg(all(feature = "std", not(heddle_loom), not(miri)))]
#![allow(unsafe_code)] // An allocator's functions are unsafe by type.

use heddle_coroutine::wait::{Mutex, Notify, Receiver, RwLock, Semaphore, Sender, WakerMap, channel};
use heddle_coroutine::{Builder, LocalExecutor, yield_now};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

static BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Of this thread: the tests' own harness allocates on another one when a test has ended.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn calls_so_far() -> usize {
    CALLS.get()
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged; the other functions are made of these.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.set(CALLS.get() + 1);
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

/// The tests share the counters.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> impl Sized {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

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
    let (bytes, calls) = (BYTES.load(Ordering::Relaxed), calls_so_far());
    for _ in 0..NUMBER {
        executor.try_spawn(builder, future()).unwrap().detach();
    }
    executor.run_until_idle();
    let calls = calls_so_far() - calls;
    assert!(calls <= NUMBER + NUMBER / 100, "{calls} allocations for {NUMBER} coroutines");
    (BYTES.load(Ordering::Relaxed) - bytes) as f64 / NUMBER as f64 - size as f64
}

#[test]
fn a_coroutine_costs_one_allocation_and_at_most_96_bytes_beyond_its_future() {
    let _alone = alone();
    // The first pays for the table's growth, of which the second uses what is there.
    let named = cost(Builder::new().name("named").kind(7));
    assert!(named <= 96.0, "{named} bytes with a name and a kind");
    let plain = cost(Builder::new());
    assert!(plain <= 32.0, "{plain} bytes, the table not included");
}

/// Everything that coroutines wait for, used by nobody so far.
struct Primitives {
    mutex: Mutex<u32>,
    semaphore: Semaphore,
    lock: RwLock<u32>,
    notify: Notify,
    map: WakerMap<u32>,
    sender: Sender<u32>,
    receiver: Receiver<u32>,
}

/// Has coroutines wait for each other at all of `all`, and returns how often memory was taken meanwhile.
fn allocations_of_waits(executor: &LocalExecutor, all: &Rc<Primitives>) -> usize {
    for level in [40, 30, 20, 10, 20] {
        let all = all.clone();
        let body = async move {
            let mut held = all.mutex.lock().await;
            let permit = all.semaphore.acquire(2).await;
            yield_now().await;
            *held += 1;
            drop((held, permit));
            let mut written = all.lock.write().await;
            yield_now().await;
            *written += 1;
            drop(written);
            if level == 40 {
                for _ in 0..4 {
                    all.notify.notify_one();
                    yield_now().await;
                    all.map.wake(1);
                    yield_now().await;
                    all.sender.send(7).await.unwrap();
                    all.sender.send(8).await.unwrap();
                }
            } else {
                all.notify.notified().await;
                all.map.wait(1).await;
                assert_eq!(all.receiver.recv().await, Some(7));
                assert_eq!(all.receiver.recv().await, Some(8));
            }
        };
        executor.try_spawn(Builder::new().priority(level), body).unwrap().detach();
    }
    let calls = calls_so_far();
    executor.run();
    assert_eq!((*all.mutex.try_lock().unwrap(), *all.lock.try_read().unwrap()), (5, 5));
    calls_so_far() - calls
}

#[test]
fn waiting_takes_no_memory() {
    let _alone = alone();
    let executor = LocalExecutor::new();
    let primitives = || {
        let (sender, receiver) = channel(1);
        // The channel's own memory.
        sender.try_send(0).unwrap();
        assert_eq!(receiver.try_recv(), Some(0));
        let all = Primitives {
            mutex: Mutex::new(0),
            semaphore: Semaphore::new(2),
            lock: RwLock::new(0),
            notify: Notify::new(),
            map: WakerMap::new(),
            sender,
            receiver,
        };
        Rc::new(all)
    };
    // The first takes memory for the part of the table in which loans are noted.
    allocations_of_waits(&executor, &primitives());
    let calls = allocations_of_waits(&executor, &primitives());
    // A key of a map has an entry: two allocations, as often as nobody has it.
    assert!(calls <= 8, "memory was taken {calls} times");
}
