//! A mutex whose holder runs at the level of its most urgent waiter.
#![allow(unsafe_code)] // The guard is the proof of exclusive access to the value; waiters are linked by address.

use super::inherit;
use super::list::{Node, Polled, Waiter, Waiters};
use crate::foreign;
use crate::lock::Lock;
use crate::sched::Id;
use crate::waker::id_of;
use core::cell::UnsafeCell;
use core::fmt;
use core::future::Future;
use core::ops::{Deref, DerefMut};
use core::pin::Pin;
use core::task::{Context, Poll};

/// A mutual exclusion lock for coroutines, to be held across awaits.
///
/// An unlock hands the lock to the most urgent waiter. Until then the holder inherits that waiter's level, and
/// passes it on to whom it waits for itself.
pub struct Mutex<T: ?Sized> {
    state: Lock<MutexState>,
    value: UnsafeCell<T>,
}

struct MutexState {
    held: bool,
    /// The holder, if it is a coroutine of this crate's executors.
    holder: Option<Id>,
    waiters: Waiters<()>,
    /// The level that the mutex lends, and to whom.
    loan: Option<(Id, u8)>,
    /// Its number as a lender, 0 before it first was one.
    source: u64,
}

// SAFETY: the value is reached through a guard only, and there is one at a time.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above: a shared mutex hands the value from one thread to another, so it must be `Send`.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Mutex<T> {
        let state = MutexState { held: false, holder: None, waiters: Waiters::new(), loan: None, source: 0 };
        Mutex { state: Lock::new(state), value: UnsafeCell::new(value) }
    }

    /// The value of a mutex that nobody shares any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> LockFuture<'_, T> {
        LockFuture { mutex: self, node: Node::new(()), waits: false }
    }

    /// The lock, if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        #[cfg(feature = "std")]
        let holder = crate::current_id();
        #[cfg(not(feature = "std"))]
        let holder = None;
        self.state.with(|state| state.take(holder)).then(|| MutexGuard { mutex: self })
    }

    /// Hands the lock to the most urgent waiter, to whom the others lend from now on.
    fn unlock(&self) {
        let next = self.state.with(|state| {
            let next = state.waiters.pop_best();
            state.held = next.is_some();
            state.holder = next.as_ref().and_then(Waiter::id);
            state.settle();
            next
        });
        if let Some(next) = next {
            foreign::wake(next.waker);
        }
    }
}

impl MutexState {
    /// Takes the lock for `holder`, if it is free.
    fn take(&mut self, holder: Option<Id>) -> bool {
        let free = !self.held;
        if free {
            (self.held, self.holder) = (true, holder);
        }
        free
    }

    /// After a change of holder or waiters: lends the level of the most urgent waiter to the holder.
    fn settle(&mut self) {
        let loan = self.holder.zip(self.waiters.best_level());
        if loan == self.loan {
            return;
        }
        if self.source == 0 {
            self.source = inherit::new_source();
        }
        let old = core::mem::replace(&mut self.loan, loan).map(|old| old.0);
        if let Some(old) = old.filter(|old| loan.is_none_or(|new| new.0 != *old)) {
            inherit::take_back(old, self.source);
        }
        if let Some((holder, level)) = loan {
            inherit::lend(holder, self.source, level);
        }
    }
}

/// See [`Mutex::lock`].
#[must_use = "futures do nothing unless awaited"]
pub struct LockFuture<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    node: Node<()>,
    /// It has become a waiter, and does not know of the lock yet.
    waits: bool,
}

impl<'a, T: ?Sized> Future for LockFuture<'a, T> {
    type Output = MutexGuard<'a, T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<MutexGuard<'a, T>> {
        let id = id_of(cx.waker());
        // SAFETY: the node is not moved.
        let LockFuture { mutex, node, waits } = unsafe { self.get_unchecked_mut() };
        let mutex = *mutex;
        if !*waits && mutex.state.with(|state| state.take(id)) {
            return Poll::Ready(MutexGuard { mutex });
        }
        let mut waker = Some(cx.waker().clone());
        // SAFETY: it is a part of the future, which is pinned.
        let node = unsafe { Pin::new_unchecked(&*node) };
        mutex.state.with(|state| {
            if *waits {
                // SAFETY: the node is used with this list only, and the future's drop removes it.
                match unsafe { state.waiters.refresh(node, &mut waker) } {
                    Polled::Waits => return state.settle(),
                    Polled::Out => {
                        // An unlock took it out of the list, and with that gave it the lock.
                        *waits = false;
                        state.holder = id;
                        return state.settle();
                    }
                    Polled::Forgotten => *waits = false,
                }
            }
            if !state.take(id) {
                // SAFETY: as above; it does not wait.
                unsafe { state.waiters.push(node, &mut waker, ()) };
                *waits = true;
            }
            state.settle();
        });
        if *waits { Poll::Pending } else { Poll::Ready(MutexGuard { mutex }) }
    }
}

impl<T: ?Sized> Drop for LockFuture<'_, T> {
    fn drop(&mut self) {
        if !self.waits {
            return;
        }
        // SAFETY: a future that waits was polled, so it is pinned.
        let node = unsafe { Pin::new_unchecked(&self.node) };
        let waited = self.mutex.state.with(|state| {
            // SAFETY: the node is used with this list only.
            let waited = unsafe { state.waiters.remove(node) };
            state.settle();
            waited
        });
        if waited.is_none() {
            // It was given the lock, and is dropped before it learnt of that.
            self.mutex.unlock();
        }
    }
}

/// The lock; unlocks when it is dropped.
#[must_use = "the lock is released at once if the guard is not kept"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
}

// SAFETY: a shared guard gives shared access to the value only.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard is the only one, so nobody has a mutable reference but through it.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the only one and is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}
