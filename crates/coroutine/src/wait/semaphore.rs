//! A counting semaphore that serves the most urgent first.
#![allow(unsafe_code)] // Waiters are linked by address.

use super::list::{Node, Polled, Waiters};
use crate::foreign;
use crate::lock::Lock;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// A number of permits, which coroutines take and give back.
///
/// While the most urgent waiter wants more than there are, nobody else gets any: large wishes don't starve.
pub struct Semaphore(Lock<SemaphoreState>);

struct SemaphoreState {
    permits: usize,
    waiters: Waiters<usize>,
}

impl Semaphore {
    /// A semaphore with `permits` permits.
    pub const fn new(permits: usize) -> Semaphore {
        Semaphore(Lock::new(SemaphoreState { permits, waiters: Waiters::new() }))
    }

    /// Waits for `permits` permits, all at once.
    pub fn acquire(&self, permits: usize) -> Acquire<'_> {
        Acquire { semaphore: self, permits, node: Node::new(0), waits: false }
    }

    /// `permits` permits, if there are as many and nobody waits.
    pub fn try_acquire(&self, permits: usize) -> Option<Permit<'_>> {
        let taken = self.0.with(|state| {
            let free = state.waiters.is_empty() && state.permits >= permits;
            state.permits -= if free { permits } else { 0 };
            free
        });
        taken.then(|| Permit { semaphore: self, permits })
    }

    /// How many permits nobody has.
    pub fn available(&self) -> usize {
        self.0.with(|state| state.permits)
    }

    /// Adds `permits` permits. There are never more than `usize::MAX`.
    pub fn release(&self, permits: usize) {
        self.0.with(|state| state.permits = state.permits.saturating_add(permits));
        self.serve();
    }

    /// Gives permits to waiters as far as they go.
    fn serve(&self) {
        while let Some(next) = self.0.with(|state| {
            let mut left = None;
            let next = state.waiters.pop_best_if(|wants| {
                left = state.permits.checked_sub(wants);
                left.is_some()
            })?;
            state.permits = left.unwrap_or(0);
            Some(next)
        }) {
            foreign::wake(next.waker);
        }
    }
}

/// See [`Semaphore::acquire`].
#[must_use = "futures do nothing unless awaited"]
pub struct Acquire<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
    node: Node<usize>,
    /// It has become a waiter, and does not know of its permits yet.
    waits: bool,
}

impl<'a> Future for Acquire<'a> {
    type Output = Permit<'a>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit<'a>> {
        // SAFETY: the node is not moved.
        let Acquire { semaphore, permits, node, waits } = unsafe { self.get_unchecked_mut() };
        let (semaphore, permits) = (*semaphore, *permits);
        if !*waits && let Some(permit) = semaphore.try_acquire(permits) {
            return Poll::Ready(permit);
        }
        let mut waker = Some(cx.waker().clone());
        // SAFETY: it is a part of the future, which is pinned.
        let node = unsafe { Pin::new_unchecked(&*node) };
        *waits = semaphore.0.with(|state| {
            if *waits {
                // SAFETY: the node is used with this list only, and the future's drop removes it.
                match unsafe { state.waiters.refresh(node, &mut waker) } {
                    Polled::Waits => return true,
                    Polled::Out => return false,
                    Polled::Forgotten => {}
                }
            }
            // SAFETY: as above; it does not wait.
            unsafe { state.waiters.push(node, &mut waker, permits) };
            true
        });
        if *waits {
            // It may be more urgent than whoever waits for more than there is, and get its permits at once: then its
            // own wake has it look again.
            semaphore.serve();
            return Poll::Pending;
        }
        Poll::Ready(Permit { semaphore, permits })
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if self.waits {
            // SAFETY: a future that waits was polled, so it is pinned.
            let node = unsafe { Pin::new_unchecked(&self.node) };
            // SAFETY: the node is used with this list only.
            let waited = self.semaphore.0.with(|state| unsafe { state.waiters.remove(node) });
            self.semaphore.release(if waited.is_some() { 0 } else { self.permits });
        }
    }
}

/// Permits that were taken; given back when it is dropped.
#[must_use = "the permits are given back at once if this is not kept"]
#[derive(Debug)]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

impl Permit<'_> {
    /// Never gives the permits back.
    pub fn forget(mut self) {
        self.permits = 0;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.semaphore.release(self.permits);
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("available", &self.available()).finish()
    }
}
