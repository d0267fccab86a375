//! Objects whose pages can be read again: stores to them are written back to somewhere else than memory.
//!
//! When memory is short, a coroutine (the *storer*) writes pages back, and whoever lacks memory waits for it as long as
//! it gets on: a host that hangs keeps the storer, and then other memory has to do.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::Poll;

use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::memory::fallible::try_push;
use crate::memory::source::{MapSource, Written};
use crate::memory::space::unmap_shared;
use crate::memory::{frame, reclaim};
use crate::sched;
use crate::sched::{Priority, TaskRef};
use crate::sync::SpinLock;
use crate::time;

/// How long the storer may take for a page before it counts as stuck.
const STUCK_NS: u64 = 5 * time::NS_PER_SECOND;
/// How often who waits for it looks.
const LOOK_NS: u64 = 1_000_000;

static STORER: spin::Once<TaskRef> = spin::Once::new();
/// Rounds of the storer that were asked for, and that are done.
static ROUNDS_ASKED: AtomicU64 = AtomicU64::new(0);
static ROUNDS_DONE: AtomicU64 = AtomicU64::new(0);
/// Counts pages that were stored.
static PROGRESS: AtomicU64 = AtomicU64::new(0);
/// Nobody waits for the storer until it has stored something.
static IS_STUCK: AtomicBool = AtomicBool::new(false);

/// All of them that are mapped.
static MAPPED: SpinLock<Vec<Weak<dyn MapSource>>> = SpinLock::new(Vec::new());

/// Has an object stored at the machine's end, and its pages taken when memory is short.
///
/// # Errors
/// `ENOMEM`.
pub fn register(source: &Arc<dyn MapSource>) -> Result<(), Errno> {
    STORER.try_call_once(|| sched::spawn(Priority::KERNEL, store_rounds()))?;
    let mut mapped = MAPPED.lock();
    mapped.retain(|known| known.strong_count() > 0);
    try_push(&mut mapped, Arc::downgrade(source))
}

/// The object at this place of the list, if it still is one; `None` behind the last.
fn nth(index: usize) -> Option<Option<Arc<dyn MapSource>>> {
    MAPPED.lock().get(index).map(Weak::upgrade)
}

/// Stores what was written to all objects.
///
/// # Errors
/// The first error of storing one.
pub fn store_all() -> Result<(), Errno> {
    let mut result = Ok(());
    for source in (0..).map_while(nth).flatten() {
        result = result.and(source.store(&Written { pages: 0..u64::MAX, moment: 0 }, false));
    }
    result
}

/// The storer has stored a page.
pub fn note_progress() {
    PROGRESS.fetch_add(1, Ordering::Relaxed);
    IS_STUCK.store(false, Ordering::Relaxed);
}

/// The storer.
async fn store_rounds() {
    loop {
        let is_asked = |_: &mut core::task::Context<'_>| {
            let asked = ROUNDS_ASKED.load(Ordering::Acquire);
            if asked == ROUNDS_DONE.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(asked) }
        };
        let asked = poll_fn(is_asked).await;
        for source in (0..).map_while(nth).flatten() {
            source.store_unmapped();
        }
        IS_STUCK.store(false, Ordering::Relaxed);
        ROUNDS_DONE.store(asked, Ordering::Release);
    }
}

/// Has the storer store all pages that are not mapped, and waits for it as long as it gets on.
async fn store_unmapped() {
    let Some(storer) = STORER.get() else { return };
    let round = ROUNDS_ASKED.fetch_add(1, Ordering::AcqRel) + 1;
    storer.wake();
    let (mut progress, mut since_ns) = (PROGRESS.load(Ordering::Relaxed), now_ns());
    while ROUNDS_DONE.load(Ordering::Acquire) < round && !IS_STUCK.load(Ordering::Relaxed) {
        let stored = PROGRESS.load(Ordering::Relaxed);
        if stored != progress {
            (progress, since_ns) = (stored, now_ns());
        } else if now_ns().saturating_sub(since_ns) > STUCK_NS {
            ::log::warn!("pages of shared folders are not stored: the host does not answer");
            IS_STUCK.store(true, Ordering::Relaxed);
        }
        time::sleep_until(now_ns() + LOOK_NS).await;
    }
}

/// Takes all pages from the programs that have them mapped shared, and gives them back; whether that was any memory.
pub async fn evict() -> bool {
    let before = frame::free_frames();
    let mut index = 0;
    while let Some(next) = nth(index) {
        index += 1;
        if let Some(source) = next {
            // Pages that remain mapped are kept.
            unmap_shared(&source, 0..u64::MAX).await;
        }
    }
    // Deferred frees still refer to unmapped pages, so they are released first.
    frame::drain_caches();
    store_unmapped().await;
    reclaim::reclaim();
    frame::free_frames() > before
}
