//! The faults of this machine's processors by `kernel/core`'s `mitigations`, and the measures: patched instructions at
//! the entries (trap.s), registers of each CPU, and the barrier between isolation domains.
//!
//! `unsafe` here: model-specific registers, and addresses of instructions.
#![allow(unsafe_code)]

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ::x86_64::registers::model_specific::Efer;
use heddle_abi::boot::{KEY_CLEAR_CPUID, KEY_MITIGATIONS, KEY_SET_CPUID};
use heddle_kernel_core::mitigations::{Branches, Fault, Plan, ProcessorModel, Vendor};

use crate::arch::x86_64::cpu;
use crate::arch::x86_64::local::MAX_CPUS;
use crate::arch::x86_64::user::{copy_by_bytes, patch, read_register, write_register};
use crate::boot;

const SPEC_CTRL: u32 = 0x48;
const PREDICTOR_COMMAND: u32 = 0x49;
const PREDICTOR_BARRIER: u64 = 1;
const ARCH_CAPABILITIES: u32 = 0x10a;
const HAS_ARCH_CAPABILITIES: u32 = 1 << 29;
const HAS_ERMS: u32 = 1 << 9;
/// Automatic IBRS.
const EFER_AUTO_IBRS: u64 = 1 << 21;
const LFENCE: [u8; 3] = [0x0f, 0xae, 0xe8];

unsafe extern "C" {
    static heddle_site_exit: u8;
    static heddle_site_entry: u8;
    static heddle_site_clear_sysret: u8;
    static heddle_site_clear_iret: u8;
    static heddle_site_fence_trap: u8;
    static heddle_site_fence_kernel: u8;
    static heddle_site_fence_debug: u8;
    static heddle_restrain_branches: u8;
    static heddle_release_branches: u8;
    fn heddle_fill_returns();
}

/// The selector that `verw` looks at, which must be that of writable data to take the shorter way.
static CLEARING_OPERAND: u16 = 0x18;

struct Decided {
    processor: ProcessorModel,
    plan: Plan,
}

static DECIDED: spin::Once<Decided> = spin::Once::new();
static HAS_BARRIER: AtomicBool = AtomicBool::new(false);

/// The isolation domain that each CPU's predictors have seen, [`UNKNOWN`] at first.
static DOMAINS: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(UNKNOWN) }; MAX_CPUS];
const UNKNOWN: usize = usize::MAX;

fn leaf(number: u32, subleaf: u32) -> core::arch::x86_64::CpuidResult {
    if __cpuid(number & 0x8000_0000).eax >= number {
        return __cpuid_count(number, subleaf);
    }
    core::arch::x86_64::CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 }
}

/// Family and model of the processor.
pub(super) fn family_and_model() -> (u32, u32) {
    let signature = __cpuid(1).eax;
    let (base_family, base_model) = (signature >> 8 & 0xf, signature >> 4 & 0xf);
    let family = if base_family == 0xf { base_family + (signature >> 20 & 0xff) } else { base_family };
    let model = if family >= 6 { base_model | (signature >> 16 & 0xf) << 4 } else { base_model };
    (family, model)
}

fn processor() -> ProcessorModel {
    let name = __cpuid(0);
    let (family, model) = family_and_model();
    let structured = leaf(7, 0);
    let second = if structured.eax >= 2 { leaf(7, 2).edx } else { 0 };
    let capabilities = match structured.edx & HAS_ARCH_CAPABILITIES {
        0 => None,
        _ => read_register(ARCH_CAPABILITIES),
    };
    let mut processor = ProcessorModel {
        vendor: Vendor::of([name.ebx, name.edx, name.ecx]),
        family,
        model,
        leaf7_ebx: structured.ebx,
        leaf7_edx: structured.edx,
        leaf7_2_edx: second,
        extended8_ebx: leaf(0x8000_0008, 0).ebx,
        extended21_eax: leaf(0x8000_0021, 0).eax,
        extended21_ecx: leaf(0x8000_0021, 0).ecx,
        capabilities: capabilities.unwrap_or(0),
    };
    // For tests on processors that have the instructions and don't say so, as QEMU's emulator.
    for (name, bit) in [("md_clear", 1 << 10), ("spec_ctrl", 1 << 26)] {
        if boot::is_listed(KEY_SET_CPUID, name) {
            processor.leaf7_edx |= bit;
        }
    }
    processor
}

