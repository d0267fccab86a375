//! Memory that runs out, at every point where it can: the request fails, and nothing else has changed. Here and not
//! beside the other tests because each block comes from the allocator in unit tests.
#![allow(unsafe_code)] // A global allocator.

use crate::{Guard, LockError, RangeLock, ThreadEpoch, TimeoutError, TryLockError};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::vec::Vec;
use std::{println, thread, thread_local};

/// The system's allocator, for as many allocations of a thread as it is granted.
struct Rationed;

thread_local! {
    static RATION: Cell<Option<usize>> = const { Cell::new(None) };
}

// SAFETY: what is granted is passed on to the system's allocator.
unsafe impl GlobalAlloc for Rationed {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let granted = RATION.try_with(|ration| match ration.get() {
            None => true,
            Some(0) => false,
            Some(left) => {
                ration.set(Some(left - 1));
                true
            }
        });
        // SAFETY: the caller's contract.
        if granted.unwrap_or(true) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Rationed = Rationed;

/// Runs `body` with so many allocations and no more.
fn with_ration<R>(ration: usize, body: impl FnOnce() -> R) -> R {
    RATION.set(Some(ration));
    let result = body();
    RATION.set(None);
    result
}

/// A request failed; whether that was for want of memory.
#[derive(Debug)]
struct Failed(bool);

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        Self(error == LockError::OutOfMemory)
    }
}

impl From<TryLockError> for Failed {
    fn from(error: TryLockError) -> Self {
        Self(error == TryLockError::OutOfMemory)
    }
}

impl From<TimeoutError> for Failed {
    fn from(error: TimeoutError) -> Self {
        Self(error == TimeoutError::OutOfMemory)
    }
}

/// Acquires in every way until memory is out: cuts, merges, splits and waiting records among them.
fn acquire<'a>(lock: &'a RangeLock<u64>, held: &mut Vec<Guard<'a, u64>>) -> Result<(), Failed> {
    for key in 0..60u64 {
        let start = key * 37 % 60 * 10;
        held.push(lock.try_lock(start..start + 8)?);
        if key % 7 == 6 {
            let guard = held.swap_remove(key as usize % held.len());
            let cut = guard.range().start.unwrap_or(0) + 2;
            match guard.split(cut) {
                Ok((low, high)) => held.extend([low, high]),
                Err((guard, error)) => {
                    held.push(guard);
                    // A part that was split before may be too short to be split again.
                    if error == LockError::OutOfMemory {
                        return Err(error.into());
                    }
                }
            }
        }
    }
    // Spans many buckets, which are merged for it.
    held.truncate(30);
    held.push(lock.try_lock(1000..)?);
    match lock.lock_timeout(..1000, std::time::Duration::ZERO) {
        Err(TimeoutError::TimedOut) => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// One attempt with so many allocations; whether they were enough.
fn attempt(ration: usize) -> bool {
    let lock = &RangeLock::<u64>::new();
    let mut held = Vec::with_capacity(200);
    // The thread's participant, which would take one of them.
    drop(lock.try_lock(..).unwrap());
    let done = with_ration(ration, || acquire(lock, &mut held));
    let seen = lock.holders().unwrap();
    assert_eq!(seen.len(), held.len(), "after {ration} allocations");
    for guard in &held {
        assert!(seen.iter().any(|holder| holder.range == guard.range() && !holder.waiting));
    }
    // Releases need no memory.
    with_ration(0, || held.clear());
    assert!(lock.holders().unwrap().is_empty());
    drop(lock.try_lock(..).unwrap());
    assert!(matches!(done, Ok(()) | Err(Failed(true))), "{done:?}");
    done.is_ok()
}

#[test]
fn a_request_without_memory_fails_and_changes_nothing() {
    for ration in 0.. {
        ThreadEpoch::domain().trim();
        // A thread of its own each time, which has no free blocks yet and asks the allocator.
        if thread::scope(|scope| scope.spawn(|| attempt(ration)).join().unwrap()) {
            println!("a_request_without_memory: {ration} ran");
            assert!(ration > 60, "only {ration} allocations in all");
            break;
        }
    }
}
