//! How a thread is scheduled: policy, nice value, realtime priority, affinity.

use linux_raw_sys::general as linux;

use heddle_kernel_core::fairness::Weight;

use crate::sched::Priority;

/// The policies of sched(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_OTHER`.
    Other,
    /// `SCHED_FIFO`: runs until it waits.
    Fifo,
    /// `SCHED_RR`: like `Fifo`, with a time slice within its level.
    RoundRobin,
    /// `SCHED_BATCH`: ordinary, and never preferred for waking up.
    Batch,
    /// `SCHED_IDLE`: when nothing else runs.
    Idle,
}

impl Policy {
    /// The policy of Linux's number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            linux::SCHED_NORMAL => Some(Self::Other),
            linux::SCHED_FIFO => Some(Self::Fifo),
            linux::SCHED_RR => Some(Self::RoundRobin),
            linux::SCHED_BATCH => Some(Self::Batch),
            linux::SCHED_IDLE => Some(Self::Idle),
            _ => None,
        }
    }

    /// Linux's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Other => linux::SCHED_NORMAL,
            Self::Fifo => linux::SCHED_FIFO,
            Self::RoundRobin => linux::SCHED_RR,
            Self::Batch => linux::SCHED_BATCH,
            Self::Idle => linux::SCHED_IDLE,
        }
    }

    /// Whether it is one of the realtime classes.
    #[must_use]
    pub const fn is_realtime(self) -> bool {
        matches!(self, Self::Fifo | Self::RoundRobin)
    }
}

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The class.
    pub policy: Policy,
    /// -20 to 19.
    pub nice: i8,
    /// 1 to 99 in a realtime class, else 0.
    pub realtime: u8,
    /// The CPUs the thread may use, a bit each.
    pub affinity: u64,
    /// Children start as ordinary threads.
    pub reset_on_fork: bool,
}

impl Parameters {
    /// An ordinary thread, on any CPU.
    pub const ORDINARY: Self =
        Self { policy: Policy::Other, nice: 0, realtime: 0, affinity: u64::MAX, reset_on_fork: false };

    /// The level of these parameters; of an ordinary thread also by whether its budget is exhausted.
    #[must_use]
    pub const fn priority(&self, is_exhausted: bool) -> Priority {
        match self.policy {
            Policy::Fifo | Policy::RoundRobin => Priority::realtime(self.realtime),
            Policy::Other if !is_exhausted => Priority::fresh(self.nice),
            // Of the idle ones the weight is small, and they do not preempt: nobody starves.
            Policy::Other | Policy::Batch | Policy::Idle => Priority::SPENT,
        }
    }

    /// The thread's part among ordinary threads.
    #[must_use]
    pub const fn weight(&self) -> Weight {
        match self.policy {
            Policy::Idle => Weight::IDLE,
            _ => Weight::of_nice(self.nice),
        }
    }

    /// The parameters that a child starts with.
    #[must_use]
    pub fn for_child(&self) -> Self {
        if !self.reset_on_fork {
            return *self;
        }
        let nice = if self.policy.is_realtime() { 0 } else { self.nice.max(0) };
        let policy = if self.policy.is_realtime() { Policy::Other } else { self.policy };
        Self { policy, nice, realtime: 0, affinity: self.affinity, reset_on_fork: false }
    }
}