/// Decides about the machine's processors, of which only this one runs, and changes the entries.
pub(super) fn install() {
    let processor = processor();
    let is_off = boot::is(KEY_MITIGATIONS, "off");
    let plan = if is_off { Plan::NOTHING } else { Plan::of(&processor) };
    if plan.branches == Branches::OnEntry {
        patch_call(&raw const heddle_site_entry, &raw const heddle_restrain_branches);
        patch_call(&raw const heddle_site_exit, &raw const heddle_release_branches);
    }
    if plan.clears_buffers {
        patch_clear(&raw const heddle_site_clear_sysret);
        patch_clear(&raw const heddle_site_clear_iret);
    }
    if plan.fences_entry {
        for site in [
            &raw const heddle_site_fence_trap,
            &raw const heddle_site_fence_kernel,
            &raw const heddle_site_fence_debug,
        ] {
            patch(site, &LFENCE);
        }
    }
    HAS_BARRIER.store(plan.barrier, Ordering::Relaxed);
    let has_fast_copies = processor.leaf7_ebx & HAS_ERMS != 0 || boot::is_listed(KEY_SET_CPUID, "erms");
    if has_fast_copies && !boot::is_listed(KEY_CLEAR_CPUID, "erms") {
        copy_by_bytes();
    }
    DECIDED.call_once(|| Decided { processor, plan });
    install_cpu();
}

/// Sets this CPU's registers.
pub(super) fn install_cpu() {
    let Some(Decided { plan, .. }) = DECIDED.get() else { return };
    if plan.spec_ctrl != 0 {
        // SAFETY: the bits are those that the processor offers; they restrain speculation and nothing else.
        unsafe { write_register(SPEC_CTRL, plan.spec_ctrl) };
    }
    if plan.branches == Branches::Automatic {
        let efer = Efer::read_raw() | EFER_AUTO_IBRS;
        // SAFETY: likewise; what is set remains.
        unsafe { Efer::write_raw(efer) };
    }
}

/// `call` to `target`, in place of five bytes at `site`.
fn patch_call(site: *const u8, target: *const u8) {
    let distance = (target as usize).wrapping_sub(site as usize + 5) as u32;
    let [a, b, c, d] = distance.to_le_bytes();
    patch(site, &[0xe8, a, b, c, d]);
}

/// `verw` of [`CLEARING_OPERAND`], in place of seven bytes at `site`.
fn patch_clear(site: *const u8) {
    let operand = &raw const CLEARING_OPERAND as usize;
    let [a, b, c, d] = (operand.wrapping_sub(site as usize + 7) as u32).to_le_bytes();
    patch(site, &[0x0f, 0x00, 0x2d, a, b, c, d]);
}

/// Whether predictors are emptied between domains, so that [`enter_domain`] has to be called.
#[must_use]
#[inline]
pub fn has_barrier() -> bool {
    HAS_BARRIER.load(Ordering::Relaxed)
}

/// Says that this CPU is about to run programs of an isolation domain: what those of another have taught the
/// predictors is forgotten.
pub fn enter_domain(domain: usize) {
    let seen = &DOMAINS[cpu::id()];
    if seen.load(Ordering::Relaxed) == domain {
        return;
    }
    seen.store(domain, Ordering::Relaxed);
    // SAFETY: the processor has the command; it and the function change nothing but predictors.
    unsafe {
        write_register(PREDICTOR_COMMAND, PREDICTOR_BARRIER);
        heddle_fill_returns();
    }
}

/// Says that a program changes its domain while it may run: no CPU knows any more what its predictors have seen.
pub fn forget_domains() {
    for seen in &DOMAINS {
        seen.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// Writes the contents of a fault's file, without the end of the line.
///
/// # Errors
/// Those of `text`.
pub fn describe(fault: Fault, text: &mut dyn core::fmt::Write) -> core::fmt::Result {
    match DECIDED.get() {
        Some(decided) => decided.processor.describe(fault, &decided.plan, text),
        None => Ok(()),
    }
}

/// The names of the processors' faults.
pub(super) fn bugs() -> impl Iterator<Item = &'static str> {
    DECIDED.get().into_iter().flat_map(|decided| decided.processor.bugs())
}

/// Says in the log what is done.
pub fn report() {
    let Some(Decided { plan, .. }) = DECIDED.get() else { return };
    ::log::info!(
        "mitigations: branches {:?}, barrier {}, clears buffers {}, fences {}",
        plan.branches,
        plan.barrier,
        plan.clears_buffers,
        plan.fences_entry
    );
}
