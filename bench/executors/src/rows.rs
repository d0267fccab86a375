//! The experiments. Each returns nanoseconds per operation, measured inside of the executor.

use crate::memory;
use crate::sides::Side;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Instant;

/// An experiment: its names, and the function that runs it.
pub type Row = (&'static str, &'static str, fn() -> f64);

/// Every experiment, run on side `S`: name, unit, function.
pub fn rows<S: Side + 'static>() -> [Row; 8] {
    [
        ("spawn+join, one by one", "ns", spawn_join::<S>),
        ("spawn+join, 1000 at once", "ns", spawn_join_many::<S>),
        ("yield, 100 coroutines", "ns", yields::<S>),
        ("wake between two", "ns", ping_pong::<S>),
        ("cross-thread wake", "ns", cross_thread_wake::<S>),
        ("chained spawn", "ns", chained_spawn::<S>),
        ("many producers", "ns", many_producers::<S>),
        ("bytes per coroutine", "B", bytes::<S>),
    ]
}

/// Runs `body`, which does `operations`, on the side.
fn timed<S: Side>(operations: u32, body: impl Future<Output = ()> + Send + 'static) -> f64 {
    S::run(async move {
        let start = Instant::now();
        body.await;
        start.elapsed().as_nanos() as f64 / f64::from(operations)
    })
}

/// A future whose `Send` the compiler need not see: handles of one-thread sides are not, and stay where they are.
pub struct Here<F>(pub F);

#[allow(unsafe_code)]
// SAFETY: one-thread sides poll every coroutine on the thread that spawned it, and drop it there; on the others the
// wrapped futures are `Send` themselves.
unsafe impl<F> Send for Here<F> {}

impl<F: Future> Future for Here<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<F::Output> {
        #[allow(unsafe_code)]
        // SAFETY: the only field, pinned as the whole is.
        unsafe { self.map_unchecked_mut(|here| &mut here.0) }.poll(cx)
    }
}

fn spawn_join<S: Side>() -> f64 {
    const N: u32 = 20_000;
    let body = Here(async {
        for _ in 0..N {
            S::spawn(async {}).await;
        }
    });
    timed::<S>(N, body)
}

fn spawn_join_many<S: Side>() -> f64 {
    const ROUNDS: u32 = 20;
    const N: u32 = 1000;
    let body = Here(async {
        let mut handles = Vec::with_capacity(N as usize);
        for _ in 0..ROUNDS {
            handles.extend((0..N).map(|_| S::spawn(async {})));
            for handle in handles.drain(..) {
                handle.await;
            }
        }
    });
    timed::<S>(ROUNDS * N, body)
}

fn yields<S: Side>() -> f64 {
    const N: u32 = 100;
    const YIELDS: u32 = 500;
    let body = Here(async {
        let coroutine = || async {
            for _ in 0..YIELDS {
                S::yield_now().await;
            }
        };
        let handles: Vec<_> = (0..N).map(|_| S::spawn(coroutine())).collect();
        for handle in handles {
            handle.await;
        }
    });
    timed::<S>(N * YIELDS, body)
}

/// State that coroutines share, as a user of the executor would keep it: behind a cell on one thread, else behind a
/// mutex.
enum Kept<T> {
    Cell(RefCell<T>),
    Mutex(Mutex<T>),
}

#[allow(unsafe_code)]
// SAFETY: the cell is used by the sides of one thread only, whose coroutines all stay there.
unsafe impl<T: Send> Sync for Kept<T> {}

