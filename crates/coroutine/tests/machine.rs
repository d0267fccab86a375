//! The kernel's executor, with threads in the place of processors.
#![cfg(all(feature = "alloc", not(heddle_loom)))]
#![allow(unsafe_code)] // `Platform` is an unsafe trait.

mod support;

use heddle_coroutine::{
    Builder, Core, Id, Machine, Platform, move_to, preempted, set_priority, wake, yield_now,
};
use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::{self, Thread};

thread_local!(static NUMBER: Cell<Option<u32>> = const { Cell::new(None) });

macro_rules! platform {
    ($name:ident, $machine:ident) => {
        struct $name;
        static $machine: Machine<$name> = Machine::new();
        impl $name {
            fn threads() -> &'static Mutex<Vec<Option<Thread>>> {
                static THREADS: Mutex<Vec<Option<Thread>>> = Mutex::new(Vec::new());
                &THREADS
            }
            fn start(number: u32) -> Core<$name> {
                NUMBER.set(Some(number));
                let mut threads = Self::threads().lock().unwrap();
                let length = threads.len().max(number as usize + 1);
                threads.resize(length, None);
                threads[number as usize] = Some(thread::current());
                $machine.start(number).expect("a new core")
            }
        }
        // SAFETY: every thread has a number of its own.
        unsafe impl Platform for $name {
            fn this_core() -> Option<u32> {
                NUMBER.get()
            }
            fn kick(core: u32) {
                if let Some(Some(thread)) = Self::threads().lock().unwrap().get(core as usize) {
                    thread.unpark();
                }
            }
        }
    };
}

fn run_until<P: Platform>(core: &Core<P>, done: impl Fn() -> bool) {
    while !done() {
        while core.run_one() {}
        if !done() && core.try_park() {
            if !done() {
                thread::park();
            }
            core.unpark();
        }
    }
}

#[test]
fn one_core_runs_by_level_then_in_order() {
    platform!(P, MACHINE);
    let core = P::start(0);
    let log = Arc::new(Mutex::new(Vec::new()));
    for (level, name) in [(5, 'a'), (3, 'b'), (5, 'c'), (0, 'd'), (3, 'e')] {
        let log = log.clone();
        let body = async move {
            log.lock().unwrap().push(name);
            yield_now().await;
            log.lock().unwrap().push(name.to_ascii_uppercase());
        };
        MACHINE.spawn(Builder::new().priority(level), body).unwrap().detach();
    }
    while core.run_one() {}
    assert_eq!(log.lock().unwrap().iter().collect::<String>(), "dDbeBEacAC");
    assert!(core.try_park());
    core.unpark();
}

#[test]
fn a_join_handle_gives_the_output_and_an_abort_an_error() {
    platform!(P, MACHINE);
    let core = P::start(0);
    let answer = MACHINE.spawn(Builder::new().name("answer").kind(7), async { 42 }).unwrap();
    assert_eq!((answer.name(), answer.kind()), (Some("answer"), 7));
    let never = MACHINE.spawn(Builder::new(), std::future::pending::<u8>()).unwrap();
    let seen = Arc::new(Mutex::new(None));
    let store = seen.clone();
    let main = async move {
        let answer = answer.await.unwrap();
        yield_now().await;
        never.abort();
        let error = never.await.unwrap_err();
        *store.lock().unwrap() = Some((answer, error.is_cancelled()));
    };
    MACHINE.spawn(Builder::new(), main).unwrap().detach();
    while core.run_one() {}
    assert_eq!(*seen.lock().unwrap(), Some((42, true)));
}

#[test]
fn a_queued_coroutine_changes_its_level_and_a_stale_id_reaches_nothing() {
    platform!(P, MACHINE);
    let core = P::start(0);
    let log = Arc::new(Mutex::new(Vec::new()));
    let spawn = |level: u8, name: char| -> Id {
        let log = log.clone();
        let body = async move { log.lock().unwrap().push(name) };
        let handle = MACHINE.spawn(Builder::new().priority(level), body).unwrap();
        handle.id()
    };
    let (_, b, c) = (spawn(9, 'a'), spawn(9, 'b'), spawn(9, 'c'));
    set_priority(c, 2);
    set_priority(b, 63);
    while core.run_one() {}
    assert_eq!(log.lock().unwrap().iter().collect::<String>(), "cab");
    let d = spawn(9, 'd');
    assert!([b, c].iter().any(|old| old.index() == d.index()) || d.index() < b.index());
    while core.run_one() {}
    let parked = Arc::new(AtomicU64::new(0));
    let polls = parked.clone();
    let body = poll_fn(move |_| {
        polls.fetch_add(1, Ordering::Relaxed);
        Poll::<()>::Pending
    });
    let waiting = MACHINE.spawn(Builder::new(), body).unwrap();
    while core.run_one() {}
    for stale in [b, c, d] {
        wake(stale);
        set_priority(stale, 0);
    }
    assert!(!core.run_one());
    wake(waiting.id());
    assert!(core.run_one());
    assert_eq!(parked.load(Ordering::Relaxed), 2);
    waiting.abort();
    while core.run_one() {}
}

