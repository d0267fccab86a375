//! Hostile uses from safe code: an order that lies or panics, wakers that panic or come back. Exclusion may go
//! with a lying order; memory may not, nor anything else with the rest.

#![cfg(not(heddle_loom))]

#[path = "common/allocator.rs"]
mod allocator;
#[path = "common/keys.rs"]
mod keys;
#[path = "common/wakers.rs"]
mod wakers;

use heddle_range_lock::{Domain, Guard, Participant, RangeLock};
use keys::{Key, be_honest, lie, lie_at_random, panic_after};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

fn range(at: u64, length: u64) -> std::ops::Range<Key> {
    Key(at)..Key(at + length)
}

/// Each guard still says what it said when it was made.
fn all_intact(held: &[(u64, Guard<'_, Key, u64>)]) {
    for (at, guard) in held {
        assert_eq!(guard.payload(), 7 + at, "the node of a held guard was used again");
        assert_eq!(guard.range().start, Some(Key(at * 10)));
    }
}

fn a_lie(after: u32, count: u32) {
    // Never dropped: with a broken order a range may be left behind, which is what the lies cost.
    let lock: &RangeLock<Key, u64> = Box::leak(Box::new(RangeLock::new()));
    let held: Vec<_> =
        (0..13).map(|at| (at, lock.request_as(range(at * 10, 5), 7 + at).try_lock().unwrap())).collect();
    lie(after, count);
    let mut more = Vec::new();
    for at in 0..40 {
        let guard = lock.request_as(range(at * 10 + 6, 2), 1000 + at).try_lock();
        more.extend(guard.ok().filter(|_| at % 2 == 0));
    }
    be_honest();
    for at in 0..if cfg!(miri) { 40 } else { 300 } {
        drop(lock.request_as(range(100_000 + at % 50 * 10, 1), 5).try_lock());
    }
    all_intact(&held);
}

#[test]
fn an_order_that_lies_at_any_moment_takes_no_node_from_its_guard() {
    let (step, counts): (_, &[u32]) =
        if cfg!(miri) { (797, &[1, 5, 34]) } else { (5, &[1, 2, 3, 5, 8, 13, 21, 34]) };
    for after in (0..2500).step_by(step) {
        for count in counts {
            a_lie(after, *count);
        }
    }
}

#[test]
fn an_order_that_lies_at_random_takes_no_node_from_its_guard() {
    for seed in 1..if cfg!(miri) { 4 } else { 3000 } {
        let lock = RangeLock::<Key, u64>::new();
        let held: Vec<_> =
            (0..11).map(|at| (at, lock.request_as(range(at * 10, 5), 7 + at).try_lock().unwrap())).collect();
        lie_at_random(u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15));
        let mut more = Vec::new();
        for at in 0..60 {
            let guard = lock.request_as(range((at * 37 + seed) % 190, 1), 7).try_lock();
            more.extend(guard.ok().filter(|_| at % 3 == 0));
        }
        be_honest();
        all_intact(&held);
    }
}

#[test]
fn an_order_that_panics_leaves_what_is_held() {
    wakers::quiet();
    let lock = RangeLock::<Key, u64>::new();
    let mut held: Vec<(u64, Guard<'_, Key, u64>)> = Vec::new();
    for turn in 0..if cfg!(miri) { 150 } else { 20_000 } {
        let at = turn * 7 % 500;
        panic_after((turn * 31 % 97) as u32);
        let attempt = || lock.request_as(range(at * 10, 1 + turn % 30), 7 + at).try_lock();
        let outcome = catch_unwind(AssertUnwindSafe(attempt));
        be_honest();
        held.extend(outcome.ok().and_then(Result::ok).map(|guard| (at, guard)));
        if held.len() > 30 {
            drop(held.swap_remove((turn % 30) as usize));
        }
        all_intact(&held);
        assert_eq!(lock.holders().unwrap().len(), held.len());
    }
}

#[test]
fn a_participant_belongs_to_one_domain() {
    static FIRST: Domain = Domain::new();
    static SECOND: Domain = Domain::new();
    static PARTICIPANT: Participant = Participant::new();
    assert!(FIRST.attach(&PARTICIPANT));
    assert!(!SECOND.attach(&PARTICIPANT), "the first domain's list leads through the participant");
    assert!(!FIRST.attach(&PARTICIPANT), "it would come after itself");
}

/// A held range, and a future that waits for it with `waker` before one that waits with a waker that counts.
fn behind<'a>(
    lock: &'a RangeLock<u64>,
    waker: &Waker,
) -> (Guard<'a, u64>, impl Future<Output = ()> + Unpin + use<'a>, impl Future<Output = ()> + Unpin + use<'a>)
{
    let held = lock.try_lock(0..10).unwrap();
    let wait = |range| Box::pin(async move { drop(lock.lock_shared_async(range).await) });
    let (mut first, second) = (wait(0..4), wait(5..9));
    assert!(poll(&mut first, waker).is_pending());
    (held, first, second)
}

fn ends_free(lock: &RangeLock<u64>) {
    assert!(lock.holders().unwrap().is_empty());
    assert!(lock.try_lock(..).is_ok());
}

#[test]
fn a_waker_that_panics_stays_inside_and_keeps_no_other_from_being_woken() {
    wakers::quiet();
    let change: [fn(Guard<'_, u64>); 4] = [
        |guard| drop(guard),
        |mut guard| guard.downgrade(),
        |mut guard| {
            guard.shrink(9..10).unwrap();
            assert_eq!(guard.range(), (9..10).into());
        },
        |guard| {
            let (low, high) = guard.split(5).ok().unwrap();
            assert_eq!((low.range(), high.range()), ((0..5).into(), (5..10).into()));
            drop((low, high));
        },
    ];
    for change in change {
        let lock = RangeLock::<u64>::new();
        let (held, mut first, mut second) = behind(&lock, &wakers::panicking());
        let (count, waker) = wakers::Running::new(|| ());
        assert!(poll(&mut second, &waker).is_pending());
        change(held);
        assert_eq!(count.wakes.load(Ordering::SeqCst), 1, "the other one is woken all the same");
        assert!(poll(&mut first, Waker::noop()).is_ready() && poll(&mut second, &waker).is_ready());
        ends_free(&lock);
    }
}

#[test]
fn a_waker_that_panics_does_not_keep_a_cancelled_request_in_the_queue() {
    wakers::quiet();
    let lock = RangeLock::<u64>::new();
    let held = lock.try_lock(0..10).unwrap();
    let mut cancelled = lock.lock_async(0..10);
    assert!(poll(&mut cancelled, Waker::noop()).is_pending());
    let mut behind = lock.lock_async(0..10);
    assert!(poll(&mut behind, &wakers::panicking()).is_pending());
    drop(cancelled);
    drop(held);
    assert!(poll(&mut behind, Waker::noop()).is_ready());
    ends_free(&lock);
}

#[test]
fn a_waker_whose_drop_panics_leaves_the_lock_whole() {
    wakers::quiet();
    for resolves in [false, true] {
        let lock = RangeLock::<u64>::new();
        let held = lock.try_lock(0..10).unwrap();
        let mut future = Box::pin(lock.lock_async(0..10));
        // The first one registered is replaced by the second, and that one is dropped as the future ends.
        let waker = wakers::drop_panics();
        assert!(poll(&mut future, &waker).is_pending());
        wakers::set_drops_panic(true);
        if resolves {
            drop(held);
            let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut future, Waker::noop()).is_ready()));
            let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
        } else {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
            drop(held);
        }
        wakers::set_drops_panic(false);
        drop(waker);
        ends_free(&lock);
    }
}

