//! The thread that each CPU polls.

use core::sync::atomic::{AtomicI32, Ordering};

use crate::arch::{MAX_CPUS, cpu};

static RUNNING: [AtomicI32; MAX_CPUS] = [const { AtomicI32::new(0) }; MAX_CPUS];

/// This CPU polls the thread of this number from now on; 0 for none.
#[inline]
pub(super) fn set(tid: i32) {
    RUNNING[cpu::id()].store(tid, Ordering::Relaxed);
}

/// The number of the thread that this CPU polls, in the first namespace; 0 in coroutines that are none's turn.
#[inline]
#[must_use]
pub fn tid() -> i32 {
    RUNNING[cpu::id()].load(Ordering::Relaxed)
}
