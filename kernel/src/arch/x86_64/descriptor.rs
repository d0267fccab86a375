//! Segments, the task state segment and the interrupt descriptor table.
//!
//! `unsafe` here: loading descriptor tables and segment registers, and statics that the hardware reads.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use ::x86_64::instructions::segmentation::{CS, DS, ES, FS, SS, Segment};
use ::x86_64::instructions::tables::{lidt, load_tss};
use ::x86_64::registers::control::{Cr4, Cr4Flags, Efer, EferFlags};
use ::x86_64::registers::model_specific::{LStar, SFMask, Star};
use ::x86_64::registers::rflags::RFlags;
use ::x86_64::structures::DescriptorTablePointer;
use ::x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use ::x86_64::{PrivilegeLevel, VirtAddr};

use heddle_abi::boot::KEY_CLEAR_CPUID;

use crate::arch::x86_64::local::{CpuLocal, MAX_CPUS};
use crate::arch::x86_64::{direct, local, paging};
use crate::boot;

/// Selector of kernel code. All selectors are Linux's: debuggers know them, and so do hosts that run a guest's kernel
/// without the processor's help. `sysret` and `syscall` fix the order of the segments.
pub const KERNEL_CODE: u16 = 0x10;
/// Selector of kernel data and stack.
pub const KERNEL_DATA: u16 = 0x18;
/// Selector of user data and stack.
pub const USER_DATA: u16 = 0x2b;
/// Selector of user code.
pub const USER_CODE: u16 = 0x33;
/// The base for `sysret`: user code is 16 after it and user data 8.
const SYSRET_BASE: u16 = 0x23;

/// 32-bit code of the kernel and of programs: not used, but at their places.
const KERNEL_CODE_32: u64 = 0x00cf_9b00_0000_ffff;
const USER_CODE_32: u64 = 0x00cf_fb00_0000_ffff;
/// Entries of a descriptor table.
const SEGMENTS_MAX: usize = 10;

/// A data segment that programs may read: present, of level 3; its limit is the number of the CPU.
const CPU_SEGMENT: u64 = 0x0040_f100_0000_0000;

const FATAL_STACK_BYTES: usize = 8192;
/// Vectors that may strike where the stack cannot be trusted: NMI, double fault, machine check.
const FATAL_VECTORS: [usize; 3] = [2, 8, 18];
/// Debug traps have a stack of their own, too.
const VECTOR_DEBUG: usize = 1;
const DEBUG_STACK_BYTES: usize = 1024;

#[repr(C, align(16))]
struct Cell<T>(UnsafeCell<T>);

// SAFETY: each cell is written by one CPU while it starts and only read, by hardware, afterwards: the descriptor
// table by the boot processor before the others run, the rest by the CPU whose index it has.
unsafe impl<T> Sync for Cell<T> {}

static INTERRUPTS: Cell<[[u64; 2]; 256]> = Cell(UnsafeCell::new([[0; 2]; 256]));
static SEGMENTS: [Cell<GlobalDescriptorTable<SEGMENTS_MAX>>; MAX_CPUS] =
    [const { Cell(UnsafeCell::new(GlobalDescriptorTable::empty())) }; MAX_CPUS];
/// The boot processor's; the others' are made when they start.
static BOOT_STACKS: Cell<[u8; FATAL_STACK_BYTES + DEBUG_STACK_BYTES]> =
    Cell(UnsafeCell::new([0; FATAL_STACK_BYTES + DEBUG_STACK_BYTES]));
const _: () = assert!(FATAL_STACK_BYTES + DEBUG_STACK_BYTES <= paging::EXCEPTION_STACK_BYTES);
static INTERRUPTS_READY: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    static heddle_trap_entries: u8;
    static heddle_debug_entry: u8;
    static heddle_debug_smap_site: u8;
    static heddle_syscall_entry: u8;
    static heddle_trap_smap_site: u8;
    static heddle_smap_sites: [u64; 2];
    static heddle_smap_sites_end: [u64; 2];
}

