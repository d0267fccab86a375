//! Coroutines that wait for a moment.

use alloc::collections::BTreeMap;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};

use crate::arch;
use crate::arch::time::now_ns;
use crate::memory::fallible;
use crate::sync::SpinLock;

/// Who waits until when; the number tells two waits for the same moment apart.
static TIMERS: SpinLock<BTreeMap<(u64, u64), Waker>> = SpinLock::new(BTreeMap::new());
/// The first moment of [`TIMERS`] or an earlier one, for a look without the lock; `u64::MAX` for none.
static NEXT_NS: AtomicU64 = AtomicU64::new(u64::MAX);
/// The waker of [`keeper`].
static KEEPER: spin::Once<Waker> = spin::Once::new();
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
            NEXT_NS.store(self.key.0, Ordering::Relaxed);
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

/// The timer's interrupt handler: tells [`keeper`] if something is due, and sets the timer again if not.
pub fn on_timer() {
    let next = NEXT_NS.load(Ordering::Relaxed);
    if next == u64::MAX {
        return;
    }
    if now_ns() < next {
        arch::time::set_timer(next);
    } else if let Some(waker) = KEEPER.get() {
        waker.wake_by_ref();
    }
}

/// At most so many are woken before others have a turn.
const WAKES_MAX: usize = 32;

/// The coroutine that wakes what is due and sets the timer for the next. It does what the interrupt handler may not:
/// take a lock and free memory.
pub async fn keeper() {
    core::future::poll_fn(|context| {
        KEEPER.call_once(|| context.waker().clone());
        for _ in 0..WAKES_MAX {
            let due = {
                let mut timers = TIMERS.lock();
                let due = timers.first_entry().filter(|entry| entry.key().0 <= now_ns());
                let due = due.map(alloc::collections::btree_map::OccupiedEntry::remove);
                if due.is_none() {
                    let next = timers.first_key_value().map_or(u64::MAX, |(key, _)| key.0);
                    NEXT_NS.store(next, Ordering::Relaxed);
                    arch::time::set_timer(next);
                }
                due
            };
            match due {
                Some(waker) => waker.wake(),
                None => return Poll::Pending,
            }
        }
        context.waker().wake_by_ref();
        Poll::<()>::Pending
    })
    .await;
}
