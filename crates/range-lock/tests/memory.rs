//! Memory stays flat, however many operations there were. Alone in its program: it looks at the domain of all threads.

#![cfg(not(heddle_loom))]

#[path = "common/allocator.rs"]
mod allocator;

use heddle_range_lock::{RangeLock, ThreadEpoch};
use std::thread;

/// Locks and releases ranges that wander through the key space, some of them held across others.
fn wander(lock: &RangeLock<u64>, thread: u64, operations: u64) {
    let mut held = std::collections::VecDeque::new();
    for turn in 0..operations {
        let start = turn * 8 + thread;
        held.extend(lock.try_lock(start..start + 1 + turn % 4));
        if held.len() > (turn % 32) as usize {
            held.pop_front();
        }
        if turn % 64 == 0 {
            held.clear();
            drop(lock.lock(start..start + 100).unwrap());
        }
    }
}

#[test]
fn kept_memory_is_bounded_by_the_ranges_held_at_once() {
    let operations = if cfg!(miri) { 50 } else { 60_000 };
    let lock = RangeLock::<u64>::new();
    let mut kept = Vec::new();
    for _ in 0..4 {
        thread::scope(|scope| {
            let lock = &lock;
            let threads: Vec<_> =
                (0..4).map(|thread| scope.spawn(move || wander(lock, thread, operations))).collect();
            // A join waits for a thread's destructors, which give back what it kept; the scope's end does not.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        // The threads are gone: what is left is the lock's own, in slabs of its blocks' sizes.
        ThreadEpoch::domain().trim();
        kept.push(ThreadEpoch::domain().held_bytes());
    }
    assert!(kept.iter().all(|&bytes| bytes < 2 << 20), "bytes kept after each round: {kept:?}");
    // In a thread, which keeps free blocks until its end.
    thread::scope(|scope| scope.spawn(|| drop(lock)).join().unwrap());
    ThreadEpoch::domain().trim();
    assert_eq!(ThreadEpoch::domain().held_bytes(), 0, "bytes without any lock");
}
