//! The byte by which KVM says that it does not run a processor, and is asked to flush before it does.

use crate::tlb::sync::{AtomicU8, Ordering};

/// The processor does not run, and its registers are the host's.
const PREEMPTED: u8 = 1 << 0;
/// The host is to flush before it lets the processor run again.
const FLUSH: u8 = 1 << 1;

#[repr(transparent)]
#[derive(Debug)]
pub(super) struct Preempted(AtomicU8);

impl Preempted {
    /// The processor runs.
    #[cfg(not(heddle_loom))]
    pub(super) const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// The same for models.
    #[cfg(heddle_loom)]
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// See [`super::StealWords::ask_for_flush`].
    pub(super) fn ask_for_flush(&self) -> bool {
        let seen = self.0.load(Ordering::SeqCst);
        if seen & PREEMPTED == 0 {
            return false;
        }
        // The host takes both bits in one exchange when it lets the processor run; so if this one succeeds, the flush
        // is still to come.
        self.0.compare_exchange(seen, seen | FLUSH, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// KVM's own accesses to the byte.
#[cfg(test)]
impl Preempted {
    /// The host takes the processor away.
    pub(super) fn stops(&self) {
        self.0.store(PREEMPTED, Ordering::SeqCst);
    }

    /// The host lets it run. Whether it has to flush first.
    pub(super) fn goes_on(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) & FLUSH != 0
    }
}

#[cfg(all(test, heddle_loom))]
mod models;
