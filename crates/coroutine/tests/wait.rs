//! Waiting that respects priorities.
#![cfg(all(feature = "std", not(heddle_loom)))]

mod support;

use heddle_coroutine::wait::{Mutex, Semaphore, WakerMap, channel};
use heddle_coroutine::{Builder, Executor, LocalExecutor, block_on, set_priority, spawn, yield_now};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

type Log = Rc<RefCell<String>>;

fn spawn_at<F: Future<Output = ()> + 'static>(
    executor: &LocalExecutor,
    level: u8,
    body: F,
) -> heddle_coroutine::Id {
    let handle = executor.try_spawn(Builder::new().priority(level), body).unwrap();
    handle.id()
}

#[test]
fn a_mutex_goes_to_the_most_urgent_waiter_as_ranked_when_it_is_free() {
    let executor = LocalExecutor::new();
    let (mutex, log) = (Rc::new(Mutex::new(())), Log::default());
    let held = mutex.try_lock().unwrap();
    let ids: Vec<_> = [(30, 'a'), (20, 'b'), (30, 'c'), (40, 'd')]
        .into_iter()
        .map(|(level, name)| {
            let (mutex, log) = (mutex.clone(), log.clone());
            spawn_at(&executor, level, async move {
                let _guard = mutex.lock().await;
                yield_now().await;
                log.borrow_mut().push(name);
            })
        })
        .collect();
    executor.run_until_idle();
    set_priority(ids[3], 1);
    executor.run_until_idle();
    assert_eq!(*log.borrow(), "");
    drop(held);
    executor.run();
    assert_eq!(*log.borrow(), "dbac");
}

#[test]
fn the_holder_inherits_along_a_chain_and_gives_it_back() {
    let executor = LocalExecutor::new();
    let log = Log::default();
    let (first, second) = (Rc::new(Mutex::new(())), Rc::new(Mutex::new(())));
    // `low` holds the first; `middle` holds the second and waits for the first; `high` waits for the second.
    let (lock, notes) = (first.clone(), log.clone());
    spawn_at(&executor, 50, async move {
        let guard = lock.lock().await;
        for _ in 0..3 {
            yield_now().await;
        }
        notes.borrow_mut().push('l');
        drop(guard);
        yield_now().await;
        notes.borrow_mut().push('L');
    });
    assert!(executor.run_one());
    let (outer, inner, notes) = (first.clone(), second.clone(), log.clone());
    spawn_at(&executor, 40, async move {
        let _second = inner.lock().await;
        let _first = outer.lock().await;
        notes.borrow_mut().push('m');
    });
    assert!(executor.run_one());
    let (lock, notes) = (second.clone(), log.clone());
    spawn_at(&executor, 10, async move {
        let _second = lock.lock().await;
        notes.borrow_mut().push('h');
    });
    assert!(executor.run_one());
    // Without the loan this one would run before `low` comes to the end.
    let notes = log.clone();
    spawn_at(&executor, 30, async move { notes.borrow_mut().push('x') });
    executor.run();
    assert_eq!(*log.borrow(), "lmhxL");
}

#[test]
fn a_joiner_lends_and_a_cancelled_waiter_takes_it_back() {
    let executor = LocalExecutor::new();
    let log = Log::default();
    let notes = log.clone();
    let slow = executor
        .try_spawn(Builder::new().priority(50), async move {
            for _ in 0..3 {
                yield_now().await;
            }
            notes.borrow_mut().push('s');
        })
        .unwrap();
    let slow_id = slow.id();
    let joiner = executor.try_spawn(Builder::new().priority(10), async move { slow.await.unwrap() }).unwrap();
    assert!(executor.run_one());
    let notes = log.clone();
    spawn_at(&executor, 30, async move { notes.borrow_mut().push('x') });
    // The joiner waits, so the slow one runs at its level, before `x`.
    assert!(executor.run_one());
    assert_eq!(*log.borrow(), "");
    joiner.abort();
    executor.run_until_idle();
    assert_eq!(*log.borrow(), "xs");
    set_priority(slow_id, 0);
}

#[test]
fn a_semaphore_serves_the_urgent_first_and_large_wishes_too() {
    let executor = LocalExecutor::new();
    let (semaphore, log) = (Rc::new(Semaphore::new(2)), Log::default());
    let all = semaphore.try_acquire(2).unwrap();
    for (level, permits, name) in [(30, 1, 'a'), (20, 2, 'b'), (10, 1, 'c')] {
        let (semaphore, log) = (semaphore.clone(), log.clone());
        spawn_at(&executor, level, async move {
            let _permit = semaphore.acquire(permits).await;
            log.borrow_mut().push(name);
            yield_now().await;
        });
    }
    executor.run_until_idle();
    drop(all);
    executor.run();
    assert_eq!(*log.borrow(), "cba");
    assert_eq!(semaphore.available(), 2);
}