/// Sets this CPU up for traps: segments, interrupt table, `syscall`.
pub fn install(id: usize) {
    let local = local::of(id);
    load_segments(id, local);
    if !INTERRUPTS_READY.swap(true, Ordering::AcqRel) {
        fill_interrupts();
    }
    let table = DescriptorTablePointer {
        limit: (size_of::<[[u64; 2]; 256]>() - 1) as u16,
        base: VirtAddr::from_ptr(INTERRUPTS.0.get()),
    };
    // SAFETY: the table is static, filled, and each gate leads to an entry of trap.s.
    unsafe { lidt(&table) };
    install_syscall();
    install_protection();
}

fn load_segments(id: usize, local: &'static CpuLocal) {
    // SAFETY: only this CPU, which is starting, touches its task state segment and its descriptor table; the
    // hardware sees both only after the loads below.
    unsafe {
        let tss = &mut *local.tss.get();
        let stacks_end = match id {
            0 => BOOT_STACKS.0.get() as usize + FATAL_STACK_BYTES + DEBUG_STACK_BYTES,
            id => paging::exception_stacks_end(id),
        };
        tss.interrupt_stack_table[0] = VirtAddr::new(stacks_end as u64);
        tss.interrupt_stack_table[1] = VirtAddr::new((stacks_end - FATAL_STACK_BYTES) as u64);
        tss.interrupt_stack_table[2] = VirtAddr::new(local.trap_area_end_address() as u64);
        let table = &mut *SEGMENTS[id].0.get();
        let _ = table.append(Descriptor::UserSegment(KERNEL_CODE_32));
        let _ = table.append(Descriptor::kernel_code_segment());
        let _ = table.append(Descriptor::kernel_data_segment());
        let _ = table.append(Descriptor::UserSegment(USER_CODE_32));
        let _ = table.append(Descriptor::user_data_segment());
        let _ = table.append(Descriptor::user_code_segment());
        let selector = table.append(Descriptor::tss_segment_unchecked(local.tss.get()));
        let number = table.append(Descriptor::UserSegment(CPU_SEGMENT | id as u64));
        debug_assert_eq!(number.0 | 3, heddle_abi::user_sched::CPU_SEGMENT);
        (*SEGMENTS[id].0.get()).load_unsafe();
        CS::set_reg(SegmentSelector(KERNEL_CODE));
        SS::set_reg(SegmentSelector(KERNEL_DATA));
        let null = SegmentSelector::new(0, PrivilegeLevel::Ring0);
        DS::set_reg(null);
        ES::set_reg(null);
        FS::set_reg(null);
        load_tss(selector);
    }
}

fn fill_interrupts() {
    // SAFETY: the symbol is the first of 256 entries, 16 bytes apart; only its address is used.
    let entries = (&raw const heddle_trap_entries) as u64;
    // SAFETY: only the address of the symbol is used.
    let debug = (&raw const heddle_debug_entry) as u64;
    // SAFETY: `INTERRUPTS_READY` lets one CPU in, before any CPU loads the table.
    let table = unsafe { &mut *INTERRUPTS.0.get() };
    for (vector, gate) in table.iter_mut().enumerate() {
        let (address, stack) = match (vector, direct::entries()) {
            (VECTOR_DEBUG, None) => (debug, 2),
            (VECTOR_DEBUG, Some(direct)) => (direct.debug, 2),
            (_, Some(direct)) => match FATAL_VECTORS.iter().position(|&fatal| fatal == vector) {
                Some(number) => (direct.fatal + 16 * number as u64, 1),
                None => (direct.traps + 16 * vector as u64, local::TRAP_STACK_NUMBER),
            },
            (_, None) => (entries + 16 * vector as u64, u64::from(FATAL_VECTORS.contains(&vector))),
        };
        // Breakpoints may be raised by `int3`; the rest only by hardware.
        let level = if vector == 3 { 3u64 } else { 0 };
        let kind = 0x8e00 | level << 13;
        gate[0] = (address & 0xffff)
            | u64::from(KERNEL_CODE) << 16
            | stack << 32
            | kind << 32
            | (address >> 16 & 0xffff) << 48;
        gate[1] = address >> 32;
    }
}

/// The address to which `syscall` leads.
pub fn syscall_entry() -> u64 {
    // SAFETY: only the address of the symbol is used.
    (&raw const heddle_syscall_entry) as u64
}

