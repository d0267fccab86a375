//! Threads over a shadow array that knows who owns every key: any overlap that the lock lets through is seen.
//! `HEDDLE_STRESS_OPS` sets the number of operations (the long tier takes 100 million).

#![cfg(not(heddle_loom))]

#[path = "common/allocator.rs"]
mod allocator;

use heddle_range_lock::{Guard, RangeLock, SharedEpoch, Span};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread;

const KEYS: usize = 256;
const THREADS: u64 = 4;

fn operations() -> u64 {
    let default = if cfg!(miri) { 400 } else { 400_000 };
    std::env::var("HEDDLE_STRESS_OPS").ok().and_then(|ops| ops.parse().ok()).unwrap_or(default)
}

/// A generator good enough to vary ranges: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// Per key: -1 under an exclusive range, else the number of shared ranges over it. The plain words beside it are
/// written under exclusive ranges only, so Miri and the sums below see a lost release too.
struct Shadow {
    owners: Vec<AtomicI32>,
    sums: Vec<AtomicU64>,
    written: AtomicU64,
}

impl Shadow {
    fn new() -> Self {
        Self {
            owners: (0..KEYS).map(|_| AtomicI32::new(0)).collect(),
            sums: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
            written: AtomicU64::new(0),
        }
    }

    fn keys(range: &Span<u64>) -> std::ops::Range<usize> {
        range.start.unwrap_or(0) as usize..range.end.unwrap_or(KEYS as u64) as usize
    }

    fn check_exclusive(&self, guard: &Guard<'_, u64>) {
        let keys = Self::keys(&guard.range());
        for key in keys.clone() {
            assert_eq!(self.owners[key].swap(-1, Ordering::Relaxed), 0, "key {key} had another owner");
            // Not one step on purpose: a second owner would lose a count.
            self.sums[key].store(self.sums[key].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        self.written.fetch_add(keys.len() as u64, Ordering::Relaxed);
        for key in keys {
            assert_eq!(self.owners[key].swap(0, Ordering::Relaxed), -1, "key {key} got another owner");
        }
    }

    fn check_shared(&self, guard: &Guard<'_, u64>) {
        for key in Self::keys(&guard.range()) {
            assert!(
                self.owners[key].fetch_add(1, Ordering::Relaxed) >= 0,
                "key {key} had an exclusive owner"
            );
        }
        for key in Self::keys(&guard.range()) {
            assert!(
                self.owners[key].fetch_sub(1, Ordering::Relaxed) >= 1,
                "key {key} got an exclusive owner"
            );
        }
    }
}

fn some_range(random: &mut Random) -> Span<u64> {
    let longest = [2, 4, 16, 16, KEYS as u64][random.below(5) as usize];
    let start = random.below(KEYS as u64);
    let end = start + 1 + random.below(longest);
    match random.below(200) {
        0 => Span::from(..),
        1 => Span::from(start..),
        2 => Span::from(..start + 1),
        _ => Span::from(start..end.min(KEYS as u64)),
    }
}

fn one_operation(lock: &RangeLock<u64>, shadow: &Shadow, random: &mut Random) {
    let range = some_range(random);
    match random.below(10) {
        0..5 => {
            if let Ok(guard) = lock.try_lock(range) {
                shadow.check_exclusive(&guard);
            }
        }
        5 => shadow.check_exclusive(&lock.lock(range).unwrap()),
        6 => shadow.check_shared(&lock.lock_shared(range).unwrap()),
        7 => {
            if let Ok(guard) = lock.request(range).lock_timeout(std::time::Duration::from_micros(20)) {
                shadow.check_exclusive(&guard);
            }
        }
        8 => {
            if let Ok(mut guard) = lock.try_lock(range) {
                shadow.check_exclusive(&guard);
                guard.downgrade();
                shadow.check_shared(&guard);
            }
        }
        _ => {
            if let Ok(guard) = lock.try_lock_shared(range) {
                shadow.check_shared(&guard);
            }
        }
    }
}

#[test]
fn no_key_ever_has_two_owners() {
    let lock = RangeLock::<u64>::new();
    let shadow = Shadow::new();
    let share = operations() / THREADS;
    // In rounds, so that threads come and go.
    for round in 0..4 {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (lock, shadow) = (&lock, &shadow);
                scope.spawn(move || {
                    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (thread + THREADS * round + 1) << 20);
                    for _ in 0..share / 4 {
                        one_operation(lock, shadow, &mut random);
                    }
                });
            }
        });
        assert!(lock.holders().unwrap().is_empty());
    }
    let sum: u64 = shadow.sums.iter().map(|sum| sum.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, shadow.written.load(Ordering::Relaxed), "two owners wrote at once");
    println!("no_key_ever_has_two_owners: {} ran", share / 4 * 4 * THREADS);
}

#[test]
fn ranges_held_across_operations_stay_owned() {
    let lock = RangeLock::<u64, u64>::new();
    let share = operations() / THREADS / 8;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let lock = &lock;
            scope.spawn(move || {
                let mut random = Random(thread + 77);
                let mut held = Vec::new();
                for _ in 0..share {
                    if held.len() < 40 && random.below(2) == 0 {
                        let start = random.below(4096);
                        let range = start..start + 1 + random.below(8);
                        if let Ok(guard) = lock.request_as(range, thread).try_lock() {
                            held.push(guard);
                        }
                    } else if !held.is_empty() {
                        let at = random.below(held.len() as u64) as usize;
                        let guard: Guard<'_, u64, u64> = held.swap_remove(at);
                        let seen = lock.first_conflict(guard.range()).unwrap().unwrap();
                        assert_eq!((seen.payload, seen.range), (thread, guard.range()));
                    }
                }
            });
        }
    });
    assert!(lock.holders().unwrap().is_empty());
    assert!(lock.try_lock(..).is_ok());
}

#[test]
fn wide_requests_get_their_turn_among_short_ones() {
    let lock = RangeLock::<u64>::new();
    let turns = if cfg!(miri) { 2 } else { 200 };
    let over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (lock, over) = (&lock, &over);
            scope.spawn(move || {
                let mut random = Random(thread + 5);
                while !over.load(Ordering::Relaxed) {
                    let start = random.below(64);
                    drop(lock.lock(start..start + 2).unwrap());
                }
            });
        }
        // Without a place in the order these would wait for a moment in which nobody holds anything.
        for _ in 0..turns {
            drop(lock.lock(..).unwrap());
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn participants_can_be_claimed_for_each_operation() {
    let lock = RangeLock::<u64, (), SharedEpoch>::new();
    let sum = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (lock, sum) = (&lock, &sum);
            scope.spawn(move || {
                for turn in 0..operations() / 4000 {
                    let key = (turn * 7 + thread) % 5;
                    let guard = lock.lock(key..key + 3).unwrap();
                    let other = lock.try_lock(100 + thread..101 + thread).unwrap();
                    if guard.range().contains(4) {
                        sum.store(sum.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                    drop(other);
                }
            });
        }
    });
    let over_four = |turn: u64, thread| (2..=4).contains(&((turn * 7 + thread) % 5));
    let expected = (0..THREADS).flat_map(|thread| (0..operations() / 4000).map(move |turn| (turn, thread)));
    let expected = expected.filter(|&(turn, thread)| over_four(turn, thread)).count();
    assert_eq!(sum.load(Ordering::Relaxed), expected as u64, "two owners wrote at once");
}
