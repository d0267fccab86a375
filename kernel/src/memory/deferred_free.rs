//! Frames and tables that were taken out of page tables and may still be cached by other CPUs, and the work of taking
//! large trees apart.
//!
//! Everything is a *word*: a physical address with a tag in its low bits. Words whose CPUs have acknowledged (see
//! [`crate::memory::shootdown`]) are released at once, but no longer than [`BUDGET_NS`] in one go: what is left is put
//! off to [`reaper`], a coroutine, so that the end of a large program keeps interrupts off for no longer than that of a
//! small one.

use alloc::collections::VecDeque;
use core::cell::Cell;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};

use crate::arch::paging::{LEVELS, PageTableEntry};
use crate::arch::{cpu, paging, time};
use crate::memory::shootdown::PendingFlush;
use crate::memory::slots::Slot;
use crate::memory::table::Root;
use crate::memory::{roots, shootdown, table};
use crate::sched;
use crate::sync::SpinLock;

use heddle_kernel_core::fallible::push_back_reserved;

/// Tag of a page-table root; smaller ones are the level of the table that an entry was in.
pub const TAG_ROOT: u64 = LEVELS as u64;
/// Tag of the table of a slot, with the slot's number in the bits from [`SLOT_SHIFT`] on: with the table, its
/// remnants in CPUs' roots and a claim of the slot go.
pub const TAG_SLOT: u64 = LEVELS as u64 + 1;
/// Tag of a large page.
const TAG_LARGE: u64 = LEVELS as u64 + 2;
const TAG_MASK: u64 = 7;
/// Above all bits of a physical address.
const SLOT_SHIFT: u32 = 52;

/// How long one go may take.
const BUDGET_NS: u64 = 50_000;
/// How long the reaper waits for CPUs that have not acknowledged.
const ACKNOWLEDGE_TIMEOUT_NS: u64 = 1_000_000;
/// A longer quarantine makes the next operation wait for all CPUs.
const WORDS_MAX: usize = 1 << 16;
/// The longest list that is kept when nothing is in it.
const CAPACITY_KEPT: usize = 256;

/// A word to be released when some CPUs have acknowledged a generation.
#[derive(Clone, Copy)]
struct DeferredFree {
    word: u64,
    posted: PendingFlush,
}

impl DeferredFree {
    fn is_due(&self) -> bool {
        let is_seen =
            if is_table(self.word) { self.posted.is_flushed() } else { self.posted.is_acknowledged() };
        is_seen && is_unused(self.word)
    }

    /// Interrupts the CPUs that it waits for.
    fn interrupt(&self) {
        if is_table(self.word) {
            self.posted.interrupt_unflushed();
        } else {
            self.posted.interrupt();
        }
    }
}

/// Whether a word leads to a table, into which a CPU may look until it has flushed, and not to a page.
fn is_table(word: u64) -> bool {
    !matches!(word & TAG_MASK, 0 | TAG_LARGE)
}

static DEFERRED: SpinLock<VecDeque<DeferredFree>> = SpinLock::new(VecDeque::new());
/// Whether [`DEFERRED`] may hold something, to be read without its lock.
static IN_USE: AtomicBool = AtomicBool::new(false);
static REAPER: SpinLock<Option<Waker>> = SpinLock::new(None);

/// The word of a slot's table, whose claim it is.
pub fn slot_word(slot: Slot, table: PageTableEntry) -> u64 {
    (slot.into_number() as u64) << SLOT_SHIFT | table.physical() | TAG_SLOT
}

/// The word of an entry that was in a table of `level`.
#[inline]
pub fn entry_word(entry: PageTableEntry, level: usize) -> u64 {
    // Physical addresses of pages leave the low bits free for the tag.
    let tag = if level == 1 && entry.is_large() { TAG_LARGE } else { level as u64 };
    entry.physical() | tag
}

/// When to stop for now: not before there was one step, however slow the processor is.
struct ReaperBudget {
    end_ns: u64,
    has_begun: Cell<bool>,
}

impl ReaperBudget {
    const fn unlimited() -> Self {
        Self { end_ns: u64::MAX, has_begun: Cell::new(false) }
    }

    fn new() -> Self {
        Self { end_ns: time::now_ns() + BUDGET_NS, has_begun: Cell::new(false) }
    }

    fn is_over(&self) -> bool {
        self.has_begun.get() && self.end_ns != u64::MAX && time::now_ns() > self.end_ns
    }

