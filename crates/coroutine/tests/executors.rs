//! The executors of Linux threads.
#![cfg(all(feature = "std", not(heddle_loom)))]

mod support;

use heddle_coroutine::{
    AbortOnDrop, Builder, Executor, LocalExecutor, block_on, coroutine_run, current_id, id_of, set_priority,
    spawn, spawn_local, try_spawn, wake, yield_now,
};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

const SMALL: bool = cfg!(miri);

#[test]
fn block_on_returns_what_main_returns_and_runs_what_it_spawns() {
    let sum = block_on(async {
        let handles: Vec<_> = (0..10).map(|i| spawn_local(async move { i })).collect();
        let mut sum = 0;
        for handle in handles {
            sum += handle.await.unwrap();
        }
        sum
    });
    assert_eq!(sum, 45);
}

#[test]
fn local_coroutines_borrow_nothing_and_need_not_be_send() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let executor = LocalExecutor::new();
    for level in [40, 10, 20] {
        let log = log.clone();
        let body = async move { log.borrow_mut().push(level) };
        executor.try_spawn(Builder::new().priority(level), body).unwrap().detach();
    }
    executor.run();
    assert_eq!(*log.borrow(), [10, 20, 40]);
}

#[test]
fn a_panic_is_the_joiners_and_nobody_elses() {
    block_on(async {
        let error = spawn_local(async { panic!("as planned") }).await.unwrap_err();
        assert!(!error.is_cancelled());
        let payload = error.into_panic().unwrap();
        assert_eq!(*payload.downcast::<&str>().unwrap(), "as planned");
        assert_eq!(spawn_local(async { 1 }).await.unwrap(), 1);
    });
    let outcome = std::panic::catch_unwind(|| block_on(async { panic!("main") }));
    assert!(outcome.is_err());
}

#[test]
fn dropping_an_executor_drops_its_coroutines_and_leaves_handles_and_wakers_harmless() {
    let alive = Rc::new(());
    let executor = LocalExecutor::new();
    let kept: Rc<RefCell<Option<Waker>>> = Rc::default();
    let (store, token) = (kept.clone(), alive.clone());
    let handle = executor.spawn(async move {
        let _token = token;
        poll_fn(|cx| {
            *store.borrow_mut() = Some(cx.waker().clone());
            Poll::<()>::Pending
        })
        .await;
    });
    let token = alive.clone();
    executor.spawn(async move { drop(token) }).detach();
    assert!(executor.run_one());
    drop(executor);
    assert_eq!(Rc::strong_count(&alive), 1);
    let waker = kept.borrow_mut().take().unwrap();
    waker.wake_by_ref();
    thread::spawn(move || waker.wake()).join().unwrap();
    assert!(handle.is_finished());
    assert!(block_on(handle).unwrap_err().is_cancelled());
}

