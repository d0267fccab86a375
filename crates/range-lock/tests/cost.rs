//! Costs that grow with the number of ranges, counted instead of timed: comparisons of keys, and bytes taken from the
//! allocator. Alone in its program: it replaces the allocator.

#![cfg(not(any(heddle_loom, miri)))]

#[path = "common/allocator.rs"]
mod allocator;

use heddle_range_lock::RangeLock;
use std::cell::Cell;
use std::cmp::Ordering;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

thread_local! {
    static COMPARED: Cell<u64> = const { Cell::new(0) };
}

/// A number that counts how often it is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key(u64);

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        COMPARED.set(COMPARED.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Comparisons and bytes of `body`.
fn cost<R>(body: impl FnOnce() -> R) -> (u64, usize, R) {
    let before = (COMPARED.get(), allocator::taken());
    let result = body();
    (COMPARED.get() - before.0, allocator::taken() - before.1, result)
}

fn is_ready(future: &mut (impl Future + Unpin)) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn range(at: u64) -> std::ops::Range<Key> {
    Key(at * 10)..Key(at * 10 + 5)
}

/// Held by the test that runs: the bytes that are counted are the process's.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn a_request_over_everything_costs_what_there_is_once() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    const HELD: u64 = 10_000;
    let lock = RangeLock::<Key>::new();
    let held: Vec<_> = (0..HELD).map(|at| lock.try_lock(range(at)).unwrap()).collect();
    let mut wide = lock.lock_async(..);
    let (compared, taken, ready) = cost(|| is_ready(&mut wide));
    assert!(!ready);
    // Merged one bucket after the other, this took 70 MB.
    assert!(compared < 10 * HELD && taken < 100 * HELD as usize, "{compared} comparisons, {taken} bytes");
    let (compared, _, refused) = cost(|| lock.try_lock(Key(7)..Key(8)).is_err());
    assert!(refused && compared < 200, "{compared} comparisons for a neighbour of who waits for everything");
    drop(wide);
    // Ranges that it has brought together come apart again.
    let (compared, ..) =
        cost(|| (0..HELD).for_each(|at| drop(lock.try_lock(Key(at * 10 + 6)..Key(at * 10 + 7)))));
    assert!(compared < 300 * HELD, "{compared} comparisons for {HELD} neighbours");
    drop(held);
}

#[test]
fn a_waiter_costs_the_same_however_many_wait() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    const WAITERS: u64 = 10_000;
    let lock = RangeLock::<Key>::new();
    let held = lock.try_lock(range(1)).unwrap();
    let mut waiting: Vec<_> = (0..WAITERS).map(|_| lock.lock_async(range(1))).collect();
    let (compared, taken, _) = cost(|| waiting.iter_mut().for_each(|future| assert!(!is_ready(future))));
    assert!(compared < 400 * WAITERS, "{compared} comparisons to queue {WAITERS}");
    assert!(taken < 1000 * WAITERS as usize, "{taken} bytes to queue {WAITERS}");
    drop(held);
    let (compared, ..) = cost(|| waiting.iter_mut().for_each(|future| assert!(is_ready(future))));
    assert!(compared < 400 * WAITERS, "{compared} comparisons to serve {WAITERS}");
}
