//! The API that users of other executors look for.
#![cfg(all(feature = "std", not(heddle_loom)))]

mod support;

use heddle_coroutine::wait::{Notify, RwLock, oneshot};
use heddle_coroutine::{Builder, Executor, JoinSet, LocalExecutor, SpawnError, block_on, spawn, yield_now};
#[cfg(not(miri))]
use heddle_coroutine::{spawn_blocking, spawn_local};
use std::cell::RefCell;
use std::future::{Future, pending};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;

#[test]
fn a_join_set_gives_outputs_as_they_come() {
    block_on(async {
        let mut set = JoinSet::new();
        assert!(set.join_next().await.is_none());
        for turns in [30, 10, 20] {
            set.spawn(async move {
                for _ in 0..turns {
                    yield_now().await;
                }
                turns
            });
        }
        set.spawn(async { panic!("as planned") });
        assert_eq!(set.len(), 4);
        assert!(set.join_next().await.unwrap().unwrap_err().into_panic().is_some());
        for turns in [10, 20, 30] {
            assert_eq!(set.join_next().await.unwrap().unwrap(), turns);
        }
        assert!(set.join_next().await.is_none());
        // Numbers are used again, and those that are aborted are told of too.
        for _ in 0..3 {
            set.spawn(pending());
        }
        yield_now().await;
        set.abort_all();
        for _ in 0..3 {
            assert!(set.join_next().await.unwrap().unwrap_err().is_cancelled());
        }
        assert!(set.is_empty());
    });
}

#[test]
fn a_dropped_join_set_aborts() {
    let executor = Executor::new(2);
    let alive = Arc::new(());
    executor.block_on(async {
        let mut set = JoinSet::new();
        for _ in 0..10 {
            let alive = alive.clone();
            set.spawn(async move {
                let _alive = alive;
                pending::<()>().await;
            });
        }
        // A wait that is dropped loses nothing.
        let _ = pin!(set.join_next()).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(set.len(), 10);
        drop(set);
        while Arc::strong_count(&alive) != 1 {
            yield_now().await;
        }
    });
}

#[test]
fn a_join_set_outside_of_executors_says_so() {
    let mut set = JoinSet::new();
    assert_eq!(set.try_spawn(Builder::new(), async {}), Err(SpawnError::NoExecutor));
    assert!(set.is_empty());
    assert!(block_on(set.join_next()).is_none());
}

#[test]
fn one_message_or_none() {
    block_on(async {
        let (send, receive) = oneshot::channel();
        let answering = spawn(async move { send.send(5) });
        assert_eq!(receive.await, Ok(5));
        assert_eq!(answering.await.unwrap(), Ok(()));
        let (send, receive) = oneshot::channel::<()>();
        let waiting = spawn(receive);
        yield_now().await;
        drop(send);
        assert!(waiting.await.unwrap().is_err());
        let (send, receive) = oneshot::channel();
        drop(receive);
        assert!(send.is_closed());
        assert_eq!(send.send(7), Err(7));
        let (send, mut receive) = oneshot::channel();
        assert_eq!(receive.try_recv(), None);
        send.send(9).unwrap();
        assert_eq!(receive.try_recv(), Some(9));
    });
}

#[test]
fn a_notification_reaches_the_most_urgent_or_is_kept() {
    let executor = LocalExecutor::new();
    let (notify, log) = (Rc::new(Notify::new()), Rc::new(RefCell::new(String::new())));
    let wait = |level: u8, name: char| {
        let (notify, log) = (notify.clone(), log.clone());
        let body = async move {
            notify.notified().await;
            log.borrow_mut().push(name);
        };
        executor.try_spawn(Builder::new().priority(level), body).unwrap()
    };
    notify.notify_one();
    wait(30, 'a').detach();
    executor.run_until_idle();
    assert_eq!(*log.borrow(), "a");
    wait(30, 'b').detach();
    let told = wait(10, 'c');
    wait(20, 'd').detach();
    executor.run_until_idle();
    // Told and aborted before it goes on: another goes on instead.
    notify.notify_one();
    told.abort();
    executor.run_until_idle();
    assert_eq!(*log.borrow(), "ad");
    wait(40, 'e').detach();
    executor.run_until_idle();
    notify.notify_waiters();
    executor.run_until_idle();
    assert_eq!(*log.borrow(), "adbe");
    // All were told, so nothing is kept.
    wait(40, 'f').detach();
    executor.run_until_idle();
    assert_eq!(*log.borrow(), "adbe");
}

#[test]
fn readers_share_and_writers_do_not() {
    let lock = Arc::new(RwLock::new(0));
    let rounds = if cfg!(miri) { 5 } else { 300 };
    let executor = Executor::new(3);
    executor.block_on(async {
        let mut set = JoinSet::new();
        for i in 0..8 {
            let lock = lock.clone();
            set.spawn(async move {
                for _ in 0..rounds {
                    if i % 2 == 0 {
                        let mut value = lock.write().await;
                        let before = *value;
                        yield_now().await;
                        *value = before + 1;
                    } else {
                        let value = lock.read().await;
                        let before = *value;
                        yield_now().await;
                        assert_eq!(*value, before);
                    }
                }
            });
        }
        while let Some(ended) = set.join_next().await {
            ended.unwrap();
        }
    });
    assert_eq!(*lock.try_read().unwrap(), 4 * rounds);
    let (first, second) = (lock.try_read(), lock.try_read());
    assert!(first.is_some() && second.is_some() && lock.try_write().is_none());
}

