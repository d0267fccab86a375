//! Models of the join: the executor's end against everything that the handle does.

use super::*;
use loom::sync::Arc;
use loom::thread;
use std::task::Wake;

/// A task's memory: the join state, the output and whether it was freed.
struct Memory {
    join: JoinCell,
    output: UnsafeCell<u32>,
    frees: loom::sync::atomic::AtomicU32,
    drops: loom::sync::atomic::AtomicU32,
}

// SAFETY: the join state says who may touch the cells; the model checker watches that it is so.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> Arc<Memory> {
        Arc::new(Memory {
            join: JoinCell::new(false, 0),
            output: UnsafeCell::new(0),
            frees: Default::default(),
            drops: Default::default(),
        })
    }

    fn free(&self) {
        self.join.clear();
        // SAFETY: checked: nobody else may touch the output any more.
        self.output.with_mut(|output| unsafe { *output = 0 });
        self.frees.fetch_add(1, Ordering::Relaxed);
    }

    fn drop_output(&self) {
        // SAFETY: checked.
        self.output.with_mut(|output| unsafe { *output = 0 });
        self.drops.fetch_add(1, Ordering::Relaxed);
    }

    /// The executor's last steps.
    fn end(&self) {
        // SAFETY: checked.
        self.output.with_mut(|output| unsafe { *output = 7 });
        match self.join.complete() {
            Leave::Nothing => {}
            Leave::Free => self.free(),
            Leave::DropOutput => {
                self.drop_output();
                self.free();
            }
        }
    }

    /// The handle's drop.
    fn leave(&self) {
        match self.join.drop_handle() {
            Leave::Nothing => {}
            Leave::Free => self.free(),
            Leave::DropOutput => {
                self.drop_output();
                if self.join.output_dropped() {
                    self.free();
                }
            }
        }
    }

    fn take(&self) {
        assert!(self.join.take_output());
        // SAFETY: checked.
        self.output.with(|output| unsafe { assert_eq!(*output, 7) });
    }
}

struct Flag(loom::sync::atomic::AtomicU32);

impl Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

fn waker() -> (std::sync::Arc<Flag>, Waker) {
    let flag = std::sync::Arc::new(Flag(Default::default()));
    (flag.clone(), Waker::from(flag))
}

/// The handle polls while the coroutine ends: it is ready, or it is woken and then ready.
#[test]
fn join_against_completion() {
    loom::model(|| {
        let memory = Memory::new();
        let executor = memory.clone();
        let end = thread::spawn(move || executor.end());
        let (flag, waker) = waker();
        if memory.join.poll(&waker).is_pending() {
            // Another waker replaces the first.
            let (other_flag, other) = self::waker();
            if memory.join.poll(&other).is_pending() {
                end.join().unwrap();
                assert_eq!(other_flag.0.load(Ordering::Acquire) + flag.0.load(Ordering::Acquire), 1);
                assert!(memory.join.poll(&other).is_ready());
                memory.take();
                memory.leave();
                assert_eq!(memory.frees.load(Ordering::Relaxed), 1);
                return;
            }
        }
        memory.take();
        memory.leave();
        end.join().unwrap();
        assert_eq!(memory.frees.load(Ordering::Relaxed), 1);
        assert_eq!(memory.drops.load(Ordering::Relaxed), 0);
    });
}

/// The handle is dropped while the coroutine ends: one of them drops the output, one of them frees.
#[test]
fn drop_against_completion() {
    loom::model(|| {
        let memory = Memory::new();
        let executor = memory.clone();
        let end = thread::spawn(move || executor.end());
        memory.leave();
        end.join().unwrap();
        assert_eq!(memory.frees.load(Ordering::Relaxed), 1);
        assert_eq!(memory.drops.load(Ordering::Relaxed), 1);
    });
}

/// The handle registers a waker and is dropped, while the coroutine ends.
#[test]
fn drop_with_a_waker_against_completion() {
    loom::model(|| {
        let memory = Memory::new();
        let executor = memory.clone();
        let end = thread::spawn(move || executor.end());
        let (_flag, waker) = waker();
        let ready = memory.join.poll(&waker).is_ready();
        if ready {
            memory.take();
        }
        memory.leave();
        end.join().unwrap();
        assert_eq!(memory.frees.load(Ordering::Relaxed), 1);
        assert_eq!(memory.drops.load(Ordering::Relaxed), u32::from(!ready));
    });
}

/// Whoever sees that a coroutine has ended sees what it did.
#[test]
fn finished_shows_its_effects() {
    loom::model(|| {
        let memory = Memory::new();
        let executor = memory.clone();
        let end = thread::spawn(move || executor.end());
        while !memory.join.is_complete() {
            thread::yield_now();
        }
        // SAFETY: checked.
        memory.output.with(|output| unsafe { assert_eq!(*output, 7) });
        end.join().unwrap();
        memory.leave();
    });
}
