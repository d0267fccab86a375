//! Fault injection, in the checking build: the n-th step of a system call that can fail for want of something does
//! so, as if that had run out at this moment.
//!
//! A thread writes n to `/proc/heddle/inject`; its next call is the one. Steps are: memory of the kernel's heap, a
//! frame, a copy from or to the program's memory (which then turns out to be no longer mapped), a descriptor number.
//! Reading the file says what failed, or that the call had less than n steps.
//!
//! An allocation that [`crate::memory::heap::reserve`] has promised does not fail; the promise is the step. So one that
//! cannot report failure and was not promised ends the machine, which is how such are found. One thread has the
//! facility at a time.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize};

use crate::arch::{MAX_CPUS, cpu};
use crate::sched;

/// The kinds of operations that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePoint {
    /// An allocation of the heap, or the promise of some.
    Heap = 1,
    /// A frame.
    Frame = 2,
    /// A copy from or to a program's memory.
    Copy = 3,
    /// A number for a descriptor.
    Descriptor = 4,
}

const NAMES: [&str; 5] = ["none", "heap", "frame", "copy", "descriptor"];

const OFF: u8 = 0;
/// The next call of the thread is the one.
const ARMED: u8 = 1;
/// The call runs.
const RUNNING: u8 = 2;

/// The coroutine of the thread whose call it is.
static WHO: AtomicU64 = AtomicU64::new(0);
static PHASE: AtomicU8 = AtomicU8::new(OFF);
/// Steps until the one that fails.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// The step that failed.
static FAILED: AtomicU8 = AtomicU8::new(0);
/// Allocations that were promised on a CPU and not yet made.
static PROMISED: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];

/// The `number`-th step of the next call of this thread fails; 0 for none.
pub fn arm(number: u64) {
    PHASE.store(OFF, Relaxed);
    WHO.store(sched::current(), Relaxed);
    LEFT.store(number, Relaxed);
    FAILED.store(0, Relaxed);
    PHASE.store(ARMED, Relaxed);
}

/// The step that failed.
pub fn failed() -> &'static str {
    NAMES.get(usize::from(FAILED.load(Relaxed))).copied().unwrap_or(NAMES[0])
}

fn is_mine(phase: u8) -> bool {
    PHASE.load(Relaxed) == phase && WHO.load(Relaxed) == sched::current()
}

/// This thread's call starts.
pub fn call_starts() {
    if is_mine(ARMED) {
        promise(0);
        PHASE.store(RUNNING, Relaxed);
    }
}

/// This thread's call has its result.
pub fn call_ends() {
    if is_mine(RUNNING) {
        PHASE.store(OFF, Relaxed);
    }
}

/// Whether this step fails.
#[must_use]
pub fn fails(step: FailurePoint) -> bool {
    if !is_mine(RUNNING) || LEFT.load(Relaxed) == 0 || LEFT.fetch_sub(1, Relaxed) != 1 {
        return false;
    }
    FAILED.store(step as u8, Relaxed);
    true
}

/// Whether the copy that failed stays failed: its address is not mapped any more.
#[must_use]
pub fn is_unmapped() -> bool {
    is_mine(RUNNING) && FAILED.load(Relaxed) == FailurePoint::Copy as u8
}

/// So many allocations succeed from now on; returns how many were left before.
pub fn promise(count: usize) -> usize {
    PROMISED[cpu::id()].swap(count, Relaxed)
}

/// Whether an allocation fails.
#[must_use]
pub fn allocation_fails() -> bool {
    if !is_mine(RUNNING) {
        return false;
    }
    let promised = &PROMISED[cpu::id()];
    match promised.load(Relaxed).checked_sub(1) {
        Some(left) => {
            promised.store(left, Relaxed);
            false
        }
        None => fails(FailurePoint::Heap),
    }
}
