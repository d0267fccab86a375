//! Frames and tables that were taken out of page tables and may still be cached by other CPUs, and the work of taking
//! large trees apart.
//!
//! Everything is a *word*: a physical address with a tag in its low bits. Words whose CPUs have acknowledged (see
//! [`crate::memory::shootdown`]) are released at once, but no longer than [`BUDGET_NS`] in one go: what is left is put
//! off to [`reaper`], a coroutine, so that the end of a large program keeps interrupts off for no longer than that of a
//! small one.
//!
//! Entries of the page table that programs share may be cached by any CPU, whatever it runs. Such words are first
//! collected, by the CPU that took them out, and the reaper asks all CPUs to flush for many of them at once.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};

use crate::arch::paging::LEVELS;
use crate::arch::{MAX_CPUS, cpu, paging, time};
use crate::memory::shootdown::PendingFlush;
use crate::memory::slots::Slot;
use crate::memory::table::Root;
use crate::memory::{shootdown, table};
use crate::sched;
use crate::sync::SpinLock;

/// Tag of a page-table root; smaller ones are the level of the table that an entry was in.
pub const TAG_ROOT: u64 = LEVELS as u64;
/// Tag of a slot.
pub const TAG_SLOT: u64 = LEVELS as u64 + 1;
const TAG_MASK: u64 = 7;

/// How long one go may take.
const BUDGET_NS: u64 = 50_000;
/// How long the reaper waits for CPUs that have not acknowledged.
const PATIENCE_NS: u64 = 1_000_000;
/// A longer quarantine makes the next operation wait for all CPUs.
const WORDS_MAX: usize = 1 << 16;

/// A CPU that has collected as many words does not wait for the reaper.
const COLLECTED_MAX: usize = 1 << 12;

/// The CPUs that may still have a word cached.
#[derive(Clone, Copy)]
pub enum TlbScope {
    /// Those to which a generation was posted.
    Pending(PendingFlush),
    /// Any, and none was asked yet: it was in the page table that programs share.
    Any,
}

/// A word to be released when some CPUs have acknowledged a generation.
#[derive(Clone, Copy)]
struct DeferredFree {
    word: u64,
    posted: PendingFlush,
}

static DEFERRED: SpinLock<VecDeque<DeferredFree>> = SpinLock::new(VecDeque::new());
/// Whether [`DEFERRED`] may hold something, to be read without its lock.
static IN_USE: AtomicBool = AtomicBool::new(false);
static REAPER: SpinLock<Option<Waker>> = SpinLock::new(None);

/// Words of [`TlbScope::Any`], by the CPU that took them out.
static COLLECTED: [Collected; MAX_CPUS] = [const { Collected(SpinLock::new(Vec::new())) }; MAX_CPUS];
/// Whether one of [`COLLECTED`] may hold something.
static IS_COLLECTED: AtomicBool = AtomicBool::new(false);

#[repr(align(64))]
struct Collected(SpinLock<Vec<u64>>);

/// When to stop for now.
#[derive(Clone, Copy)]
struct ReaperBudget {
    end_ns: u64,
}

impl ReaperBudget {
    const UNLIMITED: Self = Self { end_ns: u64::MAX };

    fn new() -> Self {
        Self { end_ns: time::now_ns() + BUDGET_NS }
    }

    fn is_over(self) -> bool {
        self.end_ns != u64::MAX && time::now_ns() > self.end_ns
    }
}

/// Releases words when no CPU has them cached any more: at once or later.
pub fn release(holders: TlbScope, words: impl Iterator<Item = u64>) {
    let posted = match holders {
        TlbScope::Pending(posted) => posted,
        TlbScope::Any if cpu::count() == 1 => PendingFlush::NOBODY,
        TlbScope::Any => return words.for_each(collect),
    };
    let acknowledged = posted.is_acknowledged();
    let budget = ReaperBudget::new();
    for word in words {
        if acknowledged && is_unused(word) {
            release_word(word, budget);
        } else {
            hold(word, posted);
        }
    }
}

