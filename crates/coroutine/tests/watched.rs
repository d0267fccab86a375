//! Executors that watch over their turns: what becomes urgent in the midst of one is run by the core in reserve.
#![cfg(all(feature = "std", feature = "scheduler", not(heddle_loom)))]

mod support;

use heddle_coroutine::host::{self, Host, Told};
use heddle_coroutine::{Builder, Executor, Id, current_id, set_priority, try_spawn, wake, yield_now};
use std::future::poll_fn;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;
use support::ends;

/// Levels, the most urgent first.
const URGENT: u8 = 10;
const BETWEEN: u8 = 40;
const LONG: u8 = 50;

/// A host that has no events of its own: it puts threads to sleep and calls the reserve.
struct Desk {
    is_told: Mutex<bool>,
    called: Condvar,
    /// How often the thread in reserve has gone to sleep.
    sleeps: AtomicU32,
}

static DESK: Desk = Desk { is_told: Mutex::new(false), called: Condvar::new(), sleeps: AtomicU32::new(0) };

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host for Desk {
    fn before_turn(&self, settle: &dyn Fn() -> u64) {
        settle();
    }

    fn sleep(&self, word: &AtomicU32, calm: u32, _: Option<Duration>) {
        if word.load(Ordering::SeqCst) == calm {
            thread::sleep(Duration::from_micros(100));
        }
    }

    fn is_watching(&self) -> bool {
        true
    }

    fn urgent(&self, _: u8) {
        *locked(&self.is_told) = true;
        self.called.notify_all();
    }

    fn stand_by(&self) -> Told {
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        let mut is_told = locked(&self.is_told);
        while !*is_told {
            is_told = self.called.wait(is_told).unwrap_or_else(PoisonError::into_inner);
        }
        *is_told = false;
        Told::Urgent
    }
}

/// Runs one test at a time: the process has one host.
fn alone(test: fn()) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = locked(&ALONE);
    host::install(&DESK);
    *locked(&DESK.is_told) = false;
    ends(test);
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

/// A coroutine that waits, and the number of its turns.
#[derive(Clone, Default)]
struct Waiter {
    id: Arc<AtomicU64>,
    turns: Arc<AtomicU32>,
}

impl Waiter {
    /// Spawns it on the calling core; it waits to be woken after a first turn.
    fn spawn(level: u8) -> Waiter {
        let waiter = Waiter::default();
        let Waiter { id, turns } = waiter.clone();
        let body = poll_fn(move |_| {
            id.store(current_id().map_or(0, Id::to_bits), Ordering::SeqCst);
            if turns.fetch_add(1, Ordering::SeqCst) == 0 { Poll::Pending } else { Poll::Ready(()) }
        });
        try_spawn(Builder::new().priority(level), body).unwrap().detach();
        waiter
    }

    fn turns(&self) -> u32 {
        self.turns.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        wake(Id::from_bits(self.id.load(Ordering::SeqCst)).unwrap());
    }
}

/// Has the main coroutine of an executor of one thread and one in reserve wait in a long turn of level [`LONG`] while
/// `then` runs on another thread with what `before` has made.
fn during_a_long_turn<T: Send>(before: impl Future<Output = T>, then: impl FnOnce(&T) + Send) {
    let (is_over, is_long) = (AtomicBool::new(false), AtomicBool::new(false));
    let made = Mutex::new(None);
    thread::scope(|scope| {
        scope.spawn(|| {
            until(|| is_long.load(Ordering::SeqCst));
            let made = locked(&made).take().unwrap();
            then(&made);
            is_over.store(true, Ordering::SeqCst);
        });
        Executor::with_reserve(1).block_on(async {
            *locked(&made) = Some(before.await);
            set_priority(current_id().unwrap(), LONG);
            yield_now().await;
            is_long.store(true, Ordering::SeqCst);
            while !is_over.load(Ordering::SeqCst) {
                spin_loop();
            }
        });
    });
}

#[test]
fn what_is_left_with_a_core_goes_before_the_reserves_own() {
    alone(|| {
        let before = async {
            let busy = Waiter::default();
            let is_over = Arc::new(AtomicBool::new(false));
            let (stop, Waiter { id, turns }) = (is_over.clone(), busy.clone());
            let body = async move {
                let mut is_first = true;
                poll_fn(move |_| {
                    id.store(current_id().map_or(0, Id::to_bits), Ordering::SeqCst);
                    if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
                while !stop.load(Ordering::SeqCst) {
                    turns.fetch_add(1, Ordering::SeqCst);
                    yield_now().await;
                }
            };
            try_spawn(Builder::new().priority(BETWEEN), body).unwrap().detach();
            let urgent = Waiter::spawn(URGENT);
            // Both have their first turn, here.
            set_priority(current_id().unwrap(), LONG);
            yield_now().await;
            (is_over, busy, urgent)
        };
        during_a_long_turn(before, |(is_over, busy, urgent)| {
            busy.wake();
            // The reserve has work of its own without end from here on.
            until(|| busy.turns() > 100);
            urgent.wake();
            until(|| urgent.turns() == 2);
            is_over.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn the_reserve_is_told_of_each_that_is_left_in_one_turn() {
    alone(|| {
        let before = async {
            let waiters = [(); 3].map(|()| Waiter::spawn(URGENT));
            yield_now().await;
            waiters
        };
        during_a_long_turn(before, |waiters| {
            for waiter in waiters {
                let sleeps = DESK.sleeps.load(Ordering::SeqCst);
                waiter.wake();
                until(|| waiter.turns() == 2 && DESK.sleeps.load(Ordering::SeqCst) > sleeps);
            }
        });
    });
}
