//! Traps: running a program until its next one, and what happens when the kernel itself is interrupted.
//!
//! `unsafe` here: the assembly entries, and the pointers they hand over.
#![allow(unsafe_code)]

use core::arch::global_asm;
use core::sync::atomic::Ordering;

use ::x86_64::VirtAddr;
use ::x86_64::registers::control::Cr2;
use ::x86_64::registers::model_specific::{FsBase, KernelGsBase};
use linux_raw_sys::general as linux;

use crate::arch::x86_64::context::UserContext;
use crate::arch::x86_64::{context, debug, descriptor, direct, interrupt, local, user};
use crate::arch::{SignalCause, UserHooks};

global_asm!(
    include_str!("trap.s"),
    include_str!("direct.s"),
    CPU_KERNEL_SP = const local::KERNEL_SP,
    CPU_USER_SP = const local::USER_SP,
    CPU_RSP0 = const local::RSP0,
    CPU_TRAP_STACK = const local::TRAP_STACK,
    CPU_TRAP_AREA = const local::TRAP_AREA,
    CPU_CALL_PLACES = const local::CALL_PLACES,
    CPU_FATAL_STACK = const local::FATAL_STACK,
    TRAP_AREA_BYTES = const local::TRAP_AREA_BYTES,
    CONTEXT_SIZE = const context::SIZE,
    CONTEXT_CS = const context::CS,
    CONTEXT_SS = const context::SS,
    CONTEXT_R15 = const context::R15,
    CONTEXT_R11 = const context::R11,
    CONTEXT_RCX = const context::RCX,
    CONTEXT_VECTOR = const context::VECTOR,
    CONTEXT_IP = const context::IP,
    CONTEXT_FLAGS = const context::FLAGS,
    CONTEXT_SP = const context::SP,
    USER_DATA = const descriptor::USER_DATA,
    USER_CODE = const descriptor::USER_CODE,
    KERNEL_CODE = const descriptor::KERNEL_CODE,
    KERNEL_DATA = const descriptor::KERNEL_DATA,
    PLACES_MOVE = const direct::PLACES_MOVE,
    PLACES_PADDING = const direct::PLACES_PADDING,
    PLACES_NINTH = const direct::PLACES_NINTH,
    PLACE_BYTES = const direct::PLACE_BYTES,
    VECTOR_PROTECTION = const VECTOR_PROTECTION,
    VECTOR_INSTRUCTION = const context::INSTRUCTION_VECTOR,
    VECTOR_SYSCALL = const context::SYSCALL_VECTOR,
    options(att_syntax)
);

unsafe extern "C" {
    fn heddle_enter_user(context: *mut UserContext);
}

pub(super) const VECTOR_PAGE_FAULT: u64 = 14;
pub(super) const VECTOR_DEBUG: u64 = 1;
pub(super) const VECTOR_PROTECTION: u64 = 13;
const EXCEPTIONS: u64 = 32;
/// The bit of a page fault's error code that tells a program's access from the kernel's.
const FAULT_BY_USER: u64 = 4;

/// Why a program stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// It made a system call.
    SystemCall,
    /// It made one by an instruction that a call could replace: see [`crate::arch::direct`].
    CallInstruction,
    /// It touched memory that is not there, or not for that.
    PageFault {
        /// The address that it touched.
        address: usize,
        /// Whether it wanted to write.
        write: bool,
        /// Whether it wanted to execute.
        execute: bool,
        /// Whether a page was there, but without that right.
        present: bool,
    },
    /// It did something else that the processor refuses: [`exception_signal`] says which signal that is.
    Exception {
        /// The processor's number of the exception.
        vector: u8,
        /// Its error code, 0 where there is none. For a debug trap (1) its status, as [`crate::arch::debug`] has it.
        code: u64,
    },
    /// An interrupt came; its handler has run.
    Interrupt,
}

