//! The page that the kernel writes and every program reads.

use super::{AtomicU32, AtomicU64};

/// One for the machine. It lies in the page before the vDSO's first; a program cannot write it.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct SystemPage {
    /// [`MAGIC`](super::MAGIC).
    pub magic: AtomicU32,
    /// [`VERSION`](super::VERSION).
    pub version: AtomicU32,
    reserved0: [u32; 14],
    /// Bit `n`: something of level `n`, a kernel coroutine or a thread, is ready and waits for a processor. Work that
    /// is running at this moment does not count.
    pub bitmap: AtomicU64,
    reserved1: [u32; 14],
    /// Parameters for reading the time.
    pub clock: Clock,
    /// For each group of executors, by its number: bit `n`: one whose level is `n`, of
    /// [`ORDERED`](super::levels::ORDERED) levels, waits for a processor. Number 0 is no group's.
    pub groups: [AtomicU64; GROUPS_MAX],
}

/// One more than the groups of executors that have an order.
pub const GROUPS_MAX: usize = 64;

/// The clock: `monotonic = ((counter - base) * scale) >> 32` in 128 bits, `realtime = monotonic + realtime_offset`.
///
/// `base` and `scale` are written once, before the first program starts, and `realtime_offset` is one word, so that
/// no reader needs a sequence lock.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Clock {
    /// The processor's counter at time 0.
    pub base: AtomicU64,
    /// Nanoseconds for each count, as a fraction of 2^32. 0: the counter cannot be used, ask by system call.
    pub scale: AtomicU64,
    /// Nanoseconds that the time of day is ahead of the monotonic clock.
    pub realtime_offset: AtomicU64,
    reserved: [u64; 5],
}

#[cfg(not(heddle_loom))]
impl SystemPage {
    /// Whether something waits for a processor that goes before a coroutine of `level` of a process in that group.
    #[must_use]
    #[inline(always)]
    pub fn has_before(&self, group: u32, level: u32) -> bool {
        use core::sync::atomic::Ordering;
        let group = &self.groups[group as usize % GROUPS_MAX];
        self.bitmap.load(Ordering::Relaxed) & super::levels::before(level) != 0
            || group.load(Ordering::Relaxed) & super::levels::ordered_before(level) != 0
    }

    /// A page that says nothing: no level is ready, and the counter cannot be used.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            magic: AtomicU32::new(super::MAGIC),
            version: AtomicU32::new(super::VERSION),
            reserved0: [0; 14],
            bitmap: AtomicU64::new(0),
            reserved1: [0; 14],
            clock: Clock {
                base: AtomicU64::new(0),
                scale: AtomicU64::new(0),
                realtime_offset: AtomicU64::new(0),
                reserved: [0; 5],
            },
            groups: [const { AtomicU64::new(0) }; GROUPS_MAX],
        }
    }
}

#[cfg(not(heddle_loom))]
impl Default for SystemPage {
    fn default() -> Self {
        Self::new()
    }
}

/// Selector of the segment whose limit is the number of the processor, on x86-64.
pub const CPU_SEGMENT: u16 = 0x4b;

#[cfg(not(heddle_loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<SystemPage>() == super::PAGE_BYTES);
    assert!(offset_of!(SystemPage, bitmap) == 64);
    assert!(offset_of!(SystemPage, clock) == 128);
    assert!(offset_of!(SystemPage, groups) == 192);
};
