//! Loom models of the protocols.

use std::sync::Arc;

use heddle_abi::shared::{ExecutorRecord, PENDING_COMPLETION, PENDING_KICK};
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::thread;

use crate::{Levels, Runnable, record};

fn both(first: impl FnOnce() + 'static, second: impl FnOnce() + 'static) {
    let other = thread::spawn(second);
    first();
    other.join().unwrap();
}

/// As many switches at bad moments as a model with loops can have.
fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Two CPUs take a level and leave it, in every interleaving: the bit ends as the counts say.
#[test]
fn bits_follow_counts() {
    const BIT: u64 = 1 << 9;
    for (first_keeps, second_keeps) in [(false, false), (true, false), (false, true), (true, true)] {
        bounded(move || {
            let page = Arc::new((Levels::new(), AtomicU64::new(0), AtomicU32::new(64)));
            let run = |keeps: bool| {
                let page = page.clone();
                move || {
                    page.0.publish(&page.1, &page.2, 0, BIT);
                    if !keeps {
                        page.0.publish(&page.1, &page.2, BIT, 0);
                    }
                }
            };
            both(run(first_keeps), run(second_keeps));
            let is_ready = first_keeps || second_keeps;
            assert_eq!(page.1.load(Ordering::Relaxed), if is_ready { BIT } else { 0 });
            assert_eq!(page.2.load(Ordering::Relaxed), if is_ready { 9 } else { 64 });
        });
    }
}

/// Two levels change at once: `best` is the bitmap's.
#[test]
fn best_follows_the_bitmap() {
    loom::model(|| {
        let page = Arc::new((Levels::new(), AtomicU64::new(0), AtomicU32::new(64)));
        page.0.publish(&page.1, &page.2, 0, 1 << 3);
        let (one, two) = (page.clone(), page.clone());
        both(
            move || one.0.publish(&one.1, &one.2, 1 << 3, 0),
            move || two.0.publish(&two.1, &two.2, 0, 1 << 7),
        );
        assert_eq!(page.1.load(Ordering::Relaxed), 1 << 7);
        assert_eq!(page.2.load(Ordering::Relaxed), 7);
    });
}

/// Something becomes ready while an executor begins a turn: the executor sees it, or who made it ready sees the turn.
#[test]
fn a_turn_against_a_completion() {
    loom::model(|| {
        let shared = Arc::new((ExecutorRecord::new(), AtomicU64::new(0)));
        let kernel = shared.clone();
        let sees_turn = thread::spawn(move || {
            kernel.1.store(1, Ordering::Relaxed);
            let _ = record::post(&kernel.0, PENDING_COMPLETION);
            record::running(&kernel.0).is_some()
        });
        let goes_on = record::begin_turn(&shared.0, 50);
        if !goes_on {
            record::end_turn(&shared.0);
            assert_eq!(record::take(&shared.0), PENDING_COMPLETION);
            // What was made ready is visible with its reason.
            assert_eq!(shared.1.load(Ordering::Relaxed), 1);
        }
        assert!(sees_turn.join().unwrap() || !goes_on);
    });
}

/// An interrupt is posted while the executor ends a masked stretch: one of the two makes it look.
#[test]
fn mask_and_interrupt() {
    loom::model(|| {
        let shared = Arc::new(ExecutorRecord::new());
        record::mask(&shared);
        let kernel = shared.clone();
        let interrupts = thread::spawn(move || record::post(&kernel, PENDING_KICK));
        let looks = record::unmask(&shared);
        assert!(interrupts.join().unwrap() || looks);
    });
}

/// An interrupt comes while the handler of another one drains: each reason is taken exactly once.
#[test]
fn a_reason_is_taken_once() {
    loom::model(|| {
        let shared = Arc::new((ExecutorRecord::new(), AtomicU32::new(0)));
        record::mask(&shared.0);
        let kernel = shared.clone();
        let poster = thread::spawn(move || {
            kernel.1.fetch_add(1, Ordering::Relaxed);
            record::post(&kernel.0, PENDING_COMPLETION)
        });
        let mut found = 0;
        let mut drain = || {
            while record::take(&shared.0) != 0 {
                found += shared.1.swap(0, Ordering::Relaxed);
            }
        };
        drain();
        while record::unmask(&shared.0) {
            record::mask(&shared.0);
            drain();
        }
        let must_interrupt = poster.join().unwrap();
        if must_interrupt && record::enter_handler(&shared.0) {
            drain();
        }
        assert_eq!(found, 1);
        assert_eq!(shared.0.pending.load(Ordering::Relaxed), 0);
    });
}

/// Two executors block one after the other while something is ready: exactly one sees that it is the last.
#[test]
fn the_last_executor_notices() {
    loom::model(|| {
        let count = Arc::new(Runnable::new());
        count.starts();
        count.starts();
        let other = count.clone();
        let second = thread::spawn(move || other.blocks());
        let first = count.blocks();
        assert!(first != second.join().unwrap());
        assert_eq!(count.count(), 0);
    });
}

/// A spare executor is on its way to sleep when the last one blocks: it is woken, or does not fall asleep.
#[test]
fn last_executor_blocks_while_a_spare_goes_to_sleep() {
    loom::model(|| {
        // The sleep is a futex wait on `pending`: the look at the word and the entry into the queue are one step.
        let shared = Arc::new((ExecutorRecord::new(), AtomicBool::new(false), loom::sync::Mutex::new(false)));
        let last = shared.clone();
        let waker = thread::spawn(move || {
            let _ = record::post(&last.0, PENDING_KICK);
            let mut sleeps = last.2.lock().unwrap();
            if *sleeps {
                *sleeps = false;
                last.1.store(true, Ordering::Relaxed);
            }
        });
        let sleeps = {
            let mut sleeps = shared.2.lock().unwrap();
            *sleeps = shared.0.pending.load(Ordering::SeqCst) == 0;
            *sleeps
        };
        waker.join().unwrap();
        assert!(!sleeps || shared.1.load(Ordering::Relaxed));
    });
}