/// Runs the program with these registers until its next trap.
///
/// The caller has activated the program's address space and restored its floating-point state. Whatever the
/// registers hold is safe: privileged bits are replaced, and an instruction pointer that the processor would refuse
/// comes back as an exception.
///
/// `H` is told when the CPU starts and ends to use the program's address space.
///
/// Inlined because each system call passes here: a call, and the trap by memory, cost it twenty instructions.
#[inline(always)]
pub fn enter_user<H: UserHooks>(context: &mut UserContext) -> Trap {
    context.sanitize();
    if !context.has_canonical_ip() {
        context.vector = VECTOR_PROTECTION;
        context.error = 0;
        return Trap::Exception { vector: VECTOR_PROTECTION as u8, code: 0 };
    }
    load_bases(context);
    H::enter();
    // SAFETY: the context is exclusively borrowed, mapped in the kernel half of every root and sanitized, so the
    // entries may store the program's registers through it and the return to user mode cannot fault in the kernel.
    // User code cannot touch kernel memory, unless whoever started the machine wants it so (`direct`).
    unsafe { heddle_enter_user(context) };
    let address = if context.vector == VECTOR_PAGE_FAULT {
        // The processor leaves it out where programs have the kernel's level (`direct`), and a handler expects it.
        context.error |= FAULT_BY_USER;
        fault_address()
    } else {
        0
    };
    H::leave();
    match context.vector {
        context::SYSCALL_VECTOR => Trap::SystemCall,
        VECTOR_PAGE_FAULT => Trap::PageFault {
            address,
            write: context.error & 2 != 0,
            execute: context.error & 16 != 0,
            present: context.error & 1 != 0,
        },
        context::INSTRUCTION_VECTOR => {
            context.vector = context::SYSCALL_VECTOR;
            Trap::CallInstruction
        }
        VECTOR_DEBUG => Trap::Exception { vector: VECTOR_DEBUG as u8, code: debug::take_status() },
        vector if vector < EXCEPTIONS => Trap::Exception { vector: vector as u8, code: context.error },
        vector => {
            interrupt::dispatch(vector as u8);
            Trap::Interrupt
        }
    }
}

fn fault_address() -> usize {
    Cr2::read_raw() as usize
}

/// Writes the FS and GS bases if another context's are loaded: a write of such a register is slow.
///
/// A program may lose its own bases by loading a segment register, so equal values count only for the same context.
#[inline]
fn load_bases(context: &mut UserContext) {
    let local = local::current();
    let is_same = local.loaded_context.load(Ordering::Relaxed) == core::ptr::from_ref(context) as usize;
    let is_fs = local.loaded_fs.load(Ordering::Relaxed) == context.fs_base;
    let is_gs = local.loaded_gs.load(Ordering::Relaxed) == context.gs_base;
    if !(is_same && is_fs && is_gs) {
        load_new_bases(local, context);
    }
}

fn load_new_bases(local: &local::CpuLocal, context: &mut UserContext) {
    context.sanitize_bases();
    FsBase::write(VirtAddr::new_truncate(context.fs_base));
    local.loaded_fs.store(context.fs_base, Ordering::Relaxed);
    // Every segment that a program can load has the base 0, so one that was 0 still is.
    if local.loaded_gs.load(Ordering::Relaxed) != context.gs_base || context.gs_base != 0 {
        KernelGsBase::write(VirtAddr::new_truncate(context.gs_base));
        local.loaded_gs.store(context.gs_base, Ordering::Relaxed);
    }
    local.loaded_context.store(core::ptr::from_ref(context) as usize, Ordering::Relaxed);
}

/// The signal of an exception, by Linux's table.
#[must_use]
pub fn exception_signal(vector: u8, code: u64) -> SignalCause {
    let (signal, code) = match vector {
        0 => (linux::SIGFPE, 1),                                            // FPE_INTDIV
        1 if code & 0xf != 0 && code & 1 << 14 == 0 => (linux::SIGTRAP, 4), // TRAP_HWBKPT
        1 => (linux::SIGTRAP, 2),                                           // TRAP_TRACE
        3 => (linux::SIGTRAP, 0x80),                                        // SI_KERNEL
        4 | 5 => (linux::SIGSEGV, 0x80),
        6 => (linux::SIGILL, 2),       // ILL_ILLOPN
        16 | 19 => (linux::SIGFPE, 3), // FPE_FLTDIV stands for all: the status words tell more
        17 => (linux::SIGBUS, 1),      // BUS_ADRALN
        11 | 12 => (linux::SIGBUS, 0x80),
        _ => (linux::SIGSEGV, 0x80),
    };
    SignalCause { signal, code }
}

/// The frame that the entries push when the kernel itself is interrupted.
#[repr(C)]
#[derive(Debug)]
struct KernelFrame {
    registers: [u64; 15],
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

#[unsafe(no_mangle)]
extern "C" fn heddle_kernel_trap(frame: &mut KernelFrame) {
    match frame.vector {
        vector if vector >= EXCEPTIONS => interrupt::dispatch(vector as u8),
        VECTOR_PAGE_FAULT => match user::fixup(frame.rip) {
            Some(target) => {
                user::note_fault(fault_address());
                frame.rip = target;
            }
            None => panic!(
                "page fault in the kernel at {:#x}: address {:#x}, error {:#x}, rsp {:#x}",
                frame.rip,
                fault_address(),
                frame.error,
                frame.rsp
            ),
        },
        VECTOR_PROTECTION if let Some(target) = user::fixup(frame.rip) => frame.rip = target,
        vector => panic!(
            "exception {vector} in the kernel at {:#x}: error {:#x}, rsp {:#x}, flags {:#x}, cs {:#x}, ss {:#x}, \
             registers {:x?}",
            frame.rip, frame.error, frame.rsp, frame.rflags, frame.cs, frame.ss, frame.registers
        ),
    }
}
