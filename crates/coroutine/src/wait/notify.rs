//! Telling waiters that something has happened.

use super::list::{WaitPosition, Waiters};
use crate::foreign;
use crate::lock::Lock;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// Where coroutines wait until they are told that something has happened; what it is, they know.
pub struct Notify(Lock<NotifyState>);

struct NotifyState {
    /// A notification of one that nobody waited for.
    kept: bool,
    waiters: Waiters<()>,
    /// The key of the last waiter when all were told: what those up to it were told was not for one of them.
    all_until: u64,
}

impl Notify {
    /// Nobody waits, and nothing has happened.
    pub const fn new() -> Notify {
        Notify(Lock::new(NotifyState { kept: false, waiters: Waiters::new(), all_until: 0 }))
    }

    /// Waits for the next notification. From its first poll on it counts as waiting.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, place: None, is_over: false }
    }

    /// Has the most urgent waiter go on; if there is none, the next that comes.
    pub fn notify_one(&self) {
        let waiter = self.0.with(|state| {
            let waiter = state.waiters.pop_best();
            state.kept |= waiter.is_none();
            waiter
        });
        waiter.into_iter().for_each(|waiter| foreign::wake(waiter.waker));
    }

    /// Has all go on who wait now, and nobody who comes later. Whoever has been told alone before and has not gone on
    /// yet counts as told with the others.
    pub fn notify_waiters(&self) {
        // A waiter that is woken first and waits again is behind those of this list.
        let mut waiters = self.0.with(|state| {
            state.all_until = state.waiters.last_key();
            let after = Waiters::after(state.all_until);
            core::mem::replace(&mut state.waiters, after)
        });
        while let Some(waiter) = waiters.pop_best() {
            foreign::wake(waiter.waker);
        }
    }
}

/// See [`Notify::notified`].
#[must_use = "futures do nothing unless awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    place: Option<WaitPosition>,
    is_over: bool,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = Some(cx.waker().clone());
        let (place, is_over) = (self.place, self.is_over);
        let place = self.notify.0.with(|state| match place {
            Some(place) => state.waiters.refresh(place, &mut waker).then_some(place),
            None if is_over || core::mem::take(&mut state.kept) => None,
            None => Some(state.waiters.push(&mut waker, ())),
        });
        self.place = place;
        self.is_over = place.is_none();
        if place.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let (waiter, was_for_all) =
            self.notify.0.with(|state| (state.waiters.remove(place), place.key() <= state.all_until));
        if waiter.is_none() && !was_for_all {
            // It was told, and is dropped before it learnt of that: the notification is another's.
            self.notify.notify_one();
        }
    }
}

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notify").finish_non_exhaustive()
    }
}
