//! Kernel stretches, in the checking build: how long a CPU has been in the kernel without letting interrupts in.
//!
//! A stretch begins with a coroutine's poll or a program's trap, and ends with the poll, with the entry of a program,
//! or where a [`Budget`](crate::sched::Budget) looks around. A long one ends the machine with a report. Time is the
//! clock's, and a busy host stops it nowhere, so the limit is a thousand times what is aimed at; where the clock counts
//! instructions (`-icount`) it is exact.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use heddle_abi::boot::KEY_STRETCH;

use crate::arch;
use crate::arch::MAX_CPUS;
use crate::arch::time::now_ns;
use crate::boot;

/// The longest stretch, unless the command line says otherwise ([`KEY_STRETCH`]).
static LIMIT_NS: AtomicU64 = AtomicU64::new(1_000_000_000);

/// When the stretch of each CPU began; 0 for none.
static SINCE_NS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// The last system call that began on each CPU, by number.
static CALL: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];

/// A system call begins on this CPU.
pub fn call_begins(number: usize) {
    CALL[arch::cpu::id()].store(number, Ordering::Relaxed);
}

/// Reads the limit from the command line.
pub fn initialize() {
    if let Some(limit_us) = boot::number(KEY_STRETCH) {
        LIMIT_NS.store(limit_us.saturating_mul(1000), Ordering::Relaxed);
    }
}

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
            length_ns <= LIMIT_NS.load(Ordering::Relaxed),
            "the kernel ran for {length_ns} ns without a look around, until {place}; the last call was number {}",
            CALL[arch::cpu::id()].load(Ordering::Relaxed)
        );
    }
}
