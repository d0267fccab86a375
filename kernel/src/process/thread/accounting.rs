//! What a thread has used of the processors.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::time::now_ns;
use crate::process::Thread;
use crate::process::cpu_time::Meter;

/// One of so many visits of a program to the kernel is measured and counted as so many: reading the clock at each would
/// cost more than a short system call.
const SAMPLE_EVERY: u32 = 16;

#[derive(Default)]
pub(super) struct ThreadAccounting {
    /// How often the thread gave the CPU up.
    switches: AtomicU64,
    /// When the visit to the kernel began that is being measured; 0 for none.
    sample_start_ns: AtomicU64,
    /// Time on a CPU, and the part of it in the kernel.
    meter: Meter,
    system_ns: AtomicU64,
    /// The most time in user mode that anybody was told.
    user_seen_ns: AtomicU64,
}

/// Adds to a figure that only the thread's coroutine changes.
fn add(figure: &AtomicU64, amount: u64) {
    figure.store(figure.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl Thread {
    /// The thread is on a CPU from now on.
    pub fn start_meter(&self, now_ns: u64) {
        self.accounting.meter.start(now_ns);
    }

    /// The thread's time on the CPU ends.
    pub fn end_meter(&self, now_ns: u64) {
        self.accounting.meter.end(now_ns);
    }

    /// The thread gives the CPU up.
    pub fn count_switch(&self) {
        add(&self.accounting.switches, 1);
    }

    /// A program has entered the kernel, as its visit of this number.
    pub fn begin_sample(&self, visit: u32) {
        if visit.is_multiple_of(SAMPLE_EVERY) {
            self.accounting.sample_start_ns.store(now_ns(), Ordering::Relaxed);
        }
    }

    /// The visit ends: the thread goes back to its program, or waits.
    pub fn end_sample(&self) {
        let start_ns = self.accounting.sample_start_ns.load(Ordering::Relaxed);
        if start_ns != 0 {
            self.accounting.sample_start_ns.store(0, Ordering::Relaxed);
            let spent = now_ns().saturating_sub(start_ns);
            add(&self.accounting.system_ns, spent * u64::from(SAMPLE_EVERY));
        }
    }

    /// How often the thread gave the CPU up.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.accounting.switches.load(Ordering::Relaxed)
    }

    /// Nanoseconds used in user mode and in the kernel.
    #[must_use]
    pub fn cpu_times(&self) -> (u64, u64) {
        let own = &self.accounting;
        let total = own.meter.used_ns();
        let system = own.system_ns.load(Ordering::Relaxed).min(total);
        // The kernel's part is an estimate that grows in steps, but no clock goes back.
        let user = own.user_seen_ns.fetch_max(total - system, Ordering::Relaxed).max(total - system);
        (user, total.saturating_sub(user))
    }
}