#[test]
#[cfg(not(miri))] // The threads of the pool outlive the test.
fn blocking_work_runs_beside_the_coroutines() {
    block_on(async {
        let (send, receive) = std::sync::mpsc::channel();
        let blocked = spawn_blocking(move || {
            receive.recv().unwrap();
            thread::current().id()
        });
        // It needs a coroutine to go on.
        spawn_local(async move { send.send(()).unwrap() }).await.unwrap();
        assert_ne!(blocked.await.unwrap(), thread::current().id());
        let panicked = spawn_blocking(|| panic!("as planned"));
        assert!(panicked.await.unwrap_err().into_panic().is_some());
        let many: Vec<_> = (0..50).map(|i| spawn_blocking(move || i)).collect();
        for (i, handle) in many.into_iter().enumerate() {
            assert_eq!(handle.await.unwrap(), i);
        }
    });
}

#[test]
fn a_handle_spawns_until_its_executor_ends() {
    let executor = Executor::new(2);
    let handle = executor.handle();
    let other = thread::spawn({
        let handle = handle.clone();
        move || block_on(handle.spawn(async { 5 })).unwrap()
    });
    assert_eq!(other.join().unwrap(), 5);
    drop(executor);
    // The next executor may use what the first had.
    let _next = Executor::new(2);
    assert_eq!(handle.try_spawn(Builder::new(), async {}).err(), Some(SpawnError::NoExecutor));
}

#[cfg(not(miri))]
mod reactor {
    use super::*;
    use heddle_coroutine::io::Async;
    use heddle_coroutine::time::interval;
    use std::net::TcpListener;
    #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    #[test]
    fn ticks_keep_their_distance() {
        block_on(async {
            let start = Instant::now();
            let mut ticks = interval(Duration::from_millis(2));
            let first = ticks.tick().await;
            let second = ticks.tick().await;
            assert_eq!((second - first).as_nanos() % ticks.period().as_nanos(), 0);
            assert!(first >= start && Instant::now() >= second);
            // Late by several: the next is due at a distance that is a multiple.
            thread::sleep(Duration::from_millis(7));
            let (late, next) = (ticks.tick().await, ticks.tick().await);
            assert_eq!((late - first).as_nanos() % ticks.period().as_nanos(), 0);
            assert!(next - late >= Duration::from_millis(2));
            assert_eq!((next - late).as_nanos() % ticks.period().as_nanos(), 0);
            interval(Duration::MAX).tick().await;
        });
    }

    #[test]
    fn connections_are_made_and_refused() {
        block_on(async {
            for address in ["127.0.0.1:0", "[::1]:0"] {
                let Ok(listener) = Async::<TcpListener>::bind(address) else { continue };
                let address = listener.get_ref().local_addr().unwrap();
                let client = spawn(async move {
                    let stream = Async::connect(address).await.unwrap();
                    stream.write_all(b"ping").await.unwrap();
                    let mut answer = [0; 4];
                    stream.read_exact(&mut answer).await.unwrap();
                    answer
                });
                let (stream, _) = listener.accept().await.unwrap();
                let mut question = [0; 4];
                stream.read_exact(&mut question).await.unwrap();
                stream.write_all(&question).await.unwrap();
                assert_eq!(client.await.unwrap(), *b"ping");
                drop(listener);
                assert!(Async::connect(address).await.is_err());
            }
        });
    }

    #[cfg(any(feature = "futures-io", feature = "tokio-io"))]
    async fn pair() -> (Async<TcpStream>, Async<TcpStream>) {
        let listener = Async::<TcpListener>::bind("127.0.0.1:0").unwrap();
        let address = listener.get_ref().local_addr().unwrap();
        let client = spawn(Async::connect(address));
        let server = listener.accept().await.unwrap().0;
        (client.await.unwrap().unwrap(), server)
    }

    #[test]
    #[cfg(feature = "futures-io")]
    fn the_traits_of_futures_read_and_write() {
        use futures::io::{AsyncReadExt, AsyncWriteExt};
        block_on(async {
            let (mut ours, mut theirs) = pair().await;
            let echo = spawn(async move {
                let mut all = Vec::new();
                theirs.read_to_end(&mut all).await.unwrap();
                theirs.write_all(&all).await.unwrap();
                theirs.close().await.unwrap();
            });
            let sent: Vec<_> = (0..3_000_000).map(|byte| byte as u8).collect();
            AsyncWriteExt::write_all(&mut ours, &sent).await.unwrap();
            ours.close().await.unwrap();
            let mut back = Vec::new();
            ours.read_to_end(&mut back).await.unwrap();
            assert!(back == sent);
            echo.await.unwrap();
        });
    }

    #[test]
    #[cfg(feature = "tokio-io")]
    fn the_traits_of_tokio_read_and_write() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        block_on(async {
            let (ours, theirs) = pair().await;
            let echo = spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(theirs);
                let copied = tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
                copied
            });
            let (mut reader, mut writer) = tokio::io::split(ours);
            let sent: Vec<_> = (0..3_000_000).map(|byte| byte as u8).collect();
            let all = sent.clone();
            // Both directions at once, from two coroutines.
            let writing = spawn(async move {
                writer.write_all(&all).await.unwrap();
                writer.shutdown().await.unwrap();
            });
            let mut back = Vec::new();
            reader.read_to_end(&mut back).await.unwrap();
            assert!(back == sent);
            writing.await.unwrap();
            assert_eq!(echo.await.unwrap(), 3_000_000);
        });
    }
}
