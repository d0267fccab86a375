//! The host's words about a processor's time, and about whether the processor runs.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::paravirt::preempted::Preempted;

/// Looks at a time that the host is changing. A host may stop in the midst of it, and a program that reads
/// `/proc/stat` must not make the kernel wait for that.
const LOOKS_MAX: u32 = 64;

/// The host's page (`struct kvm_steal_time`).
#[repr(C, align(64))]
#[derive(Debug)]
struct StealPage {
    stolen_ns: AtomicU64,
    /// Odd while the host changes the time.
    version: AtomicU32,
    flags: u32,
    preempted: Preempted,
    rest: [u8; 3],
    reserved: [u32; 11],
}

/// The words about a processor.
#[repr(C)]
#[derive(Debug)]
pub struct StealWords {
    page: StealPage,
    /// The most that was read.
    told_ns: AtomicU64,
}

#[cfg(not(heddle_loom))]
impl Default for StealWords {
    fn default() -> Self {
        Self::new()
    }
}

impl StealWords {
    /// Words of which the host has written none.
    #[cfg(not(heddle_loom))]
    #[must_use]
    pub const fn new() -> Self {
        let page = StealPage {
            stolen_ns: AtomicU64::new(0),
            version: AtomicU32::new(0),
            flags: 0,
            preempted: Preempted::new(),
            rest: [0; 3],
            reserved: [0; 11],
        };
        Self { page, told_ns: AtomicU64::new(0) }
    }

    /// For how long the host ran something else, although the processor had work. Never less than it said before: not
    /// after a move to a host that counts anew, nor while a host changes the time.
    #[must_use]
    pub fn stolen_ns(&self) -> u64 {
        for _ in 0..LOOKS_MAX {
            if let Some(stolen) = self.look() {
                return self.told_ns.fetch_max(stolen, Ordering::Relaxed).max(stolen);
            }
            core::hint::spin_loop();
        }
        self.told_ns.load(Ordering::Relaxed)
    }

    /// The time, if the host did not change it meanwhile.
    fn look(&self) -> Option<u64> {
        let before = self.page.version.load(Ordering::Acquire);
        let stolen = self.page.stolen_ns.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (before.is_multiple_of(2) && self.page.version.load(Ordering::Relaxed) == before).then_some(stolen)
    }

    /// Has the host flush the processor's translations before it runs again. `false` if it runs, and must be
    /// interrupted.
    #[must_use]
    pub fn ask_for_flush(&self) -> bool {
        self.page.preempted.ask_for_flush()
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests;
