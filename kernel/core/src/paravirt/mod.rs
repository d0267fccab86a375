//! Pages and words that a guest of KVM shares with it, and the arguments of its hypercalls: their layouts and
//! protocols, without the registers by which they are announced. Tests play the host.
//!
//! KVM offers each of these by a bit of CPUID leaf `0x4000_0001`.

use core::sync::atomic::{AtomicI8, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// The first leaf of a hypervisor; EBX, ECX and EDX hold its name.
pub const LEAF_NAME: u32 = 0x4000_0000;
/// KVM's features, EAX.
pub const LEAF_FEATURES: u32 = 0x4000_0001;
/// The clock's page has a register of its own.
pub const FEATURE_CLOCK: u32 = 1 << 3;
/// Time that the host took away.
pub const FEATURE_STEAL_TIME: u32 = 1 << 5;
/// Ends of interrupts by a word.
pub const FEATURE_END: u32 = 1 << 6;
/// Flushes of processors that do not run.
pub const FEATURE_FLUSH: u32 = 1 << 9;
/// Interrupts of several processors by one hypercall.
pub const FEATURE_INTERRUPTS: u32 = 1 << 11;

/// Whether registers EBX, ECX and EDX of [`LEAF_NAME`] are KVM's name.
#[must_use]
pub fn is_kvm(registers: [u32; 3]) -> bool {
    let [first, second, third] = registers.map(u32::to_le_bytes);
    (&first, &second, &third) == (b"KVMK", b"VMKV", b"M\0\0\0")
}

/// KVM's clock of a processor (`struct pvclock_vcpu_time_info`).
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ClockPage {
    /// Odd while the host changes the page.
    version: AtomicU32,
    padding: u32,
    counter: AtomicU64,
    time_ns: AtomicU64,
    scale: AtomicU32,
    shift: AtomicI8,
    flags: AtomicU8,
    rest: [u8; 2],
}

impl ClockPage {
    /// A page on which the host has written nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            padding: 0,
            counter: AtomicU64::new(0),
            time_ns: AtomicU64::new(0),
            scale: AtomicU32::new(0),
            shift: AtomicI8::new(0),
            flags: AtomicU8::new(0),
            rest: [0; 2],
        }
    }

    /// The frequency of the time-stamp counter; `None` while the host has written nothing.
    #[must_use]
    pub fn frequency_hz(&self) -> Option<u64> {
        let (scale, shift) = loop {
            let before = self.version.load(Ordering::Acquire);
            let values = (self.scale.load(Ordering::Relaxed), self.shift.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                break values;
            }
            core::hint::spin_loop();
        };
        // Nanoseconds are (counts << shift) * scale / 2^32, and a negative shift is one to the right.
        let second = 1_000_000_000u128 << 32;
        let unshifted = second.checked_div(u128::from(scale))?;
        let hertz = match shift {
            0.. => unshifted >> shift,
            _ => unshifted << shift.unsigned_abs().min(31),
        };
        u64::try_from(hertz).ok().filter(|&hertz| hertz > 0)
    }
}

/// The host's words about a processor's time (`struct kvm_steal_time`).
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct StealPage {
    stolen_ns: AtomicU64,
    /// Odd while the host changes the time.
    version: AtomicU32,
    flags: u32,
    preempted: AtomicU8,
    rest: [u8; 3],
    reserved: [u32; 11],
}

/// The processor does not run, and its registers are the host's.
const PREEMPTED: u8 = 1 << 0;
/// The host is to flush before it lets the processor run again.
const FLUSH: u8 = 1 << 1;

impl StealPage {
    /// A page on which the host has written nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stolen_ns: AtomicU64::new(0),
            version: AtomicU32::new(0),
            flags: 0,
            preempted: AtomicU8::new(0),
            rest: [0; 3],
            reserved: [0; 11],
        }
    }

    /// For how long the host ran something else, although the processor had work.
    #[must_use]
    pub fn stolen_ns(&self) -> u64 {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let stolen = self.stolen_ns.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return stolen;
            }
            core::hint::spin_loop();
        }
    }

    /// Has the host flush the processor's translations before it runs again. `false` if it runs, and must be
    /// interrupted.
    #[must_use]
    pub fn ask_for_flush(&self) -> bool {
        let seen = self.preempted.load(Ordering::SeqCst);
        if seen & PREEMPTED == 0 {
            return false;
        }
        // The host takes both bits in one exchange when it lets the processor run; so if this one succeeds, the flush
        // is still to come.
        let asked = self.preempted.compare_exchange(seen, seen | FLUSH, Ordering::SeqCst, Ordering::SeqCst);
        asked.is_ok()
    }
}

/// The word by which KVM says that the end of the interrupt in service need not be told.
#[repr(C, align(4))]
#[derive(Debug, Default)]
pub struct EndWord(AtomicU32);

impl EndWord {
    /// The host has said nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Ends the interrupt in service by the word; `false` if the interrupt controller has to be told.
    #[must_use]
    pub fn end(&self) -> bool {
        self.0.load(Ordering::Relaxed) & 1 != 0 && self.0.swap(0, Ordering::AcqRel) & 1 != 0
    }
}

/// The hypercall that sends an interrupt to up to 128 processors.
pub const CALL_INTERRUPTS: u64 = 10;

/// Arguments of [`CALL_INTERRUPTS`] for processors with these APIC ids: two words of bits and the id of the first bit.
/// `None` if there are none, or they are too far apart.
#[must_use]
pub fn interrupt_set(ids: impl Iterator<Item = u32> + Clone) -> Option<[u64; 3]> {
    let first = ids.clone().min()?;
    let mut words = [0u64; 2];
    for id in ids {
        let bit = id - first;
        *words.get_mut((bit / u64::BITS) as usize)? |= 1 << (bit % u64::BITS);
    }
    Some([words[0], words[1], first.into()])
}

#[cfg(test)]
mod tests;
