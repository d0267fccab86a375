//! Wakers of others that panic or call the crate again, wherever the crate clones, calls or drops one.
#![cfg(all(feature = "std", not(heddle_loom)))]

mod support;

use heddle_coroutine::wait::{Mutex, Notify, RwLock, Semaphore, WakerMap, channel, oneshot};
use heddle_coroutine::{JoinSet, LocalExecutor, block_on, yield_now};
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
#[cfg(not(miri))]
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use support::family::{Family, Waiting, every_way, poll};
use support::{Deed, On, ends, evil};

fn mutex() -> Family {
    let mutex = Arc::new(Mutex::new(()));
    let inner = mutex.clone();
    let mut holder: Waiting = Box::pin(async move {
        let _guard = inner.lock().await;
        pending().await
    });
    assert!(poll(&mut holder, Waker::noop()).is_pending());
    let wait = Arc::new(move || -> Waiting {
        let mutex = mutex.clone();
        Box::pin(async move { drop(mutex.lock().await) })
    });
    Family { wait, fire: Box::new(move || drop(holder)) }
}

fn semaphore() -> Family {
    let semaphore = Arc::new(Semaphore::new(0));
    let fired = semaphore.clone();
    let wait = Arc::new(move || -> Waiting {
        let semaphore = semaphore.clone();
        Box::pin(async move { drop(semaphore.acquire(1).await) })
    });
    Family { wait, fire: Box::new(move || fired.release(1)) }
}

fn map() -> Family {
    let map = Arc::new(WakerMap::new());
    let fired = map.clone();
    let wait = Arc::new(move || -> Waiting {
        let map = map.clone();
        Box::pin(async move { map.wait(7).await })
    });
    let fire = move || {
        fired.wake(7);
        fired.wake(7);
    };
    Family { wait, fire: Box::new(fire) }
}

fn receivers() -> Family {
    let (sender, receiver) = channel::<()>(1);
    let wait = Arc::new(move || -> Waiting {
        let receiver = receiver.clone();
        Box::pin(async move {
            receiver.recv().await;
        })
    });
    Family { wait, fire: Box::new(move || drop(sender)) }
}

fn senders() -> Family {
    let (sender, receiver) = channel(1);
    sender.try_send(()).unwrap();
    let wait = Arc::new(move || -> Waiting {
        let sender = sender.clone();
        Box::pin(async move {
            let _ = sender.send(()).await;
        })
    });
    Family { wait, fire: Box::new(move || drop(receiver)) }
}

/// A lock that is held for writing until the returned future is dropped.
fn held() -> (Arc<RwLock<()>>, Waiting) {
    let lock = Arc::new(RwLock::new(()));
    let inner = lock.clone();
    let mut holder: Waiting = Box::pin(async move {
        let _guard = inner.write().await;
        pending().await
    });
    assert!(poll(&mut holder, Waker::noop()).is_pending());
    (lock, holder)
}

fn readers() -> Family {
    let (lock, holder) = held();
    let wait = Arc::new(move || -> Waiting {
        let lock = lock.clone();
        Box::pin(async move { drop(lock.read().await) })
    });
    Family { wait, fire: Box::new(move || drop(holder)) }
}

fn writers() -> Family {
    let (lock, holder) = held();
    let wait = Arc::new(move || -> Waiting {
        let lock = lock.clone();
        Box::pin(async move { drop(lock.write().await) })
    });
    Family { wait, fire: Box::new(move || drop(holder)) }
}

/// The waiters of a notification, which is given to all at once or to one after another.
fn notified(fire: fn(&Notify)) -> Family {
    let notify = Arc::new(Notify::new());
    let fired = notify.clone();
    let wait = Arc::new(move || -> Waiting {
        let notify = notify.clone();
        Box::pin(async move { notify.notified().await })
    });
    Family { wait, fire: Box::new(move || fire(&fired)) }
}

/// Each waiter has a channel of its own, whose sender sends or goes.
fn messages(fire: fn(oneshot::Sender<()>)) -> Family {
    let senders = Arc::new(std::sync::Mutex::new(Vec::new()));
    let fired = senders.clone();
    let wait = Arc::new(move || -> Waiting {
        let (sender, receiver) = oneshot::channel();
        senders.lock().unwrap().push(sender);
        Box::pin(async move {
            let _ = receiver.await;
        })
    });
    let fire = move || {
        let senders = std::mem::take(&mut *fired.lock().unwrap());
        senders.into_iter().for_each(fire);
    };
    Family { wait, fire: Box::new(fire) }
}

