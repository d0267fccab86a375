//! The choice among KVM's offers: each is in use where the leaves of CPUID have its bit and the processor takes the
//! register by which its page is announced.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::mitigations::Vendor;
use crate::paravirt::ClockPage;

/// Where hypervisors say their names, and, if that one's are the leaves of another interface (Hyper-V's, which QEMU
/// adds on request), where KVM says its own.
const BASES: [u32; 2] = [0x4000_0000, 0x4000_0100];
const NAME: [u8; 12] = *b"KVMKVMKVM\0\0\0";
/// CPUID leaf 1, ECX: there is a hypervisor.
const HYPERVISOR: u32 = 1 << 31;

const CLOCK_REGISTER: u32 = 0x4b56_4d01;
const STEAL_REGISTER: u32 = 0x4b56_4d03;
const END_REGISTER: u32 = 0x4b56_4d04;
/// With the address of a page: it is in use.
const ENABLED: u64 = 1;

/// The parts of a processor that the choice looks at.
pub trait GuestProcessor {
    /// EAX, EBX, ECX and EDX of a leaf of CPUID.
    fn leaf(&self, leaf: u32) -> [u32; 4];

    /// Writes a model-specific register. `false` if the processor refuses it.
    fn write_register(&self, register: u32, value: u64) -> bool;
}

/// Something that KVM offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The clock's page.
    Clock = 3,
    /// Time that the host took away.
    StealTime = 5,
    /// Ends of interrupts by a word.
    End = 6,
    /// Flushes of processors that do not run, which the words about stolen time tell.
    Flush = 9,
    /// Interrupts of several processors by one hypercall.
    Interrupts = 11,
}

impl Offer {
    /// All of them, with their names in the log.
    pub const ALL: [(Self, &str); 5] = [
        (Self::Clock, "clock"),
        (Self::StealTime, "steal-time"),
        (Self::End, "end-of-interrupt"),
        (Self::Flush, "flush"),
        (Self::Interrupts, "interrupts"),
    ];

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The offers that are in use, on all processors alike.
#[derive(Debug, Default)]
pub struct Offers {
    bits: AtomicU32,
    is_amd: AtomicBool,
}

/// KVM's first leaf, if that is the processor's hypervisor.
#[must_use]
pub fn kvm(processor: &impl GuestProcessor) -> Option<u32> {
    if processor.leaf(1)[2] & HYPERVISOR == 0 {
        return None;
    }
    BASES.into_iter().find(|&base| {
        let [_, name @ ..] = processor.leaf(base);
        name.map(u32::to_le_bytes).as_flattened() == NAME
    })
}

impl Offers {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { bits: AtomicU32::new(0), is_amd: AtomicBool::new(false) }
    }

    /// Takes what the processor's KVM offers, if that is its hypervisor.
    pub fn find(&self, processor: &impl GuestProcessor) {
        let Some(base) = kvm(processor) else { return };
        // Old versions say 0 for their last leaf.
        let last = processor.leaf(base)[0];
        if last != 0 && last <= base {
            return;
        }
        let [_, first, third, second] = processor.leaf(0);
        self.is_amd.store(Vendor::of([first, second, third]) == Vendor::Amd, Ordering::Relaxed);
        self.bits.store(processor.leaf(base + 1)[0], Ordering::Relaxed);
    }

    /// Whether an offer is in use.
    #[must_use]
    pub fn has(&self, offer: Offer) -> bool {
        let bits = self.bits.load(Ordering::Relaxed);
        let is_told = offer != Offer::Flush || bits & Offer::StealTime.bit() != 0;
        bits & offer.bit() != 0 && is_told
    }

    /// Whether hypercalls are AMD's.
    #[must_use]
    pub fn is_amd(&self) -> bool {
        self.is_amd.load(Ordering::Relaxed)
    }

    /// Announces the words about stolen time, and those about ends of interrupts, of the processor that runs this, by
    /// their physical addresses. An offer that it refuses is in use on none.
    pub fn announce(&self, processor: &impl GuestProcessor, steal: u64, end: u64) {
        let pages = [(Offer::StealTime, STEAL_REGISTER, steal), (Offer::End, END_REGISTER, end)];
        for (offer, register, address) in pages {
            if self.has(offer) && !processor.write_register(register, address | ENABLED) {
                self.bits.fetch_and(!offer.bit(), Ordering::Relaxed);
            }
        }
    }

    /// The frequency of the time-stamp counter, by the clock's page, which is at a physical address. The page is the
    /// host's for that long.
    pub fn frequency_hz(
        &self,
        processor: &impl GuestProcessor,
        page: &ClockPage,
        address: u64,
    ) -> Option<u64> {
        if !self.has(Offer::Clock) || !processor.write_register(CLOCK_REGISTER, address | ENABLED) {
            return None;
        }
        let frequency = page.frequency_hz();
        processor.write_register(CLOCK_REGISTER, 0);
        frequency
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests;
