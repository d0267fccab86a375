//! Processor time of a thread.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::time::now_ns;
use crate::process::Thread;
use crate::sched::usage::{self, Meter};

/// One of so many visits of a program to the kernel is measured and counted as so many: reading the clock at each would
/// cost more than a short system call.
const SAMPLE_EVERY: u32 = 16;

/// How often things have happened to a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageCounts {
    /// It gave the CPU up because it waits.
    pub voluntary: u64,
    /// It gave the CPU up though it had more to do.
    pub involuntary: u64,
    /// A page fault was resolved, in its program or in the kernel for it.
    pub faults: u64,
    /// The most pages that were in memory at a time, of one space.
    pub peak_pages: u64,
    /// Calls of read(2) and write(2) and their like, whatever came of them, and the bytes that they moved.
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl core::ops::Add for UsageCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            voluntary: self.voluntary + other.voluntary,
            involuntary: self.involuntary + other.involuntary,
            faults: self.faults + other.faults,
            peak_pages: self.peak_pages.max(other.peak_pages),
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
        }
    }
}

/// [`UsageCounts`] that are still counted.
#[derive(Default)]
pub(in crate::process) struct UsageCounters {
    voluntary: AtomicU64,
    involuntary: AtomicU64,
    faults: AtomicU64,
    peak_pages: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl UsageCounters {
    pub(in crate::process) fn get(&self) -> UsageCounts {
        UsageCounts {
            voluntary: self.voluntary.load(Ordering::Relaxed),
            involuntary: self.involuntary.load(Ordering::Relaxed),
            faults: self.faults.load(Ordering::Relaxed),
            peak_pages: self.peak_pages.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
        }
    }

    /// Adds what a thread has counted that ends.
    pub(in crate::process) fn keep(&self, ended: UsageCounts) {
        self.voluntary.fetch_add(ended.voluntary, Ordering::Relaxed);
        self.involuntary.fetch_add(ended.involuntary, Ordering::Relaxed);
        self.faults.fetch_add(ended.faults, Ordering::Relaxed);
        self.peak_pages.fetch_max(ended.peak_pages, Ordering::Relaxed);
        self.reads.fetch_add(ended.reads, Ordering::Relaxed);
        self.writes.fetch_add(ended.writes, Ordering::Relaxed);
        self.bytes_read.fetch_add(ended.bytes_read, Ordering::Relaxed);
        self.bytes_written.fetch_add(ended.bytes_written, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct ThreadAccounting {
    counts: UsageCounters,
    /// When the visit to the kernel began that is being measured; 0 for none.
    sample_start_ns: AtomicU64,
    /// Time on a CPU, and the part of it in the kernel.
    meter: Meter,
    system_ns: AtomicU64,
    /// Time of calls that went on by themselves.
    calls_ns: AtomicU64,
    /// The most time in user mode that anybody was told.
    user_seen_ns: AtomicU64,
}

/// Adds to a figure that only the thread's coroutine changes.
fn add(figure: &AtomicU64, amount: u64) {
    figure.store(figure.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl Thread {
    /// The thread is on a CPU from now on.
    pub fn start_meter(self: &Arc<Self>, now_ns: u64) {
        self.accounting.meter.start(now_ns);
        usage::thread_starts(now_ns, core::ptr::from_ref(self).cast());
    }

    /// The thread's time on the CPU ends.
    pub fn end_meter(&self, now_ns: u64) {
        self.accounting.meter.end(now_ns);
        usage::thread_ends(now_ns);
    }

    /// A call of the thread that goes on by itself has used so much time.
    pub(super) fn count_call_ns(&self, ran_ns: u64) {
        self.accounting.calls_ns.fetch_add(ran_ns, Ordering::Relaxed);
    }

    /// The thread gives the CPU up, because it waits or though it has more to do.
    pub fn count_switch(&self, is_waiting: bool) {
        let counts = &self.accounting.counts;
        add(if is_waiting { &counts.voluntary } else { &counts.involuntary }, 1);
    }

    /// A page fault was resolved. Asynchronous requests of the thread count here too.
    pub fn count_fault(&self) {
        self.accounting.counts.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// A call that reads has begun. Only the thread's own coroutine counts this and what follows.
    #[inline]
    pub fn count_read(&self) {
        add(&self.accounting.counts.reads, 1);
    }

    /// A call that writes has begun.
    #[inline]
    pub fn count_write(&self) {
        add(&self.accounting.counts.writes, 1);
    }

    /// So many bytes have been read.
    #[inline]
    pub fn count_bytes_read(&self, bytes: usize) {
        add(&self.accounting.counts.bytes_read, bytes as u64);
    }

    /// So many bytes have been written.
    #[inline]
    pub fn count_bytes_written(&self, bytes: usize) {
        add(&self.accounting.counts.bytes_written, bytes as u64);
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
            let spent = now_ns().saturating_sub(start_ns) * u64::from(SAMPLE_EVERY);
            add(&self.accounting.system_ns, spent);
            usage::add_system_ns(spent);
        }
    }

    /// How often things have happened to the thread.
    #[must_use]
    pub fn counts(&self) -> UsageCounts {
        self.accounting.counts.get()
    }

    /// Nanoseconds used in user mode and in the kernel.
    #[must_use]
    pub fn cpu_times(&self) -> (u64, u64) {
        let own = &self.accounting;
        let (total, calls) = (own.meter.used_ns(), own.calls_ns.load(Ordering::Relaxed));
        let system = own.system_ns.load(Ordering::Relaxed).min(total);
        // The kernel's part is an estimate that grows in steps, but no clock goes back.
        let user = own.user_seen_ns.fetch_max(total - system, Ordering::Relaxed).max(total - system);
        (user, total.saturating_sub(user) + calls)
    }
}
