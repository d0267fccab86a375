//! Kernel stretches, in the checking build: how long a CPU has been in the kernel without letting interrupts in.
//!
//! A stretch begins with a coroutine's poll or a program's trap, and ends with the poll, with the entry of a program,
//! or where a [`Budget`](crate::sched::Budget) looks around. A long one ends the machine with a report. Time is the
//! clock's, and a busy host stops it nowhere, so the limit is a thousand times what is aimed at; where the clock counts
//! instructions (`-icount`) it is exact.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch;
use crate::arch::MAX_CPUS;
use crate::arch::time::now_ns;

/// The longest stretch.
const LIMIT_NS: u64 = 1_000_000_000;

/// When the stretch of each CPU began; 0 for none.
static SINCE_NS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// A stretch begins on this CPU.
pub fn begin() {
    SINCE_NS[arch::cpu::id()].store(now_ns(), Ordering::Relaxed);
}

/// The stretch on this CPU ends, if there is one.
pub fn end(place: &str) {
    let since_ns = SINCE_NS[arch::cpu::id()].swap(0, Ordering::Relaxed);
    if since_ns != 0 {
        let length_ns = now_ns().saturating_sub(since_ns);
        assert!(
            length_ns <= LIMIT_NS,
            "the kernel ran for {length_ns} ns without a look around, until {place}"
        );
    }
}
