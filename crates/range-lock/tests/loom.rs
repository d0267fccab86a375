//! Models of the real code: `crates/range-lock/check.sh loom`. A guard protects a cell that loom watches,
//! so a missing exclusion and a missing ordering both fail.
#![cfg(heddle_loom)]
#![allow(unsafe_code)] // The watched cell is read and written through pointers.

use heddle_range_lock::{Guard, RangeLock};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

#[path = "models/passing.rs"]
mod passing;
#[path = "models/records.rs"]
mod records;

/// The keys' data: exclusive guards over key 1 write it, shared ones read it.
struct Watched {
    lock: RangeLock<u8>,
    cell: UnsafeCell<u32>,
}

// SAFETY: the cell is what the models are about: loom reports any access that the lock fails to order.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

impl Watched {
    fn new() -> Arc<Self> {
        Arc::new(Self { lock: RangeLock::new(), cell: UnsafeCell::new(0) })
    }

    fn write(&self, guard: Guard<'_, u8>) {
        // SAFETY: the guard is exclusive over the cell's key.
        self.cell.with_mut(|value| unsafe { *value += 1 });
        drop(guard);
    }

    fn read(&self, guard: Guard<'_, u8>) {
        // SAFETY: the guard keeps writers out.
        self.cell.with(|value| unsafe { *value });
        drop(guard);
    }
}

/// Checks `body` with so many preemptions at most, as many as fit a minute: one more under `check.sh loom-all`, and
/// `LOOM_MAX_PREEMPTIONS` overrides both.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let more = usize::from(std::env::var_os("HEDDLE_LOOM_ALL").is_some());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions + more));
    builder.max_branches = 20_000;
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = runs.clone();
    builder.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        body();
    });
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    println!("{name}: {} ran", runs.load(std::sync::atomic::Ordering::Relaxed));
}

/// Polls once with a waker that wakes nobody.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(std::task::Waker::noop()))
}

/// A key whose next comparison in this thread first runs what [`under_a_pin`] left there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(u8);

loom::thread_local! {
    static WITHIN: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::new(None);
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        if let Some(run) = WITHIN.with(|within| within.borrow_mut().take()) {
            run();
        }
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Runs `body` while another lock's operation is pinned, so that no pin of its own orders what it does.
fn under_a_pin(body: impl FnOnce() + 'static) {
    let outer = RangeLock::<Key>::new();
    let held = outer.try_lock(Key(0)..Key(9)).unwrap();
    WITHIN.with(|within| within.borrow_mut().replace(Box::new(body)));
    // Compares its start with the end of what is held, pinned by then.
    outer.first_conflict(Key(1)..).unwrap();
    assert!(WITHIN.with(|within| within.borrow().is_none()), "a comparison under the pin");
    drop(held);
}

#[test]
fn an_append_under_a_pin_against_a_search() {
    model(2, || {
        let shared = Watched::new();
        let held = [5, 8].map(|key| shared.lock.try_lock(key..key + 1).unwrap());
        let other = shared.clone();
        let second = thread::spawn(move || {
            under_a_pin(move || {
                if let Ok(guard) = other.lock.try_lock(1..2) {
                    other.write(guard);
                }
            });
        });
        if let Ok(guard) = shared.lock.try_lock(1..3) {
            shared.write(guard);
        }
        second.join().unwrap();
        drop(held);
    });
}

#[test]
fn a_release_under_a_pin_against_a_waiter() {
    model(3, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(0..2).unwrap().into_raw();
        let other = shared.clone();
        let second = thread::spawn(move || {
            let guard = loom::future::block_on(other.lock.lock_async(1..3)).unwrap();
            other.write(guard);
        });
        // SAFETY: the guard is taken back from its raw form once.
        under_a_pin(move || shared.write(unsafe { Guard::from_raw(&shared.lock, first) }));
        second.join().unwrap();
    });
}

#[test]
fn a_downgrade_under_a_pin_against_a_waiting_reader() {
    model(3, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(0..2).unwrap().into_raw();
        let other = shared.clone();
        let second = thread::spawn(move || {
            let guard = loom::future::block_on(other.lock.lock_shared_async(1..3)).unwrap();
            other.read(guard);
        });
        under_a_pin(move || {
            // SAFETY: the guard is taken back from its raw form once, and stays held on purpose.
            let mut guard = unsafe { Guard::from_raw(&shared.lock, first) };
            guard.downgrade();
            std::mem::forget(guard);
            // The lock goes when both are through: a forgotten range ends with it.
        });
        second.join().unwrap();
    });
}

