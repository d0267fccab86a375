//! Telling waiters that something has happened.
#![allow(unsafe_code)] // Waiters are linked by address.

use super::list::{Node, Polled, Waiters};
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
    /// By number, in the order in which they came.
    waiters: Waiters<u64>,
    /// Those of them up to `all_until` that have not been woken yet.
    told: Waiters<u64>,
    /// The number of the last waiter.
    last: u64,
    /// The number of the last waiter when all were told: what those up to it were told was not for one of them.
    all_until: u64,
}

impl NotifyState {
    /// The list in which the waiter of number `number` is, if it is in one.
    fn list_of(&mut self, number: u64) -> &mut Waiters<u64> {
        if number <= self.all_until { &mut self.told } else { &mut self.waiters }
    }
}

impl Notify {
    /// Nobody waits, and nothing has happened.
    pub const fn new() -> Notify {
        let (waiters, told) = (Waiters::new(), Waiters::new());
        Notify(Lock::new(NotifyState { kept: false, waiters, told, last: 0, all_until: 0 }))
    }

    /// Waits for the next notification. From its first poll on it counts as waiting.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, node: Node::new(0), number: 0, is_over: false }
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
        self.0.with(|state| {
            state.all_until = state.last;
            state.told.append(&mut state.waiters);
        });
        // A waiter that is woken first and waits again is in the other list.
        while let Some(waiter) = self.0.with(|state| state.told.pop_best()) {
            foreign::wake(waiter.waker);
        }
    }
}

/// See [`Notify::notified`].
#[must_use = "futures do nothing unless awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    node: Node<u64>,
    /// Its number as a waiter that has not learnt of a notification; 0 if it is none.
    number: u64,
    is_over: bool,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = Some(cx.waker().clone());
        // SAFETY: the node is not moved.
        let Notified { notify, node, number, is_over } = unsafe { self.get_unchecked_mut() };
        // SAFETY: it is a part of the future, which is pinned.
        let node = unsafe { Pin::new_unchecked(&*node) };
        let mut former = None;
        *number = notify.0.with(|state| {
            let old = *number;
            if old != 0 && old <= state.all_until {
                // SAFETY: `list_of` gives the list in which it is, if any, and the future's drop removes it.
                former = unsafe { state.list_of(old).remove(node) };
                return 0;
            }
            if old != 0 {
                // SAFETY: as above.
                match unsafe { state.waiters.refresh(node, &mut waker) } {
                    Polled::Waits => return old,
                    Polled::Out => return 0,
                    Polled::Forgotten => {}
                }
            }
            if *is_over || core::mem::take(&mut state.kept) {
                return 0;
            }
            state.last += 1;
            // SAFETY: as above; it does not wait.
            unsafe { state.waiters.push(node, &mut waker, state.last) };
            state.last
        });
        drop(former);
        *is_over = *number == 0;
        if *is_over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let number = self.number;
        if number == 0 {
            return;
        }
        // SAFETY: a future that waits was polled, so it is pinned.
        let node = unsafe { Pin::new_unchecked(&self.node) };
        let (waiter, was_for_all) = self.notify.0.with(|state| {
            // SAFETY: `list_of` gives the list in which it is, if any.
            (unsafe { state.list_of(number).remove(node) }, number <= state.all_until)
        });
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
