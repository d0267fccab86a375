//! Resource usage of a process, and its timers.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::process::cpu_time::Alarms;
use crate::process::thread::{UsageCounters, UsageCounts};
use crate::process::timers::Timers;
use crate::process::{Limits, Process, Resource, Thread};
use crate::sync::{SpinGuard, SpinLock};

pub(super) struct ProcessAccounting {
    timers: SpinLock<Timers>,
    /// Timers on the process's processor time.
    alarms: Alarms,
    /// User and system time of threads that have ended, and their counts.
    ended_user: AtomicU64,
    ended_system: AtomicU64,
    ended_counts: UsageCounters,
    /// User and system time of children that were waited for, and their counts.
    children_user: AtomicU64,
    children_system: AtomicU64,
    children_counts: UsageCounters,
}

impl ProcessAccounting {
    pub(super) fn new(limits: &Limits) -> Self {
        let limit = limits.get(Resource::CpuTime as u32);
        let zero = || AtomicU64::new(0);
        Self {
            timers: SpinLock::new(Timers::new()),
            alarms: Alarms::new(limit.is_some_and(|limit| limit.soft != Limits::INFINITY)),
            ended_user: zero(),
            ended_system: zero(),
            ended_counts: UsageCounters::default(),
            children_user: zero(),
            children_system: zero(),
            children_counts: UsageCounters::default(),
        }
    }
}

impl Process {
    /// The timers.
    pub fn timers(&self) -> SpinGuard<'_, Timers> {
        self.accounting.timers.lock()
    }

    /// Timers on the process's processor time.
    pub const fn alarms(&self) -> &Alarms {
        &self.accounting.alarms
    }

    /// A thread ends: what it used is the process's. The signal state is locked, so that nobody counts it twice.
    pub(in crate::process) fn keep_times_of(&self, thread: &Thread) {
        let (user, system) = thread.cpu_times();
        self.accounting.ended_user.fetch_add(user, Ordering::Relaxed);
        self.accounting.ended_system.fetch_add(system, Ordering::Relaxed);
        self.accounting.ended_counts.keep(thread.counts());
    }

    /// A space is left in which so many pages were in memory at a time.
    pub fn keep_peak(&self, pages: usize) {
        self.accounting.ended_counts.keep(UsageCounts { peak_pages: pages as u64, ..UsageCounts::default() });
    }

    /// A child has been waited for: what it and its children used counts.
    pub(in crate::process) fn keep_times_of_child(&self, child: &Process) {
        let ((user, system), (children_user, children_system)) = (child.cpu_times(), child.children_times());
        self.accounting.children_user.fetch_add(user + children_user, Ordering::Relaxed);
        self.accounting.children_system.fetch_add(system + children_system, Ordering::Relaxed);
        self.accounting.children_counts.keep(child.counts() + child.children_counts());
    }

    /// User and system time used by all threads, in nanoseconds.
    #[must_use]
    pub fn cpu_times(&self) -> (u64, u64) {
        let state = self.signal_state();
        let own = &self.accounting;
        let ended = (own.ended_user.load(Ordering::Relaxed), own.ended_system.load(Ordering::Relaxed));
        let each = state.threads().iter().map(|thread| thread.cpu_times());
        each.fold(ended, |sum, each| (sum.0 + each.0, sum.1 + each.1))
    }

    /// How often things have happened to the process's threads.
    #[must_use]
    pub fn counts(&self) -> UsageCounts {
        let state = self.signal_state();
        let ended = self.accounting.ended_counts.get();
        state.threads().iter().map(|thread| thread.counts()).fold(ended, |sum, each| sum + each)
    }

    /// How often things have happened to the children that were waited for.
    #[must_use]
    pub fn children_counts(&self) -> UsageCounts {
        self.accounting.children_counts.get()
    }

    /// User and system time of the children that were waited for, in nanoseconds.
    #[must_use]
    pub fn children_times(&self) -> (u64, u64) {
        let own = &self.accounting;
        (own.children_user.load(Ordering::Relaxed), own.children_system.load(Ordering::Relaxed))
    }
}