#[test]
fn a_wake_beside_another_waiter_that_arrives() {
    model(2, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(0..2).unwrap();
        let far = shared.lock.try_lock(5..7).unwrap();
        let mut waiting = shared.lock.lock_async(1..4);
        // Polled twice, it counts as more than one: the release looks further than the first waiter that it finds.
        (0..2).for_each(|_| assert!(poll_once(&mut waiting).is_pending()));
        let other = shared.clone();
        // Its node takes the last slot of the chunk that the release below looks through: one node more, and it would
        // come into a new chunk, of another bucket.
        let second = thread::spawn(move || {
            let mut beside = other.lock.lock_async(6..9);
            assert!(poll_once(&mut beside).is_pending());
        });
        shared.write(first);
        assert!(poll_once(&mut waiting).is_ready());
        second.join().unwrap();
        drop(far);
    });
}

#[test]
fn a_release_seen_in_the_operation_that_goes_on_because_of_it() {
    model(3, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(0..2).unwrap();
        let other = shared.clone();
        // No pin between looking at the first slot and holding the range: only that look orders the two.
        let second = thread::spawn(move || other.lock.try_lock(1..3).map(|guard| other.write(guard)).is_ok());
        shared.write(first);
        second.join().unwrap();
    });
}

/// The first of a chunk's nodes is released, another thread notes that nobody needs to look at it any more, and a
/// third passes it over because of that. `kept` more nodes are there from the start.
fn a_prefix_behind(kept: u8) {
    let shared = Watched::new();
    let first = shared.lock.try_lock(1..2).unwrap();
    let kept: Vec<_> = (0..kept).map(|key| shared.lock.try_lock(7 + key..8 + key).unwrap()).collect();
    let (finder, taker) = (shared.clone(), shared.clone());
    let find = thread::spawn(move || drop(finder.lock.try_lock(5..6).unwrap()));
    let take = thread::spawn(move || {
        under_a_pin(move || {
            if let Ok(guard) = taker.lock.try_lock(1..2) {
                taker.write(guard);
            }
        });
    });
    shared.write(first);
    find.join().unwrap();
    take.join().unwrap();
    drop(kept);
}

#[test]
fn a_prefix_that_another_found_released() {
    model(2, || a_prefix_behind(1));
}

#[test]
fn a_prefix_that_another_found_released_as_the_tail_filled() {
    // The third one finds the chunk closed, and builds the successor without looking at the first node.
    model(2, || a_prefix_behind(2));
}

#[test]
fn a_prefix_that_another_found_released_in_a_full_chunk() {
    // The other fills no slot of this chunk, so what it found must not be relied on.
    model(2, || a_prefix_behind(3));
}

#[test]
fn two_overlapping_try_locks_in_an_empty_lock() {
    model(3, || {
        let shared = Watched::new();
        let other = shared.clone();
        let second = thread::spawn(move || other.lock.try_lock(1..3).map(|guard| other.write(guard)).is_ok());
        let first = shared.lock.try_lock(0..2).map(|guard| shared.write(guard)).is_ok();
        assert!(second.join().unwrap() || first, "one of them comes first");
    });
}

#[test]
fn two_overlapping_try_locks_behind_different_nodes() {
    model(2, || {
        let shared = Watched::new();
        let low = shared.lock.try_lock(0..1).unwrap();
        let high = shared.lock.try_lock(5..6).unwrap();
        let other = shared.clone();
        let second = thread::spawn(move || other.lock.try_lock(1..5).map(|guard| other.write(guard)).is_ok());
        let first = shared.lock.try_lock(1..2).map(|guard| shared.write(guard)).is_ok();
        assert!(second.join().unwrap() || first, "one of them comes first");
        drop((low, high));
    });
}

#[test]
fn overlapping_try_locks_across_a_cut() {
    model(1, || {
        let shared = Watched::new();
        // More than a bucket takes: it is cut, and 0..9 spans the cut.
        let held = [20, 30, 40, 50, 60, 70].map(|key| shared.lock.try_lock(key..key + 1).unwrap());
        held.into_iter().skip(1).for_each(drop);
        let other = shared.clone();
        let second = thread::spawn(move || other.lock.try_lock(1..).map(|guard| other.write(guard)).is_ok());
        if let Ok(guard) = shared.lock.try_lock(0..2) {
            shared.write(guard);
        }
        second.join().unwrap();
    });
}

#[test]
fn release_against_insert_before_and_behind() {
    model(3, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(1..2).unwrap();
        let other = shared.clone();
        let second = thread::spawn(move || {
            let before = other.lock.try_lock(0..1).unwrap();
            let behind = other.lock.try_lock(2..3).unwrap();
            if let Ok(guard) = other.lock.try_lock(1..2) {
                other.write(guard);
            }
            drop((before, behind));
        });
        shared.write(first);
        second.join().unwrap();
        drop(shared.lock.try_lock(..).unwrap());
    });
}

