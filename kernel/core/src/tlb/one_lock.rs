//! A lock whose waiters are suspended coroutines: it replaces the range lock of an address space when the two
//! are compared.

use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};

use crate::fallible::push_reserved;
use crate::tlb::sync::{AtomicBool, Mutex, Ordering};

/// The lock. It is not fair: the first to ask after an unlock gets it.
pub struct OneLock {
    held: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

/// The lock is held while this exists.
#[must_use = "the lock is released at once if the guard is not kept"]
pub struct OneGuard<'a> {
    lock: &'a OneLock,
}

impl Default for OneLock {
    fn default() -> Self {
        Self { held: AtomicBool::new(false), waiting: Mutex::new(Vec::new()) }
    }
}

impl OneLock {
    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<OneGuard<'_>> {
        let is_free = self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // The guard must not be made where the lock was not taken: its drop would release another's.
        is_free.then(|| OneGuard { lock: self })
    }

    /// Waits until the lock is free, and takes it.
    pub async fn lock(&self) -> OneGuard<'_> {
        poll_fn(|context| self.poll_lock(context)).await
    }

    fn poll_lock(&self, context: &mut Context<'_>) -> Poll<OneGuard<'_>> {
        if let Some(guard) = self.try_lock() {
            return Poll::Ready(guard);
        }
        let mut waiting = self.waiting.lock();
        if waiting.try_reserve(1).is_ok() {
            push_reserved(&mut waiting, context.waker().clone());
        } else {
            context.waker().wake_by_ref();
        }
        drop(waiting);
        // The holder may have left before the registration.
        self.try_lock().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for OneGuard<'_> {
    fn drop(&mut self) {
        self.lock.held.store(false, Ordering::Release);
        // All of them: one that was registered and then got the lock after all leaves a stale entry, and must not take
        // another's wake with it.
        let woken = core::mem::take(&mut *self.lock.waiting.lock());
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_refused_attempt_leaves_the_lock_with_its_holder() {
        let lock = OneLock::default();
        let guard = lock.try_lock().expect("free");
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "the attempt before released another's lock");
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_waiter_does_not_get_in_before_the_holder_leaves() {
        let lock = OneLock::default();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let guard = lock.try_lock().expect("free");
        let mut waiting = pin!(lock.lock());
        for _ in 0..3 {
            assert!(waiting.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        drop(guard);
        assert!(count.0.load(Ordering::Relaxed) > 0);
        let Poll::Ready(guard) = waiting.poll(&mut context) else { panic!("free, and still waiting") };
        assert!(lock.try_lock().is_none());
        drop(guard);
    }
}

#[cfg(all(test, heddle_loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::future::block_on;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    #[allow(unsafe_code, reason = "loom's cell reports two accesses at once")]
    fn holders_exclude_one_another_and_no_wake_is_lost() {
        loom::model(|| {
            let shared = Arc::new((OneLock::default(), UnsafeCell::new(0)));
            let work = |shared: Arc<(OneLock, UnsafeCell<u32>)>| {
                block_on(async {
                    let guard = shared.0.lock().await;
                    // SAFETY: the lock is held; the model looks whether that is enough.
                    shared.1.with_mut(|value| unsafe { *value += 1 });
                    drop(guard);
                });
            };
            let other = thread::spawn({
                let shared = shared.clone();
                move || work(shared)
            });
            if let Some(guard) = shared.0.try_lock() {
                // SAFETY: as above.
                shared.1.with_mut(|value| unsafe { *value += 1 });
                drop(guard);
            }
            work(shared.clone());
            other.join().expect("no panic");
            // SAFETY: all other threads have ended.
            let total = shared.1.with(|value| unsafe { *value });
            assert!((2..=3).contains(&total));
        });
    }
}
