//! Ways into undefined behaviour that safe code once had, and mistakes that once hung or ended a process.
#![cfg(all(feature = "std", not(heddle_loom)))]

mod support;

use heddle_coroutine::wait::{Semaphore, channel};
use heddle_coroutine::{
    Executor, Id, LocalExecutor, block_on, current_id, move_to, preempted, spawn, waker, yield_now,
};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Context;
use std::thread;
use support::ends;

#[test]
fn the_main_coroutine_does_not_move() {
    let executor = Executor::new(2);
    let count = Rc::new(());
    let other = count.clone();
    let there = executor.block_on(async move {
        for _ in 0..10 {
            move_to(0b10).await;
            yield_now().await;
        }
        drop(other);
        thread::current().id()
    });
    assert_eq!(there, thread::current().id());
    assert_eq!(Rc::strong_count(&count), 1);
}

/// Polls what `poll` polls with wakers of coroutines that run on another thread.
fn forge(poll: fn(&mut Context<'_>)) {
    let (stop, id) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (stopped, shown) = (stop.clone(), id.clone());
    let forging = thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            if let Some(id) = Id::from_bits(shown.load(Ordering::Relaxed)) {
                poll(&mut Context::from_waker(&waker(id)));
            }
            thread::yield_now();
        }
    });
    Executor::new(1).block_on(async {
        for _ in 0..if cfg!(miri) { 15 } else { 5000 } {
            let id = id.clone();
            let turns = spawn(async move {
                id.store(current_id().unwrap().to_bits(), Ordering::Relaxed);
                for _ in 0..3 {
                    yield_now().await;
                }
            });
            turns.await.unwrap();
        }
    });
    stop.store(true, Ordering::Relaxed);
    forging.join().unwrap();
}

#[test]
fn a_waker_is_no_proof_of_being_its_coroutine() {
    ends(|| {
        forge(|cx| {
            let _ = pin!(preempted()).poll(cx);
        })
    });
    ends(|| {
        forge(|cx| {
            let _ = pin!(move_to(1)).poll(cx);
        })
    });
}

#[test]
fn block_on_within_itself_says_so() {
    let said = ends(|| {
        let executor = Executor::new(2);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            executor.block_on(async { executor.block_on(async {}) });
        }));
        // The executor can be used afterwards.
        assert_eq!(executor.block_on(async { 5 }), 5);
        *outcome.unwrap_err().downcast::<&'static str>().unwrap()
    });
    assert!(said.contains("block_on was called by a coroutine of the same executor"));
}

#[test]
fn block_on_within_another_within_itself_says_so() {
    ends(|| {
        let executor = Executor::new(2);
        let inner = LocalExecutor::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            executor.block_on(async { inner.block_on(async { executor.block_on(async {}) }) });
        }));
        assert!(outcome.is_err());
    });
}

#[test]
fn a_worker_may_drop_its_executor() {
    ends(|| {
        let executor = Arc::new(Executor::new(2));
        let inner = executor.clone();
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let dropped = Arc::new(AtomicBool::new(false));
        struct Note(Arc<AtomicBool>);
        impl Drop for Note {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let note = Note(dropped.clone());
        executor
            .spawn(async move {
                let _note = note;
                std::future::pending::<()>().await;
            })
            .detach();
        let last = executor.spawn(async move {
            receive.recv().unwrap();
            drop(inner);
            5
        });
        drop(executor);
        send.send(()).unwrap();
        assert_eq!(block_on(last).unwrap(), 5);
        // The rest is dropped by another thread.
        while !dropped.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    });
}

#[test]
fn a_panic_of_the_main_coroutine_leaves_the_core_to_the_others() {
    ends(|| {
        let executor = Executor::new(2);
        let left = Arc::new(std::sync::Mutex::new(None));
        let place = left.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            executor.block_on(async move {
                *place.lock().unwrap() = Some(spawn(async {
                    for _ in 0..100 {
                        yield_now().await;
                    }
                }));
                panic!("as planned");
            })
        }));
        assert!(outcome.is_err());
        let handle = left.lock().unwrap().take().unwrap();
        block_on(handle).unwrap();
    });
}