#[cfg(not(miri))]
fn blocking() -> Family {
    let is_open = Arc::new(AtomicBool::new(false));
    let fired = is_open.clone();
    let wait = Arc::new(move || -> Waiting {
        let is_open = is_open.clone();
        Box::pin(async move {
            let work = move || {
                while !is_open.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
            };
            heddle_coroutine::spawn_blocking(work).await.unwrap();
        })
    });
    Family { wait, fire: Box::new(move || fired.store(true, Ordering::SeqCst)) }
}

#[cfg(not(miri))]
fn timer() -> Family {
    use std::time::Duration;
    let wait = Arc::new(|| -> Waiting { Box::pin(heddle_coroutine::time::sleep(Duration::from_millis(5))) });
    Family { wait, fire: Box::new(|| block_on(heddle_coroutine::time::sleep(Duration::from_millis(6)))) }
}

#[cfg(not(miri))]
fn descriptor() -> Family {
    use heddle_coroutine::io::{Direction, ready};
    use std::io::Write;
    use std::os::fd::AsFd;
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let ours = Arc::new(ours);
    let wait = Arc::new(move || -> Waiting {
        let ours = ours.clone();
        Box::pin(async move { ready(ours.as_fd(), Direction::Read).await.unwrap() })
    });
    let fire = move || {
        theirs.write_all(b"x").unwrap();
        // Whoever waits afterwards finds the byte.
        std::mem::forget(theirs);
    };
    Family { wait, fire: Box::new(fire) }
}

#[test]
fn a_mutex_survives_evil_wakers() {
    every_way(mutex);
}

#[test]
fn a_semaphore_survives_evil_wakers() {
    every_way(semaphore);
}

#[test]
fn waiting_by_key_survives_evil_wakers() {
    every_way(map);
}

#[test]
fn receivers_survive_evil_wakers() {
    every_way(receivers);
}

#[test]
fn senders_survive_evil_wakers() {
    every_way(senders);
}

#[test]
fn readers_and_writers_survive_evil_wakers() {
    every_way(readers);
    every_way(writers);
}

#[test]
fn notifications_survive_evil_wakers() {
    every_way(|| notified(Notify::notify_waiters));
    every_way(|| {
        notified(|notify| {
            notify.notify_one();
            notify.notify_one();
        })
    });
}

#[test]
fn messages_survive_evil_wakers() {
    every_way(|| messages(drop));
    every_way(|| {
        messages(|sender| {
            let _ = sender.send(());
        })
    });
}

#[test]
#[cfg(not(miri))]
fn threads_for_what_blocks_survive_evil_wakers() {
    every_way(blocking);
}

#[test]
#[cfg(not(miri))]
fn timers_survive_evil_wakers() {
    every_way(timer);
}

#[test]
#[cfg(not(miri))]
fn descriptors_survive_evil_wakers() {
    every_way(descriptor);
}

/// The end of a coroutine whose joiner is evil, in the midst of another's `block_on`.
#[test]
fn joins_survive_evil_wakers() {
    for on in [On::Wake, On::Clone, On::Drop] {
        for panics in [true, false] {
            ends(move || {
                let executor = LocalExecutor::new();
                let mut handle = executor.spawn(async { 5 });
                let deed: Deed = if panics {
                    Arc::new(|| panic!("as planned"))
                } else {
                    Arc::new(|| block_on(async { yield_now().await }))
                };
                let (waker, evil) = evil(on, deed);
                evil.arm();
                let polled = catch_unwind(AssertUnwindSafe(|| {
                    Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)).is_pending()
                }));
                assert!(polled.unwrap_or(true));
                let text = String::from("in the frame of block_on");
                let seen = executor.block_on(async {
                    for _ in 0..3 {
                        yield_now().await;
                    }
                    text.len()
                });
                assert_eq!(seen, text.len());
                assert_eq!(executor.block_on(handle).unwrap(), 5);
                let _ = catch_unwind(AssertUnwindSafe(|| drop(waker)));
            });
        }
    }
}

