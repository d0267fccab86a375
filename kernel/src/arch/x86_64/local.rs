//! Per-CPU data, found through the GS base.
//!
//! `unsafe` here: reads relative to GS and the one write of the GS base, which the compiler cannot follow.
#![allow(unsafe_code)]

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ::x86_64::VirtAddr;
use ::x86_64::registers::model_specific::{GsBase, KernelGsBase};
use ::x86_64::structures::tss::TaskStateSegment;

/// How many CPUs the kernel uses at most.
pub const MAX_CPUS: usize = heddle_abi::boot::CPUS_MAX;

/// Room for a processor's frame, an error code, a vector and two registers.
const TRAP_AREA_WORDS: usize = 16;
/// Bytes of that.
pub const TRAP_AREA_BYTES: usize = TRAP_AREA_WORDS * size_of::<u64>();

#[repr(align(16))]
struct TrapArea([AtomicU64; TRAP_AREA_WORDS]);

/// One CPU's own data. The assembly entries use the first fields by offset.
#[repr(C, align(64))]
pub struct CpuLocal {
    /// Address of this structure.
    address: AtomicUsize,
    /// Kernel stack pointer of the `enter_user` in progress.
    kernel_sp: AtomicUsize,
    /// The program's stack pointer, between two instructions of the system-call entry.
    user_sp: AtomicUsize,
    /// This CPU's number, counted from 0 in the order of the start.
    pub id: AtomicUsize,
    /// Its local APIC's id.
    pub apic_id: AtomicU32,
    /// Makes the `rsp0` field of the task state segment 8-byte aligned.
    padding: u32,
    align: u32,
    pub tss: UnsafeCell<TaskStateSegment>,
    /// Where a trap of the kernel's own code is pushed in a machine with direct calls, and its upper end.
    trap_area: TrapArea,
    trap_area_end: AtomicUsize,
    /// The table of the running program's patched places, in such a machine.
    pub call_places: AtomicUsize,
    /// Base addresses in the FS and user GS registers now, and the context they were loaded for.
    pub loaded_fs: AtomicU64,
    pub loaded_gs: AtomicU64,
    pub loaded_context: AtomicUsize,
    /// Physical address of the page-table root in use.
    pub root: AtomicU64,
    /// The tag that it was loaded with.
    pub tag: AtomicU64,
    /// Identity of the [`crate::arch::x86_64::FloatState`] whose values the registers hold; 0 for none.
    pub float_owner: AtomicU64,
    /// Time for which the one-shot timer is set; `u64::MAX` when it is not.
    pub timer_deadline: AtomicU64,
    /// An interrupt handler runs.
    pub in_handler: AtomicBool,
    /// Interrupts of the timer and of other CPUs that this CPU has taken.
    pub timers: AtomicU64,
    pub kicks: AtomicU64,
}

// SAFETY: every field but `tss` is atomic, and `tss` is written only by its own CPU while that starts, before
// anything reads it; later only the hardware and the assembly entries of the same CPU touch it.
unsafe impl Sync for CpuLocal {}

impl CpuLocal {
    const fn new() -> Self {
        Self {
            address: AtomicUsize::new(0),
            kernel_sp: AtomicUsize::new(0),
            user_sp: AtomicUsize::new(0),
            id: AtomicUsize::new(0),
            apic_id: AtomicU32::new(0),
            padding: 0,
            align: 0,
            tss: UnsafeCell::new(TaskStateSegment::new()),
            trap_area: TrapArea([const { AtomicU64::new(0) }; TRAP_AREA_WORDS]),
            trap_area_end: AtomicUsize::new(0),
            call_places: AtomicUsize::new(0),
            loaded_fs: AtomicU64::new(0),
            loaded_gs: AtomicU64::new(0),
            loaded_context: AtomicUsize::new(0),
            root: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            float_owner: AtomicU64::new(0),
            timer_deadline: AtomicU64::new(u64::MAX),
            in_handler: AtomicBool::new(false),
            timers: AtomicU64::new(0),
            kicks: AtomicU64::new(0),
        }
    }

    /// The upper end of the area for traps of the kernel's own code.
    pub fn trap_area_end_address(&self) -> usize {
        self.trap_area.0.as_ptr_range().end as usize
    }
}

/// Offset of the kernel stack pointer, for the assembly entries.
pub const KERNEL_SP: usize = offset_of!(CpuLocal, kernel_sp);
/// Offset of the saved user stack pointer.
pub const USER_SP: usize = offset_of!(CpuLocal, user_sp);
/// Offset of the task state segment's `rsp0`.
pub const RSP0: usize = offset_of!(CpuLocal, tss) + offset_of!(TaskStateSegment, privilege_stack_table);
const _: () = assert!(RSP0.is_multiple_of(8));

/// Offset of the address at which [`TRAP_STACK`] ends while the kernel runs.
pub const TRAP_AREA: usize = offset_of!(CpuLocal, trap_area_end);
/// Offset of the address of the table of patched places.
pub const CALL_PLACES: usize = offset_of!(CpuLocal, call_places);
/// Offset of the stack of the task state segment for what strikes where no stack can be trusted.
pub const FATAL_STACK: usize =
    offset_of!(CpuLocal, tss) + offset_of!(TaskStateSegment, interrupt_stack_table);
/// The stack of the task state segment that all gates name in a machine with direct calls, by the number in a gate,
/// and its offset.
pub const TRAP_STACK_NUMBER: u64 = 3;
pub const TRAP_STACK: usize = offset_of!(CpuLocal, tss)
    + offset_of!(TaskStateSegment, interrupt_stack_table)
    + (TRAP_STACK_NUMBER as usize - 1) * size_of::<VirtAddr>();
const _: () = assert!(TRAP_STACK.is_multiple_of(8));

static LOCALS: [CpuLocal; MAX_CPUS] = [const { CpuLocal::new() }; MAX_CPUS];

/// The data of CPU `id`.
pub fn of(id: usize) -> &'static CpuLocal {
    &LOCALS[id]
}

/// Makes `LOCALS[id]` the data of the CPU that runs this.
pub fn install(id: usize) -> &'static CpuLocal {
    let local = of(id);
    local.id.store(id, Ordering::Relaxed);
    local.address.store(core::ptr::from_ref(local) as usize, Ordering::Relaxed);
    local.trap_area_end.store(local.trap_area_end_address(), Ordering::Relaxed);
    GsBase::write(VirtAddr::from_ptr(local));
    KernelGsBase::write(VirtAddr::zero());
    local
}

/// This CPU's data.
#[inline]
pub fn current() -> &'static CpuLocal {
    let address: *const CpuLocal;
    // SAFETY: `install` ran on this CPU before anything else, so GS points to its `CpuLocal`, which is static and
    // holds its own address.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) address, const offset_of!(CpuLocal, address),
             options(nostack, preserves_flags, readonly));
        &*address
    }
}

/// This CPU's number.
#[inline]
pub fn current_id() -> usize {
    let id;
    // SAFETY: `install` ran on this CPU before anything else, so GS points to its `CpuLocal`; the load has no
    // other effect.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) id, const offset_of!(CpuLocal, id),
             options(nostack, preserves_flags, readonly));
    }
    id
}