#[test]
fn permits_do_not_overflow() {
    let semaphore = Semaphore::new(1);
    semaphore.release(usize::MAX);
    assert_eq!(semaphore.available(), usize::MAX);
}

#[test]
fn messages_go_with_the_last_receiver() {
    let (sender, receiver) = channel(2);
    let message = Arc::new(());
    sender.try_send(message.clone()).unwrap();
    let another = receiver.clone();
    drop(receiver);
    assert_eq!(Arc::strong_count(&message), 2);
    drop(another);
    assert_eq!(Arc::strong_count(&message), 1);
    assert!(sender.try_send(message).is_err());
}

/// A message that holds a sender of its own channel.
#[test]
fn a_reply_sender_inside_of_a_message_closes() {
    let (sender, receiver) = channel(1);
    let (reply, replies) = channel::<()>(1);
    sender.try_send(reply).unwrap();
    drop(receiver);
    assert_eq!(block_on(replies.recv()), None);
}

#[cfg(not(miri))]
mod reactor {
    use super::*;
    use heddle_coroutine::io::{Async, Direction, ready};
    use heddle_coroutine::spawn_local;
    use heddle_coroutine::time::{sleep, timeout};
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::task::Poll;
    use std::time::Duration;

    #[test]
    fn for_ever_is_a_duration() {
        ends(|| {
            block_on(async {
                assert_eq!(timeout(Duration::MAX, async { 5 }).await, Ok(5));
                let mut forever = pin!(sleep(Duration::MAX));
                poll_fn(|cx| {
                    assert!(forever.as_mut().poll(cx).is_pending());
                    Poll::Ready(())
                })
                .await;
            });
        });
    }

    #[test]
    fn one_wait_of_a_coroutine_does_not_end_another() {
        ends(|| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            block_on(async {
                let mut kept = Box::pin(ready(ours.as_fd(), Direction::Read));
                let mut dropped = Some(Box::pin(ready(ours.as_fd(), Direction::Read)));
                poll_fn(|cx| {
                    if let Some(mut dropped) = dropped.take() {
                        assert!(kept.as_mut().poll(cx).is_pending());
                        assert!(dropped.as_mut().poll(cx).is_pending());
                        drop(dropped);
                        (&theirs).write_all(b"x").unwrap();
                    }
                    kept.as_mut().poll(cx)
                })
                .await
                .unwrap();
            });
        });
    }

    /// An owner and somebody who only waits, on one descriptor.
    #[test]
    fn waits_of_both_kinds_share_a_descriptor() {
        ends(|| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            block_on(async {
                let ours = Arc::new(Async::new(ours).unwrap());
                let reader = ours.clone();
                let read = spawn_local(async move {
                    let mut byte = [0];
                    reader.read_exact(&mut byte).await.unwrap();
                });
                yield_now().await;
                let waiter = ours.clone();
                let waited = spawn_local(async move {
                    ready(waiter.get_ref().as_fd(), Direction::Read).await.unwrap();
                });
                yield_now().await;
                (&theirs).write_all(b"xy").unwrap();
                read.await.unwrap();
                waited.await.unwrap();
            });
        });
    }

    #[test]
    fn a_blocking_descriptor_does_not_stop_the_thread() {
        ends(|| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            block_on(async {
                let ours = Async::new(ours).unwrap();
                let ticks = Rc::new(Cell::new(0));
                let count = ticks.clone();
                let ticker = spawn_local(async move {
                    // The byte comes once the ticks have: a read that blocks would wait for ever.
                    while count.get() < 10 {
                        yield_now().await;
                        count.set(count.get() + 1);
                    }
                    (&theirs).write_all(b"x").unwrap();
                });
                let byte = ours.read_with(|mut ours| {
                    let mut byte = [0];
                    ours.read(&mut byte).map(|_| byte)
                });
                assert_eq!(byte.await.unwrap(), *b"x");
                assert_eq!(ticks.get(), 10);
                ticker.await.unwrap();
            });
        });
    }
}