#[test]
fn index_and_cut_against_release() {
    model(2, || {
        let shared = Watched::new();
        let held = [10, 20, 30].map(|key| shared.lock.try_lock(key..key + 1).unwrap());
        let first = shared.lock.try_lock(1..2).unwrap();
        let other = shared.clone();
        let second = thread::spawn(move || {
            // Fills the tail: a successor is built, the bucket is cut, and the index is built.
            let more = [40, 50].map(|key| other.lock.try_lock(key..key + 1).unwrap());
            if let Ok(guard) = other.lock.try_lock(1..2) {
                other.write(guard);
            }
            drop(more);
        });
        shared.write(first);
        // Reads what the other thread has built by then.
        drop(shared.lock.try_lock(25..26));
        drop(held);
        second.join().unwrap();
    });
}

#[test]
fn a_release_seen_only_by_a_compaction() {
    model(2, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(1..2).unwrap();
        let kept = shared.lock.try_lock(7..8).unwrap();
        let other = shared.clone();
        let second = thread::spawn(move || {
            // The successor leaves the released node out, so nobody looks at its state again.
            (3..6).for_each(|key| drop(other.lock.try_lock(key..key + 1).unwrap()));
            if let Ok(guard) = other.lock.try_lock(1..2) {
                other.write(guard);
            }
        });
        shared.write(first);
        second.join().unwrap();
        drop(kept);
    });
}

#[test]
fn wait_against_release() {
    model(3, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(0..2).unwrap();
        let other = shared.clone();
        let second = thread::spawn(move || {
            let guard = loom::future::block_on(other.lock.lock_async(1..3)).unwrap();
            other.write(guard);
        });
        shared.write(first);
        second.join().unwrap();
    });
}

#[test]
fn cancel_against_wake() {
    model(2, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(0..2).unwrap();
        let mut cancelled = shared.lock.lock_async(1..3);
        assert!(poll_once(&mut cancelled).is_pending());
        let other = shared.clone();
        // Waits for the one that is cancelled, or for the holder if that comes first; either must let it go on.
        let last = thread::spawn(move || {
            let guard = loom::future::block_on(other.lock.lock_async(1..4)).unwrap();
            other.write(guard);
        });
        shared.write(first);
        drop(cancelled);
        last.join().unwrap();
    });
}

#[test]
fn read_against_write() {
    model(1, || {
        let shared = Watched::new();
        let (writer, reader) = (shared.clone(), shared.clone());
        let write = thread::spawn(move || {
            if let Ok(mut guard) = writer.lock.try_lock(0..2) {
                // SAFETY: the guard is exclusive over the cell's key.
                writer.cell.with_mut(|value| unsafe { *value += 1 });
                guard.downgrade();
                writer.read(guard);
            }
        });
        let read =
            thread::spawn(move || reader.lock.try_lock_shared(1..9).map(|guard| reader.read(guard)).is_ok());
        if let Ok(guard) = shared.lock.try_lock_shared(1..2) {
            shared.read(guard);
        }
        write.join().unwrap();
        read.join().unwrap();
    });
}

#[test]
fn downgrade_against_a_waiting_reader() {
    model(3, || {
        let shared = Watched::new();
        let mut first = shared.lock.try_lock(0..2).unwrap();
        let other = shared.clone();
        let second = thread::spawn(move || {
            let guard = loom::future::block_on(other.lock.lock_shared_async(1..3)).unwrap();
            other.read(guard);
        });
        // SAFETY: the guard is exclusive over the cell's key.
        shared.cell.with_mut(|value| unsafe { *value += 1 });
        first.downgrade();
        shared.read(first);
        second.join().unwrap();
    });
}

#[test]
fn split_against_a_waiter() {
    model(1, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(0..4).unwrap();
        let other = shared.clone();
        let second = thread::spawn(move || {
            let guard = loom::future::block_on(other.lock.lock_async(1..3)).unwrap();
            other.write(guard);
        });
        let Ok((low, high)) = first.split(2) else { panic!("memory for two") };
        drop(high);
        shared.write(low);
        second.join().unwrap();
    });
}

#[test]
fn reuse_against_a_reader() {
    model(2, || {
        let shared = Watched::new();
        let other = shared.clone();
        let held = shared.lock.try_lock(9..10).unwrap();
        // Chunks and nodes are retired and come round again while this thread looks through them.
        let second = thread::spawn(move || other.lock.first_conflict(0..3).map(drop));
        for _ in 0..6 {
            drop(shared.lock.try_lock(1..2).unwrap());
        }
        second.join().unwrap().unwrap();
        drop(held);
    });
}