    fn note_step(&self) {
        self.has_begun.set(true);
    }
}

/// Releases words when the CPUs have acknowledged to which `posted` went: at once or later.
pub fn release(posted: PendingFlush, words: impl Iterator<Item = u64>) {
    let (acknowledged, flushed) = (posted.is_acknowledged(), posted.is_flushed());
    let budget = ReaperBudget::new();
    for word in words {
        if (if is_table(word) { flushed } else { acknowledged }) && is_unused(word) {
            release_word(word, &budget);
        } else {
            hold(word, posted);
        }
    }
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
        push_back_reserved(&mut held, DeferredFree { word, posted });
        IN_USE.store(true, Ordering::Release);
        drop(held);
        wake_reaper();
        return;
    }
    drop(held);
    wait_and_release(DeferredFree { word, posted });
}

fn wait_and_release(DeferredFree { word, posted }: DeferredFree) {
    posted.spin();
    while !is_unused(word) {
        core::hint::spin_loop();
    }
    release_word(word, &ReaperBudget::unlimited());
}

/// Releases all words whose CPUs have acknowledged.
pub fn drain() {
    let _ = drain_within(&ReaperBudget::unlimited());
}

/// Makes all CPUs flush, on the spot, and releases everything. For when memory is short.
pub fn drain_everywhere() {
    shootdown::post_to_all().spin();
    drain();
}

/// The same until the budget is exhausted; returns whether it finished.
fn drain_within(budget: &ReaperBudget) -> bool {
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
        if first.is_due() {
            release_word(first.word, budget);
        } else {
            let mut held = DEFERRED.lock();
            if held.try_reserve(1).is_ok() {
                push_back_reserved(&mut held, first);
            } else {
                drop(held);
                wait_and_release(first);
            }
        }
        budget.note_step();
    }
    let mut held = DEFERRED.lock();
    IN_USE.store(!held.is_empty(), Ordering::Release);
    // After a large quarantine the list would stay as long as that was.
    let is_large = held.is_empty() && held.capacity() > CAPACITY_KEPT;
    let large = if is_large { core::mem::take(&mut *held) } else { VecDeque::new() };
    drop(held);
    drop(large);
    true
}

/// A root may be loaded in a CPU that has nothing else to load yet; anything else is only cached.
fn is_unused(word: u64) -> bool {
    word & TAG_MASK != TAG_ROOT || !(0..cpu::count()).any(|cpu| paging::root_of(cpu) == word & !TAG_MASK)
}

fn release_word(word: u64, budget: &ReaperBudget) {
    let value = word & !TAG_MASK;
    match word & TAG_MASK {
        TAG_SLOT => {
            let (slot, table) = ((value >> SLOT_SHIFT) as usize, value & ((1 << SLOT_SHIFT) - 1));
            roots::forget(slot, PageTableEntry::table(table, true).0);
            drop(Slot::from_number(slot));
            table::take_apart(table, LEVELS - 1, |child| release_word(child, budget));
        }
        TAG_ROOT => Root(value).take_apart(|child| release_word(child, budget)),
        // A leaf table is the largest piece that is never divided. The clock is not read for every page: one call
        // releases as many as a gather holds.
        level @ 0..=1 if level == 0 || !budget.is_over() => {
            table::release(value, level as usize);
            budget.note_step();
        }
        TAG_LARGE if !budget.is_over() => {
            table::release_large(value);
            budget.note_step();
        }
        1 | TAG_LARGE => hold(word, PendingFlush::NONE),
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
        let finished = drain_within(&ReaperBudget::new());
        if !finished {
            sched::poll_interrupts();
            sched::yield_now().await;
        } else if IN_USE.load(Ordering::Acquire) {
            crate::time::sleep_until(time::now_ns() + ACKNOWLEDGE_TIMEOUT_NS).await;
            // A program that never enters the kernel would delay the release of all processes' memory.
            let first = DEFERRED.lock().front().copied();
            first.inspect(DeferredFree::interrupt);
        } else {
            let mut first = true;
            poll_fn(|_| if core::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }).await;
            if !IN_USE.load(Ordering::Acquire) {
                // More may come that the same flush serves.
                crate::time::sleep_until(time::now_ns() + ACKNOWLEDGE_TIMEOUT_NS).await;
            }
        }
    }
}
