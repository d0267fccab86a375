//! The offers of KVM to its guests beyond a processor. The choice among them, the protocols, and a host that plays KVM
//! to them, are in `kernel/core`'s `paravirt`; the machine's registers and hypercalls are here.
//!
//! `unsafe` here: registers by which pages are announced, and hypercalls.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::__cpuid;
use core::sync::atomic::Ordering;

use heddle_abi::boot::KEY_CLEAR_CPUID;
use heddle_kernel_core::paravirt::{
    CALL_INTERRUPTS, ClockPage, EndWord, GuestProcessor, Offer, Offers, StealWords, interrupt_set, offers,
};

use crate::arch::x86_64::local::MAX_CPUS;
use crate::arch::x86_64::user::write_register;
use crate::arch::x86_64::{cpu, local, paging};
use crate::boot;

static OFFERS: Offers = Offers::new();
static STEAL: [StealWords; MAX_CPUS] = [const { StealWords::new() }; MAX_CPUS];
static ENDS: [OwnEndWord; MAX_CPUS] = [const { OwnEndWord(EndWord::new()) }; MAX_CPUS];

#[repr(align(64))]
struct OwnEndWord(EndWord);

/// The processor that runs this.
struct Own;

impl GuestProcessor for Own {
    fn leaf(&self, leaf: u32) -> [u32; 4] {
        let words = __cpuid(leaf);
        [words.eax, words.ebx, words.ecx, words.edx]
    }

    fn write_register(&self, register: u32, value: u64) -> bool {
        // SAFETY: only this file hands the type to anybody, for a register that announces a page of the kernel's data
        // or takes it back. The page lives as long as the machine, is laid out as KVM has it, and all of its words that
        // change are atomics.
        unsafe { write_register(register, value) }
    }
}

/// Whether the machine runs under KVM, in use or not.
pub(super) fn is_kvm() -> bool {
    offers::kvm(&Own).is_some()
}

/// Looks for KVM, and announces the boot processor's pages.
pub(super) fn install() {
    if !boot::is_listed(KEY_CLEAR_CPUID, "kvm") {
        OFFERS.find(&Own);
        install_cpu(0);
    }
}

/// Announces this CPU's pages.
pub(super) fn install_cpu(id: usize) {
    OFFERS.announce(
        &Own,
        paging::physical_of(&raw const STEAL[id]),
        paging::physical_of(&raw const ENDS[id]),
    );
}

/// The frequency of the time-stamp counter, by KVM's clock.
pub(super) fn frequency_hz() -> Option<u64> {
    static CLOCK: ClockPage = ClockPage::new();
    OFFERS.frequency_hz(&Own, &CLOCK, paging::physical_of(&raw const CLOCK))
}

/// Ends the interrupt in service; `false` if the interrupt controller has to be told.
pub(super) fn end_interrupt() -> bool {
    OFFERS.has(Offer::End) && ENDS[local::current_id()].0.end()
}

/// Has the host flush a processor's translations before it runs that again. `false` if the processor runs, or the host
/// offers nothing of the kind.
#[must_use]
pub fn ask_for_flush(cpu: usize) -> bool {
    OFFERS.has(Offer::Flush) && STEAL[cpu].ask_for_flush()
}

/// For how long the host ran something else although the CPU had work, in nanoseconds.
#[must_use]
pub fn stolen_ns(cpu: usize) -> u64 {
    if OFFERS.has(Offer::StealTime) { STEAL[cpu].stolen_ns() } else { 0 }
}

/// Sends an interrupt to these CPUs by one call of the host, or `false`.
pub(super) fn interrupt_all(cpus: u64, command: u32) -> bool {
    if !OFFERS.has(Offer::Interrupts) {
        return false;
    }
    let chosen = (0..cpu::count()).filter(|cpu| cpus >> cpu & 1 != 0);
    let ids = chosen.map(|cpu| local::of(cpu).apic_id.load(Ordering::Relaxed));
    let Some([low, high, first]) = interrupt_set(ids) else { return false };
    let result: i64;
    // SAFETY: KVM takes the call, as CPUID says, and changes nothing but the result. `rbx` is the compiler's.
    unsafe {
        if OFFERS.is_amd() {
            asm!("xchg {low}, rbx", "vmmcall", "xchg {low}, rbx", low = inout(reg) low => _,
                 inout("rax") CALL_INTERRUPTS => result, in("rcx") high, in("rdx") first,
                 in("rsi") u64::from(command), options(nostack));
        } else {
            asm!("xchg {low}, rbx", "vmcall", "xchg {low}, rbx", low = inout(reg) low => _,
                 inout("rax") CALL_INTERRUPTS => result, in("rcx") high, in("rdx") first,
                 in("rsi") u64::from(command), options(nostack));
        }
    }
    result >= 0
}

/// Says in the log what is in use.
pub fn report() {
    for (_, name) in Offer::ALL.iter().filter(|(offer, _)| OFFERS.has(*offer)) {
        ::log::info!("kvm: {name}");
    }
}
