//! Pages of large files that have ended, freed in steps by a coroutine: the last close of a file must not take longer
//! the larger it is. To its file system they are free at once.

use alloc::vec::Vec;

use heddle_kernel_core::fallible::push_reserved;

use crate::fs::tree::content::Content;
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue};

/// Files with no more pages are freed on the spot.
const PAGES_AT_ONCE: u64 = 64;
/// The cost of freeing so many.
const STEP_COST: u32 = 16;

static DEFERRED_CONTENTS: SpinLock<Vec<Content>> = SpinLock::new(Vec::new());
static ADDED: WaitQueue = WaitQueue::new();

/// Frees what a file held, now or soon.
pub(super) fn free(mut content: Content) {
    if content.own_pages() > PAGES_AT_ONCE {
        let mut contents = DEFERRED_CONTENTS.lock();
        if contents.try_reserve(1).is_ok() {
            push_reserved(&mut contents, content);
            drop(contents);
            ADDED.wake(Events::all());
            return;
        }
    }
    while !content.free_some(PAGES_AT_ONCE) {}
}

/// Frees what has been left, in steps.
pub async fn run() {
    let mut budget = Budget::new();
    loop {
        crate::device::wait(&ADDED, || !DEFERRED_CONTENTS.lock().is_empty()).await;
        while let Some(mut content) = next() {
            while !content.free_some(PAGES_AT_ONCE) {
                budget.step(STEP_COST).await;
            }
        }
    }
}

/// Frees all that has been left. For when memory is short.
pub(super) fn drain() {
    while let Some(mut content) = next() {
        while !content.free_some(PAGES_AT_ONCE) {}
    }
}

fn next() -> Option<Content> {
    let mut contents = DEFERRED_CONTENTS.lock();
    let next = contents.pop();
    let unused = if contents.is_empty() { core::mem::take(&mut *contents) } else { Vec::new() };
    drop(contents);
    drop(unused);
    next
}
