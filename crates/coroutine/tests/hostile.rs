//! Uses that nobody asked for.
#![cfg(all(feature = "std", not(heddle_loom)))]

mod support;

use heddle_coroutine::{
    Executor, Id, LocalExecutor, block_on, current_id, spawn, spawn_local, wake, yield_now,
};
use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

const LONG: bool = option_env!("HEDDLE_LONG").is_some();

/// Waits until it was polled a second time, and gives out its waker.
async fn wait_once(place: &Mutex<Option<Waker>>) {
    let mut polled = false;
    poll_fn(|cx| {
        *place.lock().unwrap() = Some(cx.waker().clone());
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn a_waker_outlives_its_executor_and_its_slots_next_users() {
    let place = Arc::new(Mutex::new(None));
    let executor = LocalExecutor::new();
    let store = place.clone();
    executor.spawn(async move { wait_once(&store).await }).detach();
    executor.run_until_idle();
    drop(executor);
    let old = place.lock().unwrap().take().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let waking = thread::spawn(move || {
        while !flag.load(Ordering::Relaxed) {
            old.wake_by_ref();
        }
    });
    for _ in 0..if cfg!(miri) { 3 } else { 200 } {
        let polls = Rc::new(Cell::new(0));
        block_on(async {
            for _ in 0..20 {
                let polls = polls.clone();
                spawn_local(poll_fn(move |_| {
                    polls.set(polls.get() + 1);
                    Poll::<()>::Pending
                }))
                .detach();
            }
            for _ in 0..3 {
                yield_now().await;
            }
        });
        assert_eq!(polls.get(), 20);
    }
    stop.store(true, Ordering::Relaxed);
    waking.join().unwrap();
}

#[test]
fn wakes_race_with_the_end_of_coroutines_and_executors() {
    for _ in 0..if cfg!(miri) { 2 } else { 60 } {
        let executor = Executor::new(2);
        let wakers: Arc<Mutex<Vec<Waker>>> = Arc::default();
        for i in 0..20 {
            let wakers = wakers.clone();
            executor
                .spawn(poll_fn(move |cx| {
                    wakers.lock().unwrap().push(cx.waker().clone());
                    if i % 3 == 0 { Poll::Ready(()) } else { Poll::Pending }
                }))
                .detach();
        }
        let wakings: Vec<_> = (0..2)
            .map(|_| {
                let wakers = wakers.clone();
                thread::spawn(move || {
                    for _ in 0..if cfg!(miri) { 5 } else { 100 } {
                        let taken = std::mem::take(&mut *wakers.lock().unwrap());
                        taken.into_iter().for_each(Waker::wake);
                    }
                })
            })
            .collect();
        executor.block_on(async {
            for _ in 0..10 {
                yield_now().await;
            }
        });
        drop(executor);
        wakings.into_iter().for_each(|waking| waking.join().unwrap());
    }
}

#[test]
#[cfg(not(miri))]
#[allow(unsafe_code)]
fn a_signal_handler_wakes() {
    static TARGET: AtomicU64 = AtomicU64::new(0);
    static SIGNALS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handler(_: libc::c_int) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
        if let Some(id) = Id::from_bits(TARGET.load(Ordering::Relaxed)) {
            wake(id);
        }
    }
    // SAFETY: the handler does nothing but atomics and a wake, which is documented for it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let rounds = if LONG { 200_000 } else { 200 };
    let (send, receive) = std::sync::mpsc::channel();
    let target = thread::spawn(move || {
        block_on(async {
            // SAFETY: no preconditions.
            send.send(unsafe { libc::pthread_self() }).unwrap();
            TARGET.store(current_id().unwrap().to_bits(), Ordering::Relaxed);
            let churn = spawn_local(async {
                loop {
                    spawn_local(yield_now()).await.unwrap();
                }
            });
            let mut seen = 0;
            while seen < rounds {
                // Woken by the handler alone: a lost wake would leave it waiting for ever, were it not for the churn.
                let before = SIGNALS.load(Ordering::Relaxed);
                poll_fn(|_| {
                    if SIGNALS.load(Ordering::Relaxed) > before { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                seen += 1;
                if seen == rounds / 2 {
                    // From here on the thread sleeps between signals.
                    churn.abort();
                }
            }
            TARGET.store(0, Ordering::Relaxed);
        });
    });
    let thread = receive.recv().unwrap();
    let mut sent = 0;
    while !target.is_finished() {
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        sent += 1;
        if sent % 8 == 0 {
            thread::yield_now();
        }
    }
    target.join().unwrap();
}

#[test]
fn panics_stay_where_they_are() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    block_on(async {
        let mut handles = Vec::new();
        for i in 0..20 {
            handles.push(spawn_local(async move {
                let _bomb = (i % 3 == 1).then(|| Bomb);
                yield_now().await;
                assert!(i % 3 != 2, "as planned");
                i
            }));
        }
        for (i, handle) in handles.into_iter().enumerate() {
            let outcome = handle.await;
            assert_eq!(outcome.is_ok(), i % 3 == 0);
        }
        let aborted = spawn_local(async {
            let _bomb = Bomb;
            pending::<()>().await;
        });
        yield_now().await;
        aborted.abort();
        assert!(!aborted.await.unwrap_err().is_cancelled());
        spawn_local(async { Bomb }).detach();
        yield_now().await;
    });
}

#[test]
fn a_coroutine_may_block_on_others_and_run_executors_inside() {
    let outer = LocalExecutor::new();
    let value = outer.block_on(async {
        let inner = LocalExecutor::new();
        let handle = spawn_local(async { 20 });
        let inside = inner.block_on(async { spawn_local(async { 1 }).await.unwrap() });
        inside + handle.await.unwrap() + block_on(async { 21 })
    });
    assert_eq!(value, 42);
}

#[test]
fn deep_chains_of_spawns_do_not_use_the_stack() {
    fn link(left: u32, end: Arc<AtomicBool>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            if left == 0 {
                end.store(true, Ordering::Relaxed);
            } else {
                spawn(link(left - 1, end)).await.unwrap();
            }
        })
    }
    let end = Arc::new(AtomicBool::new(false));
    let depth = if cfg!(miri) { 50 } else { 100_000 };
    block_on(link(depth, end.clone()));
    assert!(end.load(Ordering::Relaxed));
}
