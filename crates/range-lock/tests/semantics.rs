//! The lock's promises, one thread at a time.

#![cfg(not(heddle_loom))]

#[path = "common/allocator.rs"]
mod allocator;

use heddle_range_lock::{LockError, Mode, RangeLock, Span, TimeoutError, TryLockError};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counter() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count(AtomicUsize::new(0)));
    (count.clone(), Waker::from(count))
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn overlapping_ranges_conflict_and_disjoint_ones_do_not() {
    let lock = RangeLock::<u64>::new();
    let a = lock.try_lock(10..20).unwrap();
    for range in [0..11, 19..30, 12..13, 10..20, 0..100] {
        assert_eq!(lock.try_lock(range).unwrap_err(), TryLockError::Conflict);
    }
    let b = lock.try_lock(0..10).unwrap();
    let c = lock.try_lock(20..21).unwrap();
    drop(a);
    let d = lock.try_lock(10..20).unwrap();
    assert_eq!(d.range(), Span::from(10..20));
    drop((b, c, d));
    assert!(lock.holders().unwrap().is_empty());
}

#[test]
fn the_whole_key_space_can_be_locked() {
    let lock = RangeLock::<u64>::new();
    drop(lock.try_lock(..).unwrap());
    let top = lock.try_lock(u64::MAX..).unwrap();
    let bottom = lock.try_lock(..1).unwrap();
    assert_eq!(lock.try_lock(..).unwrap_err(), TryLockError::Conflict);
    drop(top);
    assert!(lock.try_lock(1..).is_ok());
    drop(bottom);
    assert!(lock.try_lock(..).is_ok());
    assert_eq!(lock.try_lock(5..5).unwrap_err(), TryLockError::Empty);
    assert_eq!(lock.try_lock(Span { start: Some(6), end: Some(5) }).unwrap_err(), TryLockError::Empty);
}

#[test]
fn many_ranges_are_held_found_and_released() {
    let lock = RangeLock::<u64, u32>::new();
    let many = if cfg!(miri) { 60 } else { 3000u64 };
    for round in 0..3 {
        let mut guards: Vec<_> = (0..many)
            .map(|i| (i * 7919) % many)
            .map(|i| lock.request_as(i * 10..i * 10 + 10, i as u32).try_lock().unwrap())
            .collect();
        for i in 0..many {
            let found = lock.first_conflict(i * 10 + 3..i * 10 + 4).unwrap().unwrap();
            assert_eq!((found.payload, found.range), (i as u32, Span::from(i * 10..i * 10 + 10)));
            assert!(lock.try_lock(i * 10 + 9..i * 10 + 11).is_err());
        }
        assert_eq!(lock.holders().unwrap().len(), many as usize);
        assert!(lock.try_lock(..).is_err());
        if round == 1 {
            guards.reverse();
        }
        for (i, guard) in guards.into_iter().enumerate() {
            let range = guard.range();
            drop(guard);
            if i % 5 == 0 {
                drop(lock.try_lock(range).unwrap());
            }
        }
        drop(lock.try_lock(..).unwrap());
    }
}

#[test]
fn shared_ranges_coexist_and_exclude_exclusive_ones() {
    let lock = RangeLock::<u64>::new();
    let long = lock.try_lock_shared(0..1000).unwrap();
    let short = lock.try_lock_shared(500..501).unwrap();
    assert_eq!(lock.try_lock(999..1000).unwrap_err(), TryLockError::Conflict);
    drop(long);
    let mut guard = lock.try_lock(999..1000).unwrap();
    assert!(lock.try_lock_shared(0..1000).is_err());
    guard.downgrade();
    assert_eq!(guard.mode(), Mode::Shared);
    drop((lock.try_lock_shared(0..1000).unwrap(), short));
}

#[test]
fn waiters_are_served_in_the_order_of_their_arrival() {
    let lock = RangeLock::<u64>::new();
    let holder = lock.try_lock(0..10).unwrap();
    let (count, waker) = counter();
    let mut first = lock.lock_async(5..15);
    let mut second = lock.lock_shared_async(0..20);
    let mut third = lock.lock_shared_async(14..16);
    let mut apart = lock.lock_async(15..16);
    assert!(poll(&mut first, &waker).is_pending());
    assert!(poll(&mut second, &waker).is_pending());
    // Behind the waiters it overlaps, though nobody holds anything there.
    assert!(poll(&mut third, &waker).is_pending());
    assert!(poll(&mut apart, &waker).is_pending());
    assert_eq!(lock.try_lock(12..13).unwrap_err(), TryLockError::Conflict);
    assert!(lock.try_lock(20..30).is_ok());
    drop(holder);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(poll(&mut second, &waker).is_pending());
    let Poll::Ready(Ok(guard)) = poll(&mut first, &waker) else { panic!("the way is free") };
    drop(guard);
    let Poll::Ready(Ok(both)) = poll(&mut second, &waker) else { panic!("the way is free") };
    let Poll::Ready(Ok(beside)) = poll(&mut third, &waker) else { panic!("shared beside shared") };
    assert!(poll(&mut apart, &waker).is_pending());
    drop((both, beside));
    assert!(poll(&mut apart, &waker).is_ready());
}