#[test]
fn a_detached_output_is_dropped_and_a_taken_one_once() {
    struct Count(Rc<Cell<u32>>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let drops = Rc::new(Cell::new(0));
    block_on(async {
        let make = || {
            let count = Count(drops.clone());
            async move { count }
        };
        spawn_local(make()).detach();
        yield_now().await;
        assert_eq!(drops.get(), 1);
        let output = spawn_local(make()).await.unwrap();
        assert_eq!(drops.get(), 1);
        drop(output);
        assert_eq!(drops.get(), 2);
        let finished = spawn_local(make());
        yield_now().await;
        drop(finished);
        assert_eq!(drops.get(), 3);
    });
}

#[test]
fn ids_wake_abort_and_rank() {
    block_on(async {
        assert_eq!(poll_fn(|cx| Poll::Ready(id_of(cx.waker()))).await, current_id());
        let woken = Rc::new(Cell::new(0));
        let count = woken.clone();
        let waiter = spawn_local(poll_fn(move |_| {
            count.set(count.get() + 1);
            if count.get() == 3 { Poll::Ready(()) } else { Poll::Pending }
        }));
        yield_now().await;
        wake(waiter.id());
        wake(waiter.id());
        yield_now().await;
        assert_eq!(woken.get(), 2);
        wake(waiter.id());
        waiter.await.unwrap();
        let guard = AbortOnDrop::new(spawn(pending::<()>()));
        let id = guard.handle().id();
        drop(guard);
        yield_now().await;
        wake(id);
        set_priority(id, 0);
    });
}

#[test]
fn a_share_lets_lower_levels_run_and_the_statistics_show_a_stall() {
    let turns = |share: u32| {
        let executor = LocalExecutor::new().share(share);
        let low = Rc::new(Cell::new(0));
        let count = low.clone();
        let busy = async {
            loop {
                yield_now().await;
            }
        };
        executor.try_spawn(Builder::new().priority(1), busy).unwrap().detach();
        let body = async move {
            loop {
                count.set(count.get() + 1);
                yield_now().await;
            }
        };
        executor.try_spawn(Builder::new().priority(9), body).unwrap().detach();
        for _ in 0..100 {
            assert!(executor.run_one());
        }
        (low.get(), executor.statistics().waiting(9))
    };
    assert_eq!(turns(0), (0, 100));
    let (low, waiting) = turns(10);
    assert_eq!(low, 10);
    assert!(waiting < 10);
}

#[test]
#[cfg_attr(miri, ignore = "turns without end until another thread looks: too long for the interpreter")]
fn a_share_holds_on_every_core_of_several() {
    let executor = Executor::new(2).share(4);
    let busy = |level| {
        try_spawn(Builder::new().priority(level), async {
            loop {
                yield_now().await;
            }
        })
        .unwrap()
    };
    executor.block_on(async {
        // More than there are cores, so that without a share the last level would never have a turn.
        let urgent: Vec<_> = (0..3).map(|_| AbortOnDrop::new(busy(1))).collect();
        try_spawn(Builder::new().priority(60), async {}).unwrap().await.unwrap();
        drop(urgent);
    });
}

#[test]
#[cfg_attr(miri, ignore = "turns without end until another thread looks: too long for the interpreter")]
fn two_that_never_wait_get_a_core_each() {
    let executor = Executor::new(2);
    let turns = |core: usize| executor.statistics(core).unwrap().picks();
    executor.block_on(async {
        let stop = Arc::new(AtomicUsize::new(0));
        let spin = || {
            let stop = stop.clone();
            spawn(async move {
                while stop.load(Ordering::Relaxed) == 0 {
                    yield_now().await;
                }
            })
        };
        let both = [spin(), spin()];
        while turns(0) < 10 || turns(1) < 10 {
            yield_now().await;
        }
        stop.store(1, Ordering::Relaxed);
        for handle in both {
            handle.await.unwrap();
        }
    });
}

#[test]
fn coroutine_run_starts_and_then_joins_an_executor() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let (outer, inner) = (order.clone(), order.clone());
    let main = async move {
        let low = inner.clone();
        coroutine_run(async move { low.lock().unwrap().push("low") }, 60).unwrap();
        let high = inner.clone();
        coroutine_run(async move { high.lock().unwrap().push("high") }, 1).unwrap();
        inner.lock().unwrap().push("main");
    };
    coroutine_run(main, 32).unwrap();
    assert_eq!(*outer.lock().unwrap(), ["main", "high", "low"]);
}

#[test]
fn several_threads_run_everything_once_and_join_across() {
    let rounds = if SMALL { 2 } else { 50 };
    for _ in 0..rounds {
        let executor = Executor::new(3);
        let ran = Arc::new(AtomicUsize::new(0));
        let total = if SMALL { 20 } else { 500 };
        let count = ran.clone();
        executor.block_on(async {
            let handles: Vec<_> = (0..total)
                .map(|i| {
                    let count = count.clone();
                    try_spawn(Builder::new().priority((i % 64) as u8), async move {
                        for _ in 0..i % 7 {
                            yield_now().await;
                        }
                        let inner = spawn(async move { i });
                        assert_eq!(inner.await.unwrap(), i);
                        count.fetch_add(1, Ordering::Relaxed);
                        i
                    })
                    .unwrap()
                })
                .collect();
            for (i, handle) in handles.into_iter().enumerate() {
                assert_eq!(handle.await.unwrap(), i);
            }
        });
        assert_eq!(ran.load(Ordering::Relaxed), total);
    }
}

#[test]
fn work_of_the_first_core_goes_on_when_nobody_blocks_on_it() {
    let executor = Executor::new(2);
    for _ in 0..if SMALL { 3 } else { 100 } {
        let (send, receive) = std::sync::mpsc::channel();
        let waker = executor.block_on(async {
            let slot = Arc::new(Mutex::new(None::<Waker>));
            let store = slot.clone();
            let mut polled = false;
            spawn(poll_fn(move |cx| {
                if polled {
                    send.send(()).unwrap();
                    return Poll::Ready(());
                }
                polled = true;
                *store.lock().unwrap() = Some(cx.waker().clone());
                Poll::Pending
            }))
            .detach();
            loop {
                if let Some(waker) = slot.lock().unwrap().take() {
                    break waker;
                }
                yield_now().await;
            }
        });
        waker.wake();
        receive.recv().unwrap();
    }
}

#[test]
fn spawning_from_outside_and_dropping_with_coroutines_alive() {
    let alive = Arc::new(());
    for _ in 0..if SMALL { 2 } else { 50 } {
        let executor = Executor::new(2);
        let handles: Vec<_> = (0..20)
            .map(|i| {
                let alive = alive.clone();
                executor.spawn(async move {
                    let _alive = alive;
                    if i % 2 == 0 {
                        pending::<()>().await
                    }
                })
            })
            .collect();
        drop(executor);
        for (i, handle) in handles.into_iter().enumerate() {
            assert!(block_on(handle).is_err() || i % 2 == 1);
        }
    }
    assert_eq!(Arc::strong_count(&alive), 1);
}
