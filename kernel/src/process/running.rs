//! The thread that each CPU polls.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::{MAX_CPUS, cpu};
use crate::wait::node::ThreadMark;

static RUNNING: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// This CPU, which is `cpu`, polls the thread with this mark from now on.
#[inline]
pub(super) fn set_on(cpu: usize, mark: ThreadMark) {
    RUNNING[cpu].store(mark.0, Ordering::Relaxed);
}

/// This CPU polls a coroutine that carries calls out and is no thread's.
pub fn set_none() {
    set_on(cpu::id(), ThreadMark::NOBODY);
}

/// The thread that this CPU polls; nobody in a request's coroutine. Other coroutines of the kernel carry no calls out,
/// and must not ask.
#[inline]
#[must_use]
pub fn mark() -> ThreadMark {
    ThreadMark(RUNNING[cpu::id()].load(Ordering::Relaxed))
}
