//! Sleeping on a word by a mutex and a condition variable, which every system has. Fences in other threads there are
//! none, so owners of cores pass their own.

use crate::sync::{AtomicU32, Ordering, fence};
use core::alloc::Layout;
use core::ptr;
use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A place where threads sleep on the words that share it.
struct Lot {
    lock: Mutex<()>,
    changed: Condvar,
}

static LOTS: [Lot; 64] = [const { Lot { lock: Mutex::new(()), changed: Condvar::new() } }; 64];

impl Lot {
    fn of(word: &AtomicU32) -> &'static Lot {
        // Cores are some kilobytes each.
        let address = ptr::from_ref(word).addr();
        &LOTS[(address >> 7 ^ address >> 12) % LOTS.len()]
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread that sleeps on `word`. Not for signal handlers: it takes a lock.
pub(crate) fn wake_word(word: &AtomicU32) {
    let lot = Lot::of(word);
    // The word has changed already: whoever has the lock either sees that, or sleeps when it is free again.
    drop(lot.lock());
    lot.changed.notify_all();
}

/// Sleeps as long as `word` is `calm`, until it is woken or for `limit`. May return early.
pub(crate) fn sleep_on(word: &'static AtomicU32, calm: u32, limit: Option<Duration>) {
    let lot = Lot::of(word);
    let guard = lot.lock();
    if word.load(Ordering::Acquire) != calm {
        return;
    }
    match limit {
        None => drop(lot.changed.wait(guard)),
        Some(limit) => drop(lot.changed.wait_timeout(guard, limit)),
    }
}

/// Whether every thread of the process can be made to pass a fence, so that owners need none of their own.
pub(crate) fn has_heavy_barrier() -> bool {
    false
}

/// A fence.
pub(crate) fn heavy_barrier() {
    fence(Ordering::SeqCst);
}

/// There is no way to give pages back and keep their addresses.
pub(crate) fn can_discard(_layout: Layout) -> bool {
    false
}

/// See [`can_discard`].
///
/// # Safety
/// There is none to keep.
#[allow(unsafe_code, reason = "it has the signature of the function that it stands for")]
pub(crate) unsafe fn discard(_start: *mut u8, _layout: Layout) {}
