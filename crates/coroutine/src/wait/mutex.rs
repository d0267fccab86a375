//! A mutex whose holder runs at the level of its most urgent waiter.
#![allow(unsafe_code)] // The guard is the proof of exclusive access to the value.

use super::inherit;
use super::list::Waiters;
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
    state: Lock<State>,
    value: UnsafeCell<T>,
}

struct State {
    held: bool,
    /// Who holds it, if it is a coroutine of this crate's executors.
    holder: Option<Id>,
    waiters: Waiters<()>,
}

// SAFETY: the value is reached through a guard only, and there is one at a time.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above: a shared mutex hands the value from one thread to another, so it must be `Send`.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Mutex<T> {
        let state = State { held: false, holder: None, waiters: Waiters::new() };
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
        LockFuture { mutex: self, key: 0, id: None }
    }

    /// The lock, if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let taken = self.state.with(|state| {
            let free = !core::mem::replace(&mut state.held, true);
            #[cfg(feature = "std")]
            if free {
                state.holder = crate::current_id();
            }
            free
        });
        taken.then(|| MutexGuard { mutex: self })
    }

    /// Hands the lock to the most urgent waiter, to whom the others lend from now on.
    fn unlock(&self) {
        let next = self.state.with(|state| {
            let next = state.waiters.best().map(|next| (next.key, next.id()));
            state.held = next.is_some();
            state.hand_over(next.and_then(|next| next.1));
            state.waiters.remove(next?.0)
        });
        if let Some(next) = next {
            next.waker.wake();
        }
    }
}

impl State {
    /// `new` holds the lock from now on, and whoever waits lends to it.
    fn hand_over(&mut self, new: Option<Id>) {
        let old = core::mem::replace(&mut self.holder, new);
        if old != new && !self.waiters.is_empty() {
            inherit::hand_over(self.waiters.iter().filter_map(|waiter| waiter.id()), old, new);
        }
    }
}

/// See [`Mutex::lock`].
#[must_use = "futures do nothing unless awaited"]
pub struct LockFuture<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Its key in the list, 0 before it waits and after it got the lock.
    key: u64,
    id: Option<Id>,
}

impl<'a, T: ?Sized> Future for LockFuture<'a, T> {
    type Output = MutexGuard<'a, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<MutexGuard<'a, T>> {
        let id = id_of(cx.waker());
        let mutex = self.mutex;
        let locked = mutex.state.with(|state| {
            if self.key == 0 && !state.held {
                state.held = true;
                state.holder = id;
                return true;
            }
            if self.key == 0 {
                self.key = state.waiters.push(cx.waker(), ());
            } else if !state.waiters.refresh(self.key, cx.waker()) {
                // An unlock took it out of the list, and with that gave it the lock.
                state.hand_over(id);
                return true;
            }
            if let (Some(id), Some(holder)) = (id, state.holder) {
                inherit::wait_for(id, holder);
            }
            false
        });
        if !locked {
            self.id = id;
            return Poll::Pending;
        }
        self.key = 0;
        Poll::Ready(MutexGuard { mutex })
    }
}

impl<T: ?Sized> Drop for LockFuture<'_, T> {
    fn drop(&mut self) {
        if self.key == 0 {
            return;
        }
        let waited = self.mutex.state.with(|state| {
            let waited = state.waiters.remove(self.key).is_some();
            if let (true, Some(id), Some(holder)) = (waited, self.id, state.holder) {
                inherit::stop_waiting(id, holder);
            }
            waited
        });
        if !waited {
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
