//! Lists of waiters in a forked child: waiters of threads that are gone are forgotten, and others come to the lists
//! anew. In a process of its own, because it forks.
#![cfg(all(feature = "std", feature = "scheduler", unix, not(heddle_loom), not(miri)))]
#![allow(unsafe_code)] // Forks.

mod support;

use heddle_coroutine::wait::{Mutex, Notify, RwLock, Semaphore, WakerMap, channel};
use heddle_coroutine::{Builder, LocalExecutor, block_on, follow_forks};
use std::cell::Cell;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Waits until the other threads' coroutines are in the lists.
fn wait_for_waiters() {
    // Nothing rests on the time: a waiter that comes later is not tested.
    thread::sleep(Duration::from_millis(300));
}

#[test]
fn waiters_of_threads_that_are_gone_are_forgotten() {
    follow_forks();
    let (mutex, semaphore) = (leak(Mutex::new(0)), leak(Semaphore::new(1)));
    let (lock, notify, map) = (leak(RwLock::new(0)), leak(Notify::new()), leak(WakerMap::new()));
    let (sender, receiver) = channel(1);
    let (held, permit, written) =
        (mutex.try_lock().unwrap(), semaphore.try_acquire(1).unwrap(), lock.try_write());
    // They come first, more urgent ones among them, and lie in frames of threads.
    for _ in 0..3 {
        thread::spawn(move || block_on(async move { drop(mutex.lock().await) }));
        thread::spawn(move || block_on(async move { drop(semaphore.acquire(1).await) }));
        thread::spawn(move || block_on(async move { drop(lock.read().await) }));
        let receiver = receiver.clone();
        thread::spawn(move || block_on(async move { notify.notified().await }));
        thread::spawn(move || block_on(async move { map.wait(7).await }));
        thread::spawn(move || block_on(async move { receiver.recv().await }));
    }
    wait_for_waiters();
    let executor = LocalExecutor::new();
    let went_on = Rc::new(Cell::new(0));
    macro_rules! waiter {
        ($body:expr) => {{
            let (body, went_on) = ($body, went_on.clone());
            let counted = async move {
                body.await;
                went_on.set(went_on.get() + 1);
            };
            executor.try_spawn(Builder::new().priority(20), counted).unwrap().detach();
        }};
    }
    waiter!(async move { *mutex.lock().await += 1 });
    waiter!(async move { drop(semaphore.acquire(1).await) });
    waiter!(async move { drop(lock.read().await) });
    waiter!(async move { notify.notified().await });
    waiter!(async move { map.wait(7).await });
    let receive = receiver.clone();
    waiter!(async move { assert_eq!(receive.recv().await, Some(1)) });
    executor.run_until_idle();
    assert_eq!(went_on.get(), 0);

    let ended = executor.block_on(async move {
        // SAFETY: the child does what coroutines may do there, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child != 0 {
            let mut status = 0;
            // SAFETY: the child's number, and a place for its status.
            unsafe { libc::waitpid(child, &mut status, 0) };
            return status;
        }
        // SAFETY: a child that hangs ends by it.
        unsafe { libc::alarm(20) };
        // Releases that meet no waiter yet, or those that have come anew.
        drop((held, permit, written));
        notify.notify_one();
        map.wake(7);
        sender.send(1).await.unwrap();
        while went_on.get() != 6 {
            heddle_coroutine::yield_now().await;
        }
        let is_right = *mutex.lock().await == 1 && semaphore.available() == 1 && lock.try_write().is_some();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
    });
    assert_eq!(ended, 0, "how the child ended");
}
