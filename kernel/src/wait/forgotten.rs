//! Watches of queues that have ended: many of them are dropped in steps, because a listener may be the last that keeps
//! the parts of an epoll instance.

use alloc::vec::Vec;

use heddle_kernel_core::fallible::push_reserved;

use crate::sync::SpinLock;
use crate::wait::queue::WaitEntry;
use crate::wait::relay::wake_rest;

/// Watches that are dropped in one go.
const AT_ONCE: usize = 64;

static FORGOTTEN: SpinLock<Vec<Vec<WaitEntry>>> = SpinLock::new(Vec::new());

/// Drops watches, now or soon.
pub(super) fn forget(entries: Vec<WaitEntry>) {
    if first_dropped(&entries) == 0 {
        return;
    }
    let mut forgotten = FORGOTTEN.lock();
    if forgotten.try_reserve(1).is_ok() {
        push_reserved(&mut forgotten, entries);
        drop(forgotten);
        wake_rest();
    }
}

/// The place of the first watch that is to be dropped now.
fn first_dropped(entries: &[WaitEntry]) -> usize {
    let mut left = AT_ONCE;
    let is_kept = |entry: &WaitEntry| {
        let is_kept = left == 0;
        left = left.saturating_sub(entry.weight());
        is_kept
    };
    entries.iter().rposition(is_kept).map_or(0, |last| last + 1)
}

/// Whether some are left.
pub(super) fn is_any() -> bool {
    !FORGOTTEN.lock().is_empty()
}

/// Drops some of them.
pub(super) fn drop_some() {
    let Some(mut entries) = FORGOTTEN.lock().pop() else { return };
    let rest = first_dropped(&entries);
    entries.truncate(rest);
    if rest != 0 {
        let mut forgotten = FORGOTTEN.lock();
        // There was room for it; others may have taken it.
        if forgotten.len() < forgotten.capacity() {
            push_reserved(&mut forgotten, entries);
        }
    }
}

/// Drops all of them. For when memory is short.
pub fn drain() {
    while is_any() {
        drop_some();
    }
}
