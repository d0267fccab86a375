//! Coroutines that wait for a moment.

use alloc::collections::BTreeMap;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};

use super::now_ns;
use crate::arch;
use crate::memory::fallible;
use crate::sync::SpinLock;

/// Who waits until when; the number tells two waits for the same moment apart.
static TIMERS: SpinLock<BTreeMap<(u64, u64), Waker>> = SpinLock::new(BTreeMap::new());
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Completes when the monotonic clock has reached `deadline_ns`.
#[must_use]
pub fn sleep_until(deadline_ns: u64) -> Sleep {
    Sleep { key: (deadline_ns, NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)), registered: false }
}

/// See [`sleep_until`].
#[derive(Debug)]
pub struct Sleep {
    key: (u64, u64),
    registered: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.key.0 == u64::MAX {
            // Never.
            return Poll::Pending;
        }
        if now_ns() >= self.key.0 {
            return Poll::Ready(());
        }
        let mut timers = TIMERS.lock();
        if fallible::try_insert(&mut timers, self.key, context.waker().clone()).is_err() {
            // Without memory for a timer, look again when everyone else has had a turn.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if timers.first_key_value().is_some_and(|(first, _)| *first == self.key) {
            arch::time::set_timer(self.key.0);
        }
        drop(timers);
        self.registered = true;
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if self.registered {
            TIMERS.lock().remove(&self.key);
        }
    }
}

/// Wakes what is due and programs the timer for the next.
pub fn on_timer() {
    let now = now_ns();
    let mut timers = TIMERS.lock();
    while let Some(entry) = timers.first_entry() {
        if entry.key().0 > now {
            arch::time::set_timer(entry.key().0);
            break;
        }
        entry.remove().wake();
    }
}
