//! The offers of KVM to its guests beyond a processor, each used where CPUID has its bit. The protocols, and a host
//! that plays KVM to them, are in `kernel/core`'s `paravirt`.
//!
//! `unsafe` here: registers by which pages are announced, and hypercalls.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use heddle_abi::boot::KEY_CLEAR_CPUID;
use heddle_kernel_core::mitigations::Vendor;
use heddle_kernel_core::paravirt::{
    CALL_INTERRUPTS, ClockPage, EndWord, FEATURE_CLOCK, FEATURE_END, FEATURE_FLUSH, FEATURE_INTERRUPTS,
    FEATURE_STEAL_TIME, LEAF_FEATURES, LEAF_NAME, StealPage, interrupt_set, is_kvm,
};

use crate::arch::x86_64::local::MAX_CPUS;
use crate::arch::x86_64::user::write_register;
use crate::arch::x86_64::{cpu, local, paging};
use crate::boot;

const CLOCK_REGISTER: u32 = 0x4b56_4d01;
const STEAL_REGISTER: u32 = 0x4b56_4d03;
const END_REGISTER: u32 = 0x4b56_4d04;
/// With the address of a page: it is in use.
const ENABLED: u64 = 1;

/// KVM's features that are in use.
static FEATURES: AtomicU32 = AtomicU32::new(0);
/// Whether hypercalls are AMD's.
static IS_AMD: AtomicBool = AtomicBool::new(false);

static STEAL: [StealPage; MAX_CPUS] = [const { StealPage::new() }; MAX_CPUS];
static ENDS: [OwnEndWord; MAX_CPUS] = [const { OwnEndWord(EndWord::new()) }; MAX_CPUS];

#[repr(align(64))]
struct OwnEndWord(EndWord);

fn has(feature: u32) -> bool {
    FEATURES.load(Ordering::Relaxed) & feature != 0
}

/// Looks for KVM, and announces the boot processor's pages.
pub(super) fn install() {
    const HYPERVISOR: u32 = 1 << 31;
    if __cpuid(1).ecx & HYPERVISOR == 0 {
        return;
    }
    let name = __cpuid(LEAF_NAME);
    if !is_kvm([name.ebx, name.ecx, name.edx]) || boot::is_listed(KEY_CLEAR_CPUID, "kvm") {
        return;
    }
    let vendor = __cpuid(0);
    let is_amd = Vendor::of([vendor.ebx, vendor.edx, vendor.ecx]) == Vendor::Amd;
    IS_AMD.store(is_amd, Ordering::Relaxed);
    FEATURES.store(__cpuid(LEAF_FEATURES).eax, Ordering::Relaxed);
    install_cpu(0);
}

/// Announces this CPU's pages.
pub(super) fn install_cpu(id: usize) {
    let announce = |feature, register, address: u64| {
        // SAFETY: a page of the kernel's data that lives as long as the machine, laid out as KVM has it, all of whose
        // words are atomics.
        if has(feature) && !unsafe { write_register(register, address | ENABLED) } {
            FEATURES.fetch_and(!feature, Ordering::Relaxed);
        }
    };
    announce(FEATURE_STEAL_TIME, STEAL_REGISTER, paging::physical_of(&raw const STEAL[id]));
    announce(FEATURE_END, END_REGISTER, paging::physical_of(&raw const ENDS[id]));
}

/// The frequency of the time-stamp counter, by KVM's clock.
pub(super) fn frequency_hz() -> Option<u64> {
    if !has(FEATURE_CLOCK) {
        return None;
    }
    static CLOCK: ClockPage = ClockPage::new();
    let page = &raw const CLOCK;
    // SAFETY: as in `install_cpu`.
    if !unsafe { write_register(CLOCK_REGISTER, paging::physical_of(page) | ENABLED) } {
        return None;
    }
    let frequency = CLOCK.frequency_hz();
    // SAFETY: takes the page back, which nobody reads any more.
    unsafe { write_register(CLOCK_REGISTER, 0) };
    frequency
}

/// Ends the interrupt in service; `false` if the interrupt controller has to be told.
pub(super) fn end_interrupt() -> bool {
    has(FEATURE_END) && ENDS[local::current_id()].0.end()
}

/// Has the host flush a processor's translations before it runs that again. `false` if the processor runs, or the host
/// offers nothing of the kind.
#[must_use]
pub fn ask_for_flush(cpu: usize) -> bool {
    has(FEATURE_FLUSH) && has(FEATURE_STEAL_TIME) && STEAL[cpu].ask_for_flush()
}

/// For how long the host ran something else although the CPU had work, in nanoseconds.
#[must_use]
pub fn stolen_ns(cpu: usize) -> u64 {
    if has(FEATURE_STEAL_TIME) { STEAL[cpu].stolen_ns() } else { 0 }
}

/// Sends an interrupt to these CPUs by one call of the host, or `false`.
pub(super) fn interrupt_all(cpus: u64, command: u32) -> bool {
    if !has(FEATURE_INTERRUPTS) {
        return false;
    }
    let chosen = (0..cpu::count()).filter(|cpu| cpus >> cpu & 1 != 0);
    let ids = chosen.map(|cpu| local::of(cpu).apic_id.load(Ordering::Relaxed));
    let Some([low, high, first]) = interrupt_set(ids) else { return false };
    let result: i64;
    // SAFETY: KVM takes the call, as CPUID says, and changes nothing but the result. `rbx` is the compiler's.
    unsafe {
        if IS_AMD.load(Ordering::Relaxed) {
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
    let used = [
        (FEATURE_CLOCK, "clock"),
        (FEATURE_STEAL_TIME, "steal-time"),
        (FEATURE_END, "end-of-interrupt"),
        (FEATURE_FLUSH, "flush"),
        (FEATURE_INTERRUPTS, "interrupts"),
    ];
    for (_, name) in used.into_iter().filter(|(feature, _)| has(*feature)) {
        ::log::info!("kvm: {name}");
    }
}