#[test]
fn two_cores_share_and_wake_each_other() {
    platform!(P, MACHINE);
    const COROUTINES: u32 = if cfg!(miri) { 6 } else { 64 };
    const ROUNDS: u32 = if cfg!(miri) { 4 } else { 200 };
    let stop = Arc::new(AtomicBool::new(false));
    let left = Arc::new(AtomicU32::new(COROUTINES));
    let (other_stop, other_left) = (stop.clone(), left.clone());
    let core = P::start(0);
    let other = thread::spawn(move || {
        let core = P::start(1);
        run_until(&core, || other_stop.load(Ordering::Acquire));
        drop(other_left);
    });
    let polls = Arc::new(AtomicU32::new(0));
    for i in 0..COROUTINES {
        let (polls, left) = (polls.clone(), left.clone());
        let body = async move {
            for round in 0..ROUNDS {
                polls.fetch_add(1, Ordering::Relaxed);
                if round % 3 == 0 {
                    let mut armed = false;
                    poll_fn(|cx| {
                        if armed {
                            return Poll::Ready(());
                        }
                        armed = true;
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    })
                    .await;
                } else {
                    yield_now().await;
                }
            }
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                P::kick(0);
            }
        };
        MACHINE.spawn(Builder::new().priority((i % 4) as u8), body).unwrap().detach();
    }
    run_until(&core, || left.load(Ordering::Acquire) == 0);
    stop.store(true, Ordering::Release);
    P::kick(1);
    other.join().unwrap();
    assert_eq!(polls.load(Ordering::Relaxed), COROUTINES * ROUNDS);
}

#[test]
fn a_preempted_coroutine_goes_on_before_its_level() {
    platform!(P, MACHINE);
    let core = P::start(0);
    let log = Arc::new(Mutex::new(Vec::new()));
    for name in ['a', 'b'] {
        let log = log.clone();
        let body = async move {
            log.lock().unwrap().push(name);
            preempted().await;
            log.lock().unwrap().push(name);
            yield_now().await;
            log.lock().unwrap().push(name);
        };
        MACHINE.spawn(Builder::new(), body).unwrap().detach();
    }
    while core.run_one() {}
    assert_eq!(log.lock().unwrap().iter().collect::<String>(), "aabbab");
}

#[test]
fn a_coroutine_moves_to_the_core_it_asks_for() {
    platform!(P, MACHINE);
    let core = P::start(0);
    let stop = Arc::new(AtomicBool::new(false));
    let other_stop = stop.clone();
    let ready = Arc::new(AtomicBool::new(false));
    let other_ready = ready.clone();
    let other = thread::spawn(move || {
        let core = P::start(1);
        other_ready.store(true, Ordering::Release);
        run_until(&core, || other_stop.load(Ordering::Acquire));
    });
    while !ready.load(Ordering::Acquire) {
        thread::yield_now();
    }
    let done = Arc::new(AtomicBool::new(false));
    let end = done.clone();
    let body = async move {
        for turn in 0..10 {
            let core = turn % 2;
            move_to(1 << core).await;
            assert_eq!(P::this_core(), Some(core));
        }
        end.store(true, Ordering::Release);
        P::kick(0);
    };
    MACHINE.spawn(Builder::new(), body).unwrap().detach();
    run_until(&core, || done.load(Ordering::Acquire));
    stop.store(true, Ordering::Release);
    P::kick(1);
    other.join().unwrap();
}

#[test]
fn others_run_while_a_turn_is_put_aside() {
    platform!(P, MACHINE);
    thread_local!(static CORE: Cell<Option<&'static Core<P>>> = const { Cell::new(None) });
    let place = Box::into_raw(Box::new(P::start(0)));
    // SAFETY: it is freed at the end of the test, after its last turn.
    let core: &'static Core<P> = unsafe { &*place };
    CORE.set(Some(core));
    for (wakes_itself, is_woken) in [(false, false), (true, false), (false, true), (true, true)] {
        let log = Arc::new(Mutex::new(String::new()));
        let (own, other) = (log.clone(), log.clone());
        let mut turns = 0;
        let aside = poll_fn(move |cx| {
            turns += 1;
            if turns == 2 {
                own.lock().unwrap().push('c');
                return Poll::Ready(());
            }
            if wakes_itself {
                cx.waker().wake_by_ref();
            }
            own.lock().unwrap().push('a');
            let core = CORE.get().unwrap();
            // SAFETY: the turn goes on below.
            let turn = unsafe { core.put_aside() };
            while core.run_one() {}
            // SAFETY: it was put aside above, and the turns in between have ended.
            unsafe { core.take_up(turn) };
            own.lock().unwrap().push('b');
            Poll::Pending
        });
        let handle = MACHINE.spawn(Builder::new(), aside).unwrap();
        let id = handle.id();
        let others = async move {
            other.lock().unwrap().push('x');
            if is_woken {
                wake(id);
            }
            yield_now().await;
            other.lock().unwrap().push('y');
        };
        MACHINE.spawn(Builder::new(), others).unwrap().detach();
        while core.run_one() {}
        let expected = if wakes_itself || is_woken { "axybc" } else { "axyb" };
        assert_eq!(*log.lock().unwrap(), expected, "{wakes_itself} {is_woken}");
        assert_eq!(handle.is_finished(), expected.ends_with('c'));
        handle.abort();
        while core.run_one() {}
    }
    CORE.set(None);
    // SAFETY: it comes from a box, and nothing refers to it any more.
    drop(unsafe { Box::from_raw(place) });
}