#[test]
fn a_cancelled_waiter_leaves_no_trace() {
    let lock = RangeLock::<u64>::new();
    let holder = lock.try_lock(0..10).unwrap();
    let (count, waker) = counter();
    let mut behind = None;
    for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
        let mut waiting = lock.lock_async(5..50);
        assert!(poll(&mut waiting, &waker).is_pending());
        let mut next = lock.lock_async(40..60);
        assert!(poll(&mut next, &waker).is_pending());
        drop(waiting);
        assert!(count.0.swap(0, Ordering::SeqCst) > 0, "who queued behind it goes on");
        assert!(poll(&mut next, &waker).is_ready());
        behind = Some(next);
    }
    drop(behind);
    assert_eq!(lock.holders().unwrap().len(), 1);
    drop(holder);
    assert!(lock.try_lock(..).is_ok());
}

#[test]
fn guards_shrink_and_split_under_waiters() {
    let lock = RangeLock::<u64, u8>::new();
    let mut guard = lock.request_as(0..100, 7).try_lock().unwrap();
    let (_, waker) = counter();
    let mut middle = lock.lock_async(40..60);
    let mut end = lock.lock_async(90..95);
    assert!(poll(&mut middle, &waker).is_pending());
    assert!(poll(&mut end, &waker).is_pending());
    guard.shrink(10..80).unwrap();
    assert!(poll(&mut middle, &waker).is_pending());
    assert!(poll(&mut end, &waker).is_ready());
    assert!(guard.shrink(0..20).is_err() && guard.shrink(30..30).is_err());
    let (low, high) = guard.split(50).unwrap();
    assert_eq!((low.range(), high.range()), (Span::from(10..50), Span::from(50..80)));
    assert_eq!((low.payload(), high.payload()), (7, 7));
    drop(low);
    assert!(poll(&mut middle, &waker).is_pending());
    let (high, error) = high.split(80).unwrap_err();
    assert_eq!(error, LockError::Empty);
    drop(high);
    assert!(poll(&mut middle, &waker).is_ready());
}

#[test]
fn owned_and_raw_guards_release() {
    let lock = Arc::new(RangeLock::<u64, u32>::new());
    let owned = lock.request_owned(0..5, 1).try_lock().unwrap();
    let raw = lock.request_as(5..9, 2).try_lock_raw().unwrap();
    let moved = std::thread::spawn(move || {
        assert_eq!(owned.payload(), 1);
        drop(owned);
    });
    moved.join().unwrap();
    assert!(lock.try_lock(0..5).is_ok());
    assert!(lock.try_lock(8..9).is_err());
    // SAFETY: taken above and not released yet.
    #[allow(unsafe_code)]
    unsafe {
        lock.release_raw(raw);
    }
    assert!(lock.try_lock(..).is_ok());
}

#[test]
fn a_panic_under_a_guard_releases_the_range() {
    let lock = RangeLock::<u64>::new();
    let outcome = std::panic::catch_unwind(|| {
        let _guard = lock.try_lock(0..5).unwrap();
        panic!("on purpose");
    });
    assert!(outcome.is_err());
    assert!(lock.try_lock(..).is_ok());
}

#[test]
fn a_thread_waits_until_its_time_is_up_or_the_range_is_free() {
    let lock = RangeLock::<u64>::new();
    let holder = lock.lock(0..10).unwrap();
    let waited = lock.lock_timeout(5..6, std::time::Duration::from_millis(5));
    assert_eq!(waited.unwrap_err(), TimeoutError::TimedOut);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock(5..15).map(drop));
        while lock.holders().unwrap().len() < 2 {
            std::thread::yield_now();
        }
        drop(holder);
        waiter.join().unwrap().unwrap();
    });
    assert!(lock.try_lock(..).is_ok());
}