fn install_syscall() {
    let entry = direct::entries().map_or_else(syscall_entry, |direct| direct.calls);
    LStar::write(VirtAddr::new(entry));
    // SAFETY: the selectors are those of `load_segments`: kernel code and data, then (sysret) user data and code
    // at +8 and +16 from the base.
    unsafe { Star::write_raw(SYSRET_BASE, KERNEL_CODE) };
    SFMask::write(
        RFlags::INTERRUPT_FLAG
            | RFlags::TRAP_FLAG
            | RFlags::DIRECTION_FLAG
            | RFlags::NESTED_TASK
            | RFlags::ALIGNMENT_CHECK,
    );
    // SAFETY: switches on `syscall`, whose entry is set, and no-execute; both are relied on from here.
    unsafe {
        Efer::update(|flags| flags.insert(EferFlags::SYSTEM_CALL_EXTENSIONS | EferFlags::NO_EXECUTE_ENABLE))
    };
}

/// `CPUID` leaf 7: the features that keep the kernel from user pages, and programs from descriptor tables' addresses.
const LEAF_FEATURES: u32 = 7;
const FEATURE_SMEP: u32 = 1 << 7;
const FEATURE_SMAP: u32 = 1 << 20;
const FEATURE_UMIP: u32 = 1 << 2;

/// `CPUID` leaf 1: translations that a change of the root leaves alone.
const FEATURE_PGE: u32 = 1 << 13;

/// Switches on what the processor has of global pages, SMEP, SMAP and UMIP.
fn install_protection() {
    static IS_PATCHED: AtomicBool = AtomicBool::new(false);
    if core::arch::x86_64::__cpuid(1).edx & FEATURE_PGE != 0 {
        // SAFETY: only the kernel's own pages are global, and every root has them.
        unsafe { Cr4::update(|flags| flags.insert(Cr4Flags::PAGE_GLOBAL)) };
    }
    if core::arch::x86_64::__cpuid(0).eax < LEAF_FEATURES {
        return;
    }
    let features = core::arch::x86_64::__cpuid_count(LEAF_FEATURES, 0);
    let mut wanted = Cr4Flags::empty();
    // Where programs run in the kernel's mode, that mode executes their pages and touches them.
    let use_smep = features.ebx & FEATURE_SMEP != 0 && !direct::is_on();
    wanted.set(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION, use_smep);
    let has_smap = features.ebx & FEATURE_SMAP != 0 && !boot::is_listed(KEY_CLEAR_CPUID, "smap");
    let use_smap = has_smap && !direct::is_on();
    wanted.set(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION, use_smap);
    wanted.set(Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION, features.ecx & FEATURE_UMIP != 0);
    if use_smap && !IS_PATCHED.swap(true, Ordering::AcqRel) {
        patch_smap_sites();
    }
    // SAFETY: the CPU has each of them. Unless programs run in the kernel's mode, which wants neither SMEP nor SMAP,
    // that mode executes no user page and touches user memory only in user.s, between `stac` and `clac`.
    unsafe { Cr4::update(|flags| flags.insert(wanted)) };
}

/// Puts `stac` and `clac` where the entries and the user copies have room for them.
fn patch_smap_sites() {
    const STAC: [u8; 3] = [0x0f, 0x01, 0xcb];
    const CLAC: [u8; 3] = [0x0f, 0x01, 0xca];
    let write = |site: *const u8, code: [u8; 3]| {
        let target: *mut [u8; 3] = paging::direct_map(paging::physical_of(site));
        // SAFETY: the site is three bytes of the kernel's text, which the direct map shows writable. The boot processor
        // does this before any other starts, and runs none of the sites meanwhile.
        unsafe { target.write(code) };
    };
    let (first, end) = (&raw const heddle_smap_sites, &raw const heddle_smap_sites_end);
    let count = (end as usize - first as usize) / size_of::<[u64; 2]>();
    for index in 0..count {
        // SAFETY: user.s lays out the table between the two symbols: the address of a site, and whether it opens.
        let [site, opens] = unsafe { first.add(index).read() };
        write(site as *const u8, if opens != 0 { STAC } else { CLAC });
    }
    write(&raw const heddle_trap_smap_site, CLAC);
    write(&raw const heddle_debug_smap_site, CLAC);
}
