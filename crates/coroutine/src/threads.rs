//! Which core a thread is running.

use crate::core_entry::CoreEntry;
use core::cell::Cell;

std::thread_local! {
    static HERE: Cell<Option<&'static CoreEntry>> = const { Cell::new(None) };
}

/// The core that the calling thread is running.
#[inline(always)]
pub(crate) fn here() -> Option<&'static CoreEntry> {
    HERE.get()
}

/// Runs `f` with the calling thread as the owner of `entry`.
pub(crate) fn enter<R>(entry: &'static CoreEntry, f: impl FnOnce() -> R) -> R {
    struct Reset(Option<&'static CoreEntry>);
    impl Drop for Reset {
        fn drop(&mut self) {
            HERE.set(self.0);
        }
    }
    let _reset = Reset(HERE.replace(Some(entry)));
    f()
}