impl<T> Kept<T> {
    fn new<S: Side>(value: T) -> Arc<Kept<T>> {
        Arc::new(if S::THREADS == 1 {
            Kept::Cell(RefCell::new(value))
        } else {
            Kept::Mutex(Mutex::new(value))
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        match self {
            Kept::Cell(cell) => f(&mut cell.borrow_mut()),
            Kept::Mutex(mutex) => f(&mut mutex.lock().expect("no panic")),
        }
    }
}

/// Whose turn it is, and the waker of the one that waits.
#[derive(Default)]
struct Turn {
    turn: u32,
    waker: Option<Waker>,
}

fn ping_pong<S: Side>() -> f64 {
    const N: u32 = 50_000;
    async fn player(turns: Arc<Kept<Turn>>, parity: u32) {
        for _ in 0..N / 2 {
            poll_fn(|cx| {
                turns.with(|turns| {
                    if turns.turn % 2 == parity {
                        return Poll::Ready(());
                    }
                    turns.waker = Some(cx.waker().clone());
                    Poll::Pending
                })
            })
            .await;
            let waiting = turns.with(|turns| {
                turns.turn += 1;
                turns.waker.take()
            });
            if let Some(waiting) = waiting {
                waiting.wake();
            }
        }
    }
    let body = Here(async {
        let turns = Kept::new::<S>(Turn::default());
        let (ping, pong) = (S::spawn(player(turns.clone(), 0)), S::spawn(player(turns, 1)));
        ping.await;
        pong.await;
    });
    timed::<S>(N, body)
}

/// A helper thread wakes `WAITERS` coroutines in a burst, and does so again as soon as all have run.
fn cross_thread_wake<S: Side>() -> f64 {
    const WAITERS: u32 = 256;
    const ROUNDS: u32 = 40;
    struct Shared {
        wakers: Mutex<Vec<Waker>>,
        round: AtomicU32,
        waiting: AtomicU32,
    }
    let shared = Arc::new(Shared {
        wakers: Mutex::new(Vec::new()),
        round: AtomicU32::new(0),
        waiting: AtomicU32::new(0),
    });
    let helper_shared = shared.clone();
    let helper = std::thread::spawn(move || {
        for round in 1..=ROUNDS {
            while helper_shared.waiting.load(Ordering::Acquire) != WAITERS {
                std::thread::yield_now();
            }
            helper_shared.waiting.store(0, Ordering::Relaxed);
            let wakers = std::mem::take(&mut *helper_shared.wakers.lock().expect("no panic"));
            helper_shared.round.store(round, Ordering::Release);
            wakers.into_iter().for_each(Waker::wake);
        }
    });
    async fn waiter(shared: Arc<Shared>) {
        for round in 1..=ROUNDS {
            let mut waits = false;
            poll_fn(|cx| {
                if shared.round.load(Ordering::Acquire) >= round {
                    return Poll::Ready(());
                }
                if !waits {
                    waits = true;
                    shared.wakers.lock().expect("no panic").push(cx.waker().clone());
                    shared.waiting.fetch_add(1, Ordering::AcqRel);
                }
                Poll::Pending
            })
            .await;
        }
    }
    let body = Here(async move {
        let handles: Vec<_> = (0..WAITERS).map(|_| S::spawn(waiter(shared.clone()))).collect();
        for handle in handles {
            handle.await;
        }
    });
    let time = timed::<S>(WAITERS * ROUNDS, body);
    helper.join().expect("no panic");
    time
}

/// Something that happens once.
#[derive(Default)]
struct Event {
    done: bool,
    waker: Option<Waker>,
}

impl Kept<Event> {
    fn happen(&self) {
        let waiting = self.with(|event| {
            event.done = true;
            event.waker.take()
        });
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    fn wait(&self) -> impl Future<Output = ()> + Send + '_ {
        poll_fn(|cx| {
            self.with(|event| {
                event.waker = Some(cx.waker().clone());
                if event.done { Poll::Ready(()) } else { Poll::Pending }
            })
        })
    }
}

fn chained_spawn<S: Side>() -> f64 {
    const N: u32 = 1000;
    const ROUNDS: u32 = 20;
    fn link<S: Side>(left: u32, event: Arc<Kept<Event>>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(
            async move { if left == 0 { event.happen() } else { S::detach(link::<S>(left - 1, event)) } },
        )
    }
    let body = async {
        for _ in 0..ROUNDS {
            let event = Kept::new::<S>(Event::default());
            S::detach(link::<S>(N, event.clone()));
            event.wait().await;
        }
    };
    timed::<S>(N * ROUNDS, body)
}

/// Many coroutines send through one queue to one that waits for them.
fn many_producers<S: Side>() -> f64 {
    const PRODUCERS: u32 = 64;
    const MESSAGES: u32 = 200;
    type Queue = Kept<(VecDeque<u32>, Option<Waker>)>;
    let body = Here(async {
        let queue = Queue::new::<S>(Default::default());
        let producer = |queue: Arc<Queue>| async move {
            for message in 0..MESSAGES {
                let waker = queue.with(|queue| {
                    queue.0.push_back(message);
                    queue.1.take()
                });
                if let Some(waker) = waker {
                    waker.wake();
                }
                S::yield_now().await;
            }
        };
        let handles: Vec<_> = (0..PRODUCERS).map(|_| S::spawn(producer(queue.clone()))).collect();
        for _ in 0..PRODUCERS * MESSAGES {
            poll_fn(|cx| {
                queue.with(|queue| match queue.0.pop_front() {
                    Some(message) => Poll::Ready(message),
                    None => {
                        queue.1 = Some(cx.waker().clone());
                        Poll::Pending
                    }
                })
            })
            .await;
        }
        for handle in handles {
            handle.await;
        }
    });
    timed::<S>(PRODUCERS * MESSAGES, body)
}

/// Memory asked for by a waiting coroutine with its handle, less its future.
fn bytes<S: Side>() -> f64 {
    const N: usize = 20_000;
    let parked = Arc::new(AtomicUsize::new(0));
    let body = Here(async move {
        let mut size = 0;
        let mut handles = Vec::with_capacity(N);
        memory::start();
        for _ in 0..N {
            let counter = parked.clone();
            let coroutine = async move {
                counter.fetch_add(1, Ordering::Relaxed);
                pending::<()>().await;
            };
            size = size_of_val(&coroutine);
            handles.push(S::spawn(coroutine));
        }
        while parked.load(Ordering::Relaxed) < N {
            S::yield_now().await;
        }
        let bytes = memory::end();
        // Ended by dropping the executor's handles where that cancels; the rest ends with the executor.
        std::mem::forget(handles);
        bytes as f64 / N as f64 - size as f64
    });
    S::run(body)
}