#[test]
fn reuse_against_a_reader_that_reads_again() {
    model(2, || {
        let shared = Watched::new();
        let other = shared.clone();
        let held = shared.lock.try_lock(9..10).unwrap();
        // The collection may see only the second announcement; what the first one covered is ordered before it.
        let second = thread::spawn(move || {
            (0..6).for_each(|_| drop(other.lock.try_lock(1..2).unwrap()));
        });
        for _ in 0..2 {
            shared.lock.first_conflict(0..3).map(drop).unwrap();
        }
        second.join().unwrap();
        drop(held);
    });
}

#[test]
fn a_request_across_several_cuts_against_one_between_them() {
    model(1, || {
        let shared = Watched::new();
        // Two live nodes fill a bucket, so these make several.
        let mut held: Vec<_> =
            [10, 20, 30, 40, 50].map(|key| shared.lock.try_lock(key..key + 1).unwrap()).into();
        held.truncate(1);
        let other = shared.clone();
        let second = thread::spawn(move || {
            if let Ok(guard) = other.lock.try_lock(1..60) {
                other.write(guard);
            }
        });
        held.clear();
        if let Ok(guard) = shared.lock.try_lock(0..2) {
            shared.write(guard);
        }
        if let Ok(guard) = shared.lock.try_lock(41..45) {
            drop(guard);
        }
        second.join().unwrap();
    });
}

#[test]
fn a_large_bucket_that_comes_apart_against_a_search() {
    model(2, || {
        let shared = Watched::new();
        // All in one bucket, because the one over everything is there first.
        let wide = shared.lock.try_lock_shared(0..90).unwrap();
        let held = [10, 20, 30, 40].map(|key| shared.lock.try_lock_shared(key..key + 1).unwrap());
        drop(wide);
        let other = shared.clone();
        let second = thread::spawn(move || {
            if let Ok(guard) = other.lock.try_lock(1..9) {
                other.write(guard);
            }
        });
        for range in [50..60, 0..2, 60..70] {
            if let Ok(guard) = shared.lock.try_lock(range.clone()) {
                if range.start == 0 {
                    shared.write(guard);
                }
            }
        }
        second.join().unwrap();
        drop(held);
    });
}

#[test]
fn a_release_wakes_all_that_wait_for_it() {
    model(1, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(0..2).unwrap();
        let readers = [shared.clone(), shared.clone()].map(|other| {
            thread::spawn(move || {
                let guard = loom::future::block_on(other.lock.lock_shared_async(1..3)).unwrap();
                other.read(guard);
            })
        });
        shared.write(first);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn a_released_front_that_another_waiter_has_passed() {
    model(1, || {
        let lock = std::sync::Arc::new(RangeLock::<u8>::new());
        let cell = Arc::new(Cell(UnsafeCell::new(0)));
        let first = lock.request_owned(0..2, ()).try_lock().unwrap();
        let mut waiting = lock.request_owned(1..3, ()).lock_async();
        assert!(poll_once(&mut waiting).is_pending());
        let far = lock.request_owned(5..7, ()).try_lock().unwrap();
        let mut beside = lock.request_owned(6..9, ()).lock_async();
        assert!(poll_once(&mut beside).is_pending());
        let has_looked = Arc::new(AtomicUsize::new(0));
        let (watched, looked) = (cell.clone(), has_looked.clone());
        let mut threads = Vec::new();
        under_a_pin(move || {
            let (released, looks) = (watched.clone(), looked.clone());
            threads.push(thread::spawn(move || {
                // SAFETY: the range is held.
                released.0.with_mut(|value| unsafe { *value += 1 });
                drop(first);
            }));
            // Looks through the bucket from its front, and notes what is released there.
            threads.push(thread::spawn(move || {
                assert!(poll_once(&mut beside).is_pending());
                looks.store(1, Ordering::Relaxed);
            }));
            while looked.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            if poll_once(&mut waiting).is_ready() {
                // SAFETY: the range is granted.
                watched.0.with_mut(|value| unsafe { *value += 1 });
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        drop(far);
    });
}

#[test]
fn a_waiter_under_a_pin_against_a_search() {
    model(2, || {
        let lock = std::sync::Arc::new(RangeLock::<u8>::new());
        let held = [0..2, 8..9].map(|range| lock.request_owned(range, ()).try_lock().unwrap());
        // Until the held ones are carried over: a request that one of those blocks goes straight to the end.
        (0..4).for_each(|_| drop(lock.request_owned(5..6, ()).try_lock().unwrap()));
        let other = lock.clone();
        let second = thread::spawn(move || {
            under_a_pin(move || {
                assert!(poll_once(&mut other.request_owned(1..4, ()).lock_async()).is_pending())
            });
        });
        drop(lock.try_lock(3..4));
        second.join().unwrap();
        drop(held);
    });
}

/// Data that a guard of no borrowed lock protects.
struct Cell(UnsafeCell<u32>);

// SAFETY: as for [`Watched`].
unsafe impl Sync for Cell {}
// SAFETY: as above.
unsafe impl Send for Cell {}
