//! What was taken out of page tables and may still be cached by other CPUs, and the work of taking large trees apart.
//!
//! Everything is a *word*: a physical address with a tag in its low bits. Words whose CPUs have passed (see
//! [`super::shootdown`]) are released at once, but no longer than [`BUDGET_NS`] in one go: what is left is put off to
//! [`reaper`], a coroutine, so that the end of a large program keeps interrupts off for no longer than that of a
//! small one.

use alloc::collections::VecDeque;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};

use super::shootdown::Posted;
use super::slots::Slot;
use super::table::{self, Root};
use crate::arch::paging::{self, LEVELS};
use crate::arch::{cpu, time};
use crate::schedule;
use crate::sync::SpinLock;

/// Tag of a page-table root; smaller ones are the level of the table that an entry was in.
pub const TAG_ROOT: u64 = LEVELS as u64;
/// Tag of a slot.
pub const TAG_SLOT: u64 = LEVELS as u64 + 1;
const TAG_MASK: u64 = 7;

/// How long one go may take.
const BUDGET_NS: u64 = 50_000;
/// How long the reaper waits for CPUs that have not passed.
const PATIENCE_NS: u64 = 1_000_000;
/// A longer quarantine makes the next operation wait for all CPUs.
const WORDS_MAX: usize = 1 << 16;

/// A word to be released when some CPUs have passed a generation.
#[derive(Clone, Copy)]
struct Held {
    word: u64,
    posted: Posted,
}

static HELD: SpinLock<VecDeque<Held>> = SpinLock::new(VecDeque::new());
/// Whether [`HELD`] may hold something, to be read without its lock.
static IN_USE: AtomicBool = AtomicBool::new(false);
static REAPER: SpinLock<Option<Waker>> = SpinLock::new(None);

/// When to stop for now.
#[derive(Clone, Copy)]
struct Budget {
    end_ns: u64,
}

impl Budget {
    const UNLIMITED: Self = Self { end_ns: u64::MAX };

    fn new() -> Self {
        Self { end_ns: time::now_ns() + BUDGET_NS }
    }

    fn is_over(self) -> bool {
        self.end_ns != u64::MAX && time::now_ns() > self.end_ns
    }
}

/// Releases words when all CPUs have passed: at once or later.
pub fn release(posted: Posted, words: impl Iterator<Item = u64>) {
    let passed = posted.is_passed();
    let budget = Budget::new();
    for word in words {
        if passed && is_unused(word) {
            release_word(word, budget);
        } else {
            hold(word, posted);
        }
    }
}

/// Keeps a word for later. Without memory to keep it in, waits for the other CPUs on the spot.
fn hold(word: u64, posted: Posted) {
    let mut held = HELD.lock();
    if held.len() < WORDS_MAX && held.try_reserve(1).is_ok() {
        held.push_back(Held { word, posted });
        IN_USE.store(true, Ordering::Release);
        drop(held);
        if let Some(waker) = &*REAPER.lock() {
            waker.wake_by_ref();
        }
        return;
    }
    drop(held);
    posted.spin();
    while !is_unused(word) {
        core::hint::spin_loop();
    }
    release_word(word, Budget::UNLIMITED);
}

/// Releases all words whose CPUs have passed.
pub fn drain() {
    let _ = drain_within(Budget::UNLIMITED);
}

/// The same until the budget is spent; whether it came to the end.
fn drain_within(budget: Budget) -> bool {
    if !IN_USE.load(Ordering::Acquire) {
        return true;
    }
    let mut left = HELD.lock().len();
    while left > 0 {
        if budget.is_over() {
            return false;
        }
        left -= 1;
        let Some(first) = HELD.lock().pop_front() else { break };
        if first.posted.is_passed() && is_unused(first.word) {
            release_word(first.word, budget);
        } else {
            // There is room: it was in there a moment ago, and capacity stays.
            HELD.lock().push_back(first);
        }
    }
    let held = HELD.lock();
    IN_USE.store(!held.is_empty(), Ordering::Release);
    true
}

/// A root may be loaded in a CPU that has nothing else to load yet; anything else is only cached.
fn is_unused(word: u64) -> bool {
    word & TAG_MASK != TAG_ROOT || !(0..cpu::count()).any(|cpu| paging::root_of(cpu) == word & !TAG_MASK)
}

fn release_word(word: u64, budget: Budget) {
    let value = word & !TAG_MASK;
    match word & TAG_MASK {
        TAG_SLOT => drop(Slot::from_word(value)),
        TAG_ROOT => Root(value).take_apart(|child| release_word(child, budget)),
        // A leaf table is the largest piece that is never divided.
        level @ 0..=1 if level == 0 || !budget.is_over() => table::release(value, level as usize),
        1 => hold(word, Posted::NOBODY),
        level => table::take_apart(value, level as usize, |child| release_word(child, budget)),
    }
}

/// The coroutine that releases what was put off.
pub async fn reaper() {
    poll_fn(|context| {
        *REAPER.lock() = Some(context.waker().clone());
        Poll::Ready(())
    })
    .await;
    loop {
        let finished = drain_within(Budget::new());
        if !finished {
            schedule::yield_now().await;
        } else if IN_USE.load(Ordering::Acquire) {
            crate::time::sleep_until(time::now_ns() + PATIENCE_NS).await;
        } else {
            let mut first = true;
            poll_fn(|_| if core::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }).await;
        }
    }
}
