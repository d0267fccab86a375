//! Leaks after panics. Alone in its program: it counts the bytes of the domain of all threads.

#![cfg(not(heddle_loom))]

#[path = "common/allocator.rs"]
mod allocator;
#[path = "common/keys.rs"]
mod keys;
#[path = "common/wakers.rs"]
mod wakers;

use heddle_range_lock::{RangeLock, ThreadEpoch};
use keys::{Key, be_honest, panic_after};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Requests and splits, each with a comparison that panics somewhere.
fn panic_often(turns: u32) {
    let lock = RangeLock::<Key, u64>::new();
    let mut held = Vec::new();
    for turn in 0..turns {
        let at = u64::from(turn) * 7 % 500 * 10;
        panic_after(turn * 31 % 97);
        let attempt = catch_unwind(AssertUnwindSafe(|| lock.request_as(Key(at)..Key(at + 9), 9).try_lock()));
        be_honest();
        held.extend(attempt.ok().and_then(Result::ok));
        if held.len() > 30 {
            let guard: heddle_range_lock::Guard<'_, Key, u64> = held.swap_remove(turn as usize % 30);
            let middle = Key(guard.range().start.map_or(0, |key| key.0) + 1);
            panic_after(turn % 23);
            let parts = catch_unwind(AssertUnwindSafe(|| guard.split(middle).ok()));
            be_honest();
            drop(parts);
        }
    }
}

#[test]
fn an_order_that_panics_leaks_nothing() {
    wakers::quiet();
    let turns = if cfg!(miri) { 200 } else { 10_000 };
    std::thread::scope(|scope| scope.spawn(|| panic_often(turns)).join().unwrap());
    ThreadEpoch::domain().trim();
    assert_eq!(ThreadEpoch::domain().held_bytes(), 0);
}