#[test]
fn a_waker_may_come_back_to_the_lock() {
    let lock = Arc::new(RangeLock::<u64>::new());
    let again = lock.clone();
    let (count, waker) = wakers::Running::new(move || {
        let _ = again.try_lock(0..3);
        let mut future = again.lock_async(0..10);
        let _ = poll(&mut future, Waker::noop());
        let _far = again.try_lock(100..200);
        drop(future);
        assert!(again.first_conflict(..).is_ok());
    });
    for _ in 0..if cfg!(miri) { 5 } else { 1000 } {
        let held = lock.try_lock(0..10).unwrap();
        let mut future = lock.lock_async(0..5);
        assert!(poll(&mut future, &waker).is_pending());
        drop(held);
        assert!(poll(&mut future, &waker).is_ready());
    }
    assert!(count.wakes.load(Ordering::SeqCst) > 0);
    assert!(lock.holders().unwrap().is_empty());
}

/// Owns a future of the same lock: a simple executor's waker may.
struct Owning(
    #[allow(dead_code, reason = "held for its drop")]
    std::sync::Mutex<Option<heddle_range_lock::LockFuture<Arc<RangeLock<u64>>>>>,
);

impl std::task::Wake for Owning {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_may_own_another_request_of_the_lock() {
    let lock = Arc::new(RangeLock::<u64>::new());
    let held = lock.try_lock(0..10).unwrap();
    let mut inner = lock.request_owned(0..10, ()).lock_async();
    assert!(poll(&mut inner, Waker::noop()).is_pending());
    let waker = Waker::from(Arc::new(Owning(std::sync::Mutex::new(Some(inner)))));
    let mut outer = lock.request_owned(0..10, ()).lock_async();
    assert!(poll(&mut outer, &waker).is_pending());
    drop(waker);
    // Drops the waker, and with it the other request.
    drop(outer);
    assert_eq!(lock.holders().unwrap().len(), 1);
    drop(held);
    ends_free(&lock);
}

#[test]
fn a_forgotten_request_keeps_its_waker_no_longer_than_the_lock() {
    let (count, waker) = wakers::Running::new(|| ());
    {
        let lock = RangeLock::<u64>::new();
        let held = lock.try_lock(0..10).unwrap();
        for _ in 0..20 {
            let mut future = lock.lock_async(0..5);
            assert!(poll(&mut future, &waker).is_pending());
            std::mem::forget(future);
        }
        std::mem::forget(held);
        assert!(Arc::strong_count(&count) > 20);
    }
    drop(waker);
    assert_eq!(Arc::strong_count(&count), 1, "wakers that outlive the lock");
}