/// A set of coroutines, one of which ends when an evil waker waits for it.
#[test]
fn sets_survive_evil_wakers() {
    for on in [On::Wake, On::Clone, On::Drop] {
        for panics in [true, false] {
            ends(move || {
                let deed: Deed = if panics {
                    Arc::new(|| panic!("as planned"))
                } else {
                    Arc::new(|| block_on(async { yield_now().await }))
                };
                LocalExecutor::new().block_on(async {
                    let mut set = JoinSet::new();
                    set.spawn(async {
                        yield_now().await;
                        5
                    });
                    let (waker, evil) = evil(on, deed);
                    evil.arm();
                    let polled = catch_unwind(AssertUnwindSafe(|| {
                        pin!(set.join_next()).poll(&mut Context::from_waker(&waker)).is_pending()
                    }));
                    assert!(polled.unwrap_or(true));
                    for _ in 0..3 {
                        yield_now().await;
                    }
                    assert_eq!(set.join_next().await.unwrap().unwrap(), 5);
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(waker)));
                });
            });
        }
    }
}

/// The output of a coroutine panics when it is dropped, in every place where it may be.
#[test]
fn a_panicking_drop_does_not_end_the_loop() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !thread::panicking() {
                panic!("in drop");
            }
        }
    }
    /// Panics when it is dropped in poll, with a payload that panics when it is dropped.
    struct Worse;
    impl Future for Worse {
        type Output = Bomb;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Bomb> {
            Poll::Ready(Bomb)
        }
    }
    impl Drop for Worse {
        fn drop(&mut self) {
            std::panic::panic_any(Bomb);
        }
    }
    ends(|| {
        let executor = LocalExecutor::new();
        executor.spawn(Worse).detach();
        executor.spawn(async { Bomb }).detach();
        executor.spawn(async { std::panic::panic_any(Bomb) }).detach();
        let waits = executor.spawn(async {
            let _bomb = Bomb;
            pending::<()>().await;
        });
        let text = String::from("in the frame of block_on");
        let seen = executor.block_on(async {
            yield_now().await;
            waits.abort();
            for _ in 0..3 {
                yield_now().await;
            }
            text.len()
        });
        assert_eq!(seen, text.len());
        waits.detach();
        executor.run_until_idle();
    });
}

/// A waker that owns a task whose future waits for the same: cancelling one cancels the other.
#[test]
#[cfg(not(miri))]
fn a_timer_whose_waker_owns_another_timer_can_be_cancelled() {
    use heddle_coroutine::time::sleep;
    use std::time::Duration;
    struct Task(#[allow(dead_code)] std::sync::Mutex<Waiting>);
    impl std::task::Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    ends(|| {
        let hour = Duration::from_secs(3600);
        let mut inner: Waiting = Box::pin(sleep(hour));
        assert!(poll(&mut inner, Waker::noop()).is_pending());
        let mut outer: Waiting = Box::pin(sleep(hour));
        let waker = Waker::from(Arc::new(Task(std::sync::Mutex::new(inner))));
        assert!(poll(&mut outer, &waker).is_pending());
        drop(waker);
        drop(outer);
    });
}

/// Timers go on after a waker has panicked in the reactor.
#[test]
#[cfg(not(miri))]
fn timers_go_on_after_a_panic() {
    use heddle_coroutine::time::sleep;
    use std::time::Duration;
    static CALLED: AtomicBool = AtomicBool::new(false);
    ends(|| {
        let (waker, evil) = evil(
            On::Wake,
            Arc::new(|| {
                CALLED.store(true, Ordering::SeqCst);
                panic!("as planned");
            }),
        );
        evil.arm();
        let executor = LocalExecutor::new();
        executor.block_on(async {
            let mut timer: Waiting = Box::pin(sleep(Duration::from_millis(1)));
            assert!(poll(&mut timer, &waker).is_pending());
            while !CALLED.load(Ordering::SeqCst) {
                sleep(Duration::from_millis(1)).await;
            }
        });
        thread::spawn(|| block_on(sleep(Duration::from_millis(1)))).join().unwrap();
    });
}

/// A key whose drop uses the map that it is a key of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct CallingKey(u32);

static KEYS: WakerMap<CallingKey> = WakerMap::new();

impl Drop for CallingKey {
    fn drop(&mut self) {
        if self.0 == 1 {
            KEYS.clear(&CallingKey(2));
        }
    }
}

#[test]
fn keys_are_dropped_without_the_map_s_lock() {
    ends(|| {
        // The second is one that the map has already.
        KEYS.wake(CallingKey(1));
        KEYS.wake(CallingKey(1));
        block_on(KEYS.wait(CallingKey(1)));
        let executor = LocalExecutor::new();
        let waiters = [1, 2].map(|_| executor.spawn(KEYS.wait(CallingKey(1))));
        executor.run_until_idle();
        waiters.iter().for_each(|_| KEYS.wake(CallingKey(1)));
        executor.run_until_idle();
        drop(waiters);
        KEYS.clear(&CallingKey(1));
    });
}
