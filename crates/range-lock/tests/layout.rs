//! Every block goes back to the allocator with the layout it came with. Alone in its program: it replaces the
//! allocator and looks at the domain of all threads.

#![cfg(not(heddle_loom))]

#[path = "common/allocator.rs"]
mod allocator;

use heddle_range_lock::{RangeLock, ThreadEpoch};
use std::future::Future;
use std::task::{Context, Waker};
use std::thread;

/// Runs `body` in a thread that is gone afterwards, and gives back all that was kept.
fn on_a_thread(what: &str, body: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(body).join().unwrap());
    ThreadEpoch::domain().trim();
    assert_eq!(ThreadEpoch::domain().held_bytes(), 0, "{what}: bytes that the domain counts");
}

fn few(count: u64) -> u64 {
    if cfg!(miri) { count / 100 } else { count }
}

fn split_often(lock: &RangeLock<u64>, parts: u64) {
    let mut rest = lock.try_lock(0..1000).unwrap();
    let mut held = Vec::new();
    for at in 1..parts {
        let (low, high) = rest.split(at).ok().unwrap();
        held.push(low);
        rest = high;
    }
    drop((held, rest));
    (0..few(10_000)).for_each(|at| drop(lock.try_lock(at % 7..at % 7 + 1)));
}

fn below_a_long_one(lock: &RangeLock<u64>, ranges: u64, shrinks: bool) {
    let _long = lock.try_lock_shared(0..1_000_000).unwrap();
    let mut held = Vec::new();
    for at in 0..ranges {
        let mut guard = lock.try_lock_shared(at * 10..at * 10 + 5).unwrap();
        if shrinks {
            guard.shrink(at * 10 + 1..at * 10 + 3).unwrap();
        }
        held.push(guard);
    }
    drop(held);
    (0..few(1000)).for_each(|at| drop(lock.try_lock_shared(at..at + 1)));
}

fn at_random(seed: u64, most: usize) {
    let lock = RangeLock::<u64>::new();
    let mut held = Vec::new();
    let mut random = seed * 77 + 1;
    for _ in 0..few(9000) {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let at = (random >> 33) % 100_000;
        held.extend(lock.try_lock(at * 10..at * 10 + 5));
        if held.len() > most {
            let _ = held.swap_remove((random >> 20) as usize % held.len());
        }
    }
}

#[test]
fn blocks_go_back_with_the_layout_they_came_with() {
    on_a_thread("split", || {
        let lock = RangeLock::new();
        (0..3).for_each(|_| split_often(&lock, few(300)));
    });
    for shrinks in [false, true] {
        on_a_thread("below a long one", move || {
            for _ in 0..3 {
                below_a_long_one(&RangeLock::new(), few(400), shrinks);
            }
        });
    }
    on_a_thread("waiters", || {
        let lock = RangeLock::<u64>::new();
        let held = lock.try_lock(0..10).unwrap();
        let mut waiting: Vec<_> = (0..few(300)).map(|_| Box::pin(lock.lock_async(0..10))).collect();
        let mut context = Context::from_waker(Waker::noop());
        waiting.iter_mut().for_each(|future| assert!(future.as_mut().poll(&mut context).is_pending()));
        drop(held);
    });
    on_a_thread("a lock that goes with all it held", || {
        // More than a participant keeps: blocks go back while the lock is being taken apart.
        let lock = RangeLock::<u64>::new();
        (0..few(100_000)).for_each(|at| std::mem::forget(lock.try_lock(at * 10..at * 10 + 5).unwrap()));
    });
    for seed in 0..few(20) {
        on_a_thread("at random", move || {
            (0..3).for_each(|at| at_random(seed + at, 3000 + seed as usize * 40))
        });
    }
}
