//! The thread that each CPU polls.

use core::sync::atomic::{AtomicI32, Ordering};

use crate::arch::{MAX_CPUS, cpu};

static RUNNING: [AtomicI32; MAX_CPUS] = [const { AtomicI32::new(0) }; MAX_CPUS];

/// This CPU, which is `cpu`, polls the thread of this number from now on.
#[inline]
pub(super) fn set_on(cpu: usize, tid: i32) {
    RUNNING[cpu].store(tid, Ordering::Relaxed);
}

/// This CPU polls a coroutine that carries calls out and is no thread's.
pub fn set_none() {
    set_on(cpu::id(), 0);
}

/// The number of the thread that this CPU polls, in the first namespace; 0 in a request's coroutine. Other coroutines
/// of the kernel carry no calls out, and must not ask.
#[inline]
#[must_use]
pub fn tid() -> i32 {
    RUNNING[cpu::id()].load(Ordering::Relaxed)
}
