//! Experiment A of papers 1 and 2, with threads: `ring n=THREADS by=yield|key [order=created|shuffled] [seed=S]`; with
//! `as=coroutine` [`crate::coroutine`] runs it.
//!
//! N threads numbered 1 to N share a word that starts at 0; main sets it to 1; each waits until the word is its number
//! and then adds 1. By `yield` a thread whose turn it isn't yields, as in the papers; by `key` it sleeps until its
//! predecessor wakes it by its number: with threads by a futex.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use crate::arguments::Arguments;
use crate::measure::report;

const STACK_BYTES: usize = 64 << 10;

struct Ring {
    word: AtomicU64,
    started: AtomicU64,
    /// The threads by number, for waking; entry 0 is unused.
    members: Vec<OnceLock<Thread>>,
    by_key: bool,
}

impl Ring {
    fn member(&self, number: u64) {
        let own = &self.members[number as usize];
        own.get_or_init(std::thread::current);
        self.started.fetch_add(1, Ordering::Release);
        while self.word.load(Ordering::Acquire) != number {
            if self.by_key { std::thread::park() } else { std::thread::yield_now() }
        }
        self.word.store(number + 1, Ordering::Release);
        self.wake(number + 1);
    }

    fn wake(&self, number: u64) {
        if self.by_key
            && let Some(thread) = self.members.get(number as usize).and_then(OnceLock::get)
        {
            thread.unpark();
        }
    }
}

/// Of how many threads or coroutines the ring is that runs unmeasured before the one that counts.
const WARM_UP: u64 = 10;

/// Measures one ring. A short one runs before it: what comes first in a process pays for binding and translating code.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let count = arguments.number("n", 200)?;
    let (by, order) = (arguments.text("by", "yield"), arguments.text("order", "created"));
    let by_key = match by {
        "key" => true,
        "yield" => false,
        _ => return Err(format!("unknown way '{by}'")),
    };
    let ring = |count| {
        let mut numbers: Vec<u64> = (1..=count).collect();
        if order == "shuffled" {
            shuffle(&mut numbers, arguments.number("seed", 1)?);
        }
        match arguments.text("as", "thread") {
            "coroutine" => crate::coroutine::ring(arguments, numbers, by_key),
            _ => threads(&numbers, by_key),
        }
    };
    ring(count.min(WARM_UP))?;
    report(&format!("ring-{by}-{order}-{count}"), count, ring(count)?);
    Ok(())
}

/// The time from setting the word to 1, when every thread waits, until all have added and ended, in nanoseconds.
fn threads(numbers: &[u64], by_key: bool) -> Result<u128, String> {
    let count = numbers.len() as u64;
    let members = (0..=count).map(|_| OnceLock::new()).collect();
    let ring = Arc::new(Ring { word: AtomicU64::new(0), started: AtomicU64::new(0), members, by_key });
    let mut threads = Vec::new();
    for number in numbers.iter().copied() {
        let ring = ring.clone();
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || ring.member(number));
        threads.push(thread.map_err(|error| format!("thread {number}: {error}"))?);
    }
    while ring.started.load(Ordering::Acquire) < count {
        std::thread::yield_now();
    }
    let begin = std::time::Instant::now();
    ring.word.store(1, Ordering::Release);
    ring.wake(1);
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")?;
    }
    Ok(begin.elapsed().as_nanos())
}

/// Fisher and Yates' shuffle with a linear congruential generator, so that a seed names an order.
fn shuffle(numbers: &mut [u64], seed: u64) {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    for index in (1..numbers.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(index, (state >> 33) as usize % (index + 1));
    }
}
