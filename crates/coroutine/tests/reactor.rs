//! Timers and file descriptors.
#![cfg(all(feature = "std", not(heddle_loom), not(miri)))]

mod support;

use heddle_coroutine::io::Async;
use heddle_coroutine::time::{sleep, sleep_until, timeout};
use heddle_coroutine::{Executor, LocalExecutor, block_on, spawn, spawn_local, yield_now};
use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

fn pair() -> (Async<UnixStream>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Async::new(ours).unwrap(), theirs)
}

#[test]
fn timers_fire_in_order_and_not_early() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let executor = LocalExecutor::new();
    let start = Instant::now();
    for delay in [30, 10, 20] {
        let log = log.clone();
        executor
            .spawn(async move {
                // From one start, since the thread may lose the processor between one first turn and the next.
                sleep_until(start + Duration::from_millis(delay)).await;
                assert!(start.elapsed() >= Duration::from_millis(delay));
                log.borrow_mut().push(delay);
            })
            .detach();
    }
    executor.run();
    assert_eq!(*log.borrow(), [10, 20, 30]);
}

#[test]
fn a_timeout_ends_what_takes_too_long_and_nothing_else() {
    block_on(async {
        assert!(timeout(Duration::from_millis(5), std::future::pending::<()>()).await.is_err());
        assert_eq!(timeout(Duration::from_secs(60), async { 5 }).await, Ok(5));
    });
}

#[test]
fn a_reader_waits_while_others_run() {
    let (ours, mut theirs) = pair();
    block_on(async {
        let reader = spawn_local(async move {
            let mut bytes = [0; 4];
            ours.read_exact(&mut bytes).await.unwrap();
            ours.write_all(&bytes).await.unwrap();
        });
        for _ in 0..100 {
            yield_now().await;
        }
        theirs.write_all(b"pi").unwrap();
        sleep(Duration::from_millis(2)).await;
        theirs.write_all(b"ng").unwrap();
        reader.await.unwrap();
    });
    let mut answer = [0; 4];
    theirs.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ping");
}

#[test]
fn descriptors_are_served_while_every_core_is_busy() {
    let executor = Executor::new(2);
    let (ours, theirs) = pair();
    let (mut echo, stop) =
        (theirs.try_clone().unwrap(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
    executor.block_on(async {
        for _ in 0..4 {
            let stop = stop.clone();
            spawn(async move {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    yield_now().await;
                }
            })
            .detach();
        }
        let reader = spawn(async move {
            let mut bytes = [0; 3];
            for _ in 0..20 {
                ours.read_exact(&mut bytes).await.unwrap();
                ours.write_all(&bytes).await.unwrap();
            }
        });
        let client = std::thread::spawn(move || {
            for _ in 0..20 {
                echo.write_all(b"abc").unwrap();
                let mut bytes = [0; 3];
                echo.read_exact(&mut bytes).unwrap();
            }
        });
        reader.await.unwrap();
        client.join().unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    drop(theirs);
}

#[test]
fn a_thread_that_is_no_core_may_wait_too() {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut sleep = std::pin::pin!(sleep(Duration::from_millis(3)));
    while sleep.as_mut().poll(&mut cx).is_pending() {
        std::thread::park();
    }
}

#[test]
fn a_thread_that_stops_polling_hands_the_reactor_over() {
    let (tell, told) = std::sync::mpsc::channel();
    let (ours, theirs) = pair();
    // This one sleeps in the reactor until the other side writes, which wakes it too.
    let first = std::thread::spawn(move || {
        LocalExecutor::new().block_on(async move {
            tell.send(()).unwrap();
            ours.read_exact(&mut [0]).await.unwrap();
        })
    });
    told.recv().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    // This one finds the reactor taken, and counts on the first.
    let (done, is_done) = std::sync::mpsc::channel();
    let second = std::thread::spawn(move || {
        LocalExecutor::new().block_on(sleep(Duration::from_millis(100)));
        done.send(()).unwrap();
    });
    std::thread::sleep(Duration::from_millis(20));
    (&theirs).write_all(b"x").unwrap();
    first.join().unwrap();
    // No bound on how long it takes: without a hand-over it never ends.
    is_done.recv_timeout(Duration::from_secs(60)).expect("nobody polls the reactor");
    second.join().unwrap();
}