/// Keeps a word until the reaper asks all CPUs.
#[inline(never)]
fn collect(word: u64) {
    let mut collected = COLLECTED[cpu::id()].0.lock();
    if collected.try_reserve(1).is_err() {
        drop(collected);
        return hold(word, shootdown::post_to_all());
    }
    collected.push(word);
    let length = collected.len();
    drop(collected);
    if length == 1 {
        IS_COLLECTED.store(true, Ordering::Release);
        wake_reaper();
    } else if length > COLLECTED_MAX {
        ask();
    }
}

/// Asks all CPUs to flush for what was collected, which is held until they have.
fn ask() -> PendingFlush {
    IS_COLLECTED.store(false, Ordering::SeqCst);
    let collected = COLLECTED.each_ref().map(|list| core::mem::take(&mut *list.0.lock()));
    let posted = shootdown::post_to_all();
    collected.into_iter().flatten().for_each(|word| hold(word, posted));
    posted
}

fn wake_reaper() {
    if let Some(waker) = &*REAPER.lock() {
        waker.wake_by_ref();
    }
}

/// Keeps a word for later. Without memory to keep it in, waits for the other CPUs on the spot.
fn hold(word: u64, posted: PendingFlush) {
    let mut held = DEFERRED.lock();
    if held.len() < WORDS_MAX && held.try_reserve(1).is_ok() {
        held.push_back(DeferredFree { word, posted });
        IN_USE.store(true, Ordering::Release);
        drop(held);
        wake_reaper();
        return;
    }
    drop(held);
    posted.spin();
    while !is_unused(word) {
        core::hint::spin_loop();
    }
    release_word(word, ReaperBudget::UNLIMITED);
}

/// Releases all words whose CPUs have acknowledged.
pub fn drain() {
    let _ = drain_within(ReaperBudget::UNLIMITED);
}

/// Makes all CPUs flush, on the spot, and releases everything. For when memory is short.
pub fn drain_everywhere() {
    // Twice, since the last slot of a table releases the table, which is collected anew.
    for _ in 0..2 {
        ask().spin();
        drain();
    }
}

/// The same until the budget is exhausted; returns whether it finished.
fn drain_within(budget: ReaperBudget) -> bool {
    if !IN_USE.load(Ordering::Acquire) {
        return true;
    }
    let mut left = DEFERRED.lock().len();
    while left > 0 {
        if budget.is_over() {
            return false;
        }
        left -= 1;
        let Some(first) = DEFERRED.lock().pop_front() else { break };
        if first.posted.is_acknowledged() && is_unused(first.word) {
            release_word(first.word, budget);
        } else {
            // There is room: it was in there a moment ago, and capacity stays.
            DEFERRED.lock().push_back(first);
        }
    }
    let held = DEFERRED.lock();
    IN_USE.store(!held.is_empty(), Ordering::Release);
    true
}

/// A root may be loaded in a CPU that has nothing else to load yet; anything else is only cached.
fn is_unused(word: u64) -> bool {
    word & TAG_MASK != TAG_ROOT || !(0..cpu::count()).any(|cpu| paging::root_of(cpu) == word & !TAG_MASK)
}

fn release_word(word: u64, budget: ReaperBudget) {
    let value = word & !TAG_MASK;
    match word & TAG_MASK {
        TAG_SLOT => drop(Slot::from_word(value)),
        TAG_ROOT => Root(value).take_apart(|child| release_word(child, budget)),
        // A leaf table is the largest piece that is never divided.
        level @ 0..=1 if level == 0 || !budget.is_over() => table::release(value, level as usize),
        1 => hold(word, PendingFlush::NOBODY),
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
        if IS_COLLECTED.load(Ordering::Acquire) {
            ask();
        }
        let finished = drain_within(ReaperBudget::new());
        if !finished {
            sched::yield_now().await;
        } else if IN_USE.load(Ordering::Acquire) {
            crate::time::sleep_until(time::now_ns() + PATIENCE_NS).await;
            // A program that never enters the kernel would delay the release of all processes' memory.
            let posted = DEFERRED.lock().front().map(|first| first.posted);
            posted.inspect(|posted| posted.interrupt());
        } else {
            let mut first = true;
            poll_fn(|_| if core::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }).await;
            if !IN_USE.load(Ordering::Acquire) {
                // More may come that the same flush serves.
                crate::time::sleep_until(time::now_ns() + PATIENCE_NS).await;
            }
        }
    }
}