#[test]
fn a_channel_keeps_the_order_of_messages_and_ends() {
    block_on(async {
        let (sender, receiver) = channel(2);
        let producer = spawn(async move {
            for message in 0..100 {
                sender.send(message).await.unwrap();
            }
        });
        let mut next = 0;
        while let Some(message) = receiver.recv().await {
            assert_eq!(message, next);
            next += 1;
        }
        assert_eq!(next, 100);
        producer.await.unwrap();
        let (sender, receiver) = channel(1);
        drop(receiver);
        assert_eq!(sender.send(5).await, Err(5));
    });
}

#[test]
fn a_wake_by_key_before_the_wait_is_kept_and_each_wake_reaches_one() {
    let executor = LocalExecutor::new();
    let (map, log) = (Rc::new(WakerMap::new()), Log::default());
    map.wake(7);
    executor.block_on(map.wait(7));
    for (level, name) in [(30, 'a'), (10, 'b')] {
        let (map, log) = (map.clone(), log.clone());
        spawn_at(&executor, level, async move {
            map.wait(7).await;
            log.borrow_mut().push(name);
        });
    }
    executor.run_until_idle();
    map.wake(7);
    executor.run_until_idle();
    assert_eq!(*log.borrow(), "b");
    map.wake(7);
    executor.run();
    assert_eq!(*log.borrow(), "ba");
}

#[test]
fn a_mutex_guards_across_threads() {
    let executor = Executor::new(3);
    let (coroutines, rounds) = if cfg!(miri) { (4, 5) } else { (32, 200) };
    let count = Arc::new(Mutex::new(0));
    executor.block_on(async {
        let handles: Vec<_> = (0..coroutines)
            .map(|_| {
                let count = count.clone();
                spawn(async move {
                    for _ in 0..rounds {
                        let mut count = count.lock().await;
                        let before = *count;
                        yield_now().await;
                        *count = before + 1;
                    }
                })
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
    });
    let guard = count.try_lock().unwrap();
    assert_eq!(*guard, coroutines * rounds);
    assert!(count.try_lock().is_none() && count.try_lock().is_none());
}

/// With steps that grow with the number of those who wait, this would take hours.
#[test]
fn a_hundred_thousand_wait_as_two_do() {
    let (waiters, executor) = (if cfg!(miri) { 20 } else { 100_000 }, LocalExecutor::new());
    let (mutex, semaphore) = (Rc::new(Mutex::new(0)), Rc::new(Semaphore::new(1)));
    for i in 0..waiters {
        let (mutex, semaphore) = (mutex.clone(), semaphore.clone());
        let builder = Builder::new().priority(20 + (i % 3) as u8).order((i % 8) as u8);
        let body = async move {
            for _ in 0..2 {
                let mut count = mutex.lock().await;
                yield_now().await;
                *count += 1;
                drop(count);
                let _permit = semaphore.acquire(1).await;
                yield_now().await;
            }
        };
        executor.try_spawn(builder, body).unwrap().detach();
    }
    executor.run();
    assert_eq!(*mutex.try_lock().unwrap(), 2 * waiters);
    assert_eq!(semaphore.available(), 1);
}

/// A waiter that becomes less urgent is not the first any more, and one that gives up leaves no gap.
#[test]
fn a_waiter_is_filed_where_it_belongs_when_its_turn_comes() {
    let executor = LocalExecutor::new();
    let (mutex, log) = (Rc::new(Mutex::new(())), Log::default());
    let held = mutex.try_lock().unwrap();
    let handles: Vec<_> = [(10, 'a'), (20, 'b'), (20, 'c'), (30, 'd')]
        .into_iter()
        .map(|(level, name)| {
            let (mutex, log) = (mutex.clone(), log.clone());
            let body = async move {
                let _guard = mutex.lock().await;
                log.borrow_mut().push(name);
            };
            executor.try_spawn(Builder::new().priority(level), body).unwrap()
        })
        .collect();
    executor.run_until_idle();
    set_priority(handles[0].id(), 40);
    handles[1].abort();
    executor.run_until_idle();
    drop(held);
    executor.run();
    assert_eq!(*log.borrow(), "cda");
}
