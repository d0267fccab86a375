//! A program's processor as a debugger sees it: its registers in the layout of `struct user`, and the debug registers.
//!
//! `unsafe` here: the debug registers, which only cause traps.
#![allow(unsafe_code)]

use core::arch::asm;

use crate::arch::x86_64::UserContext;
use crate::arch::x86_64::context::SYSCALL_VECTOR;
use crate::error::Errno;

/// The words of `struct user_regs_struct`.
pub const REGISTER_WORDS: usize = 27;
/// `AUDIT_ARCH_X86_64`.
pub const AUDIT_ARCHITECTURE: u32 = 0xc000_003e;
/// The size of `struct user`, and where the debug registers are in it.
pub const USER_BYTES: usize = 928;
pub const DEBUG_OFFSET: usize = 848;

/// Base addresses are in the lower half.
const ADDRESS_LIMIT: u64 = (1 << 47) - 4096;
const TRAP_FLAG: u64 = 0x100;
/// The vector of a context that was not made by a trap: no call is restarted in it.
const NO_VECTOR: u64 = 257;

mod place {
    pub const RAX: usize = 10;
    pub const CALL: usize = 15;
    pub const RIP: usize = 16;
    pub const CS: usize = 17;
    pub const FLAGS: usize = 18;
    pub const SS: usize = 20;
    pub const FS_BASE: usize = 21;
    pub const GS_BASE: usize = 22;
}

/// The index of the instruction pointer, and the stack pointer, among the words.
pub const IP_WORD: usize = place::RIP;
pub const SP_WORD: usize = 19;

/// The registers in the order of `struct user_regs_struct`. `hides_step`: the trap flag is the debugger's.
#[must_use]
pub fn registers(context: &UserContext, hides_step: bool) -> [u64; REGISTER_WORDS] {
    let call = if context.in_syscall() { context.error } else { u64::MAX };
    let flags = if hides_step { context.rflags & !TRAP_FLAG } else { context.rflags };
    let c = context;
    [
        c.r15, c.r14, c.r13, c.r12, c.rbp, c.rbx, c.r11, c.r10, c.r9, c.r8, c.rax, c.rcx, c.rdx, c.rsi,
        c.rdi, call, c.rip, c.cs, flags, c.rsp, c.ss, c.fs_base, c.gs_base, 0, 0, 0, 0,
    ]
}

/// Sets the register at an index of `struct user_regs_struct`.
///
/// # Errors
/// `EIO`: the processor would refuse the value.
pub fn set_register(context: &mut UserContext, index: usize, value: u64) -> Result<(), Errno> {
    let register = match index {
        0 => &mut context.r15,
        1 => &mut context.r14,
        2 => &mut context.r13,
        3 => &mut context.r12,
        4 => &mut context.rbp,
        5 => &mut context.rbx,
        6 => &mut context.r11,
        7 => &mut context.r10,
        8 => &mut context.r9,
        9 => &mut context.r8,
        place::RAX => &mut context.rax,
        11 => &mut context.rcx,
        12 => &mut context.rdx,
        13 => &mut context.rsi,
        14 => &mut context.rdi,
        place::CALL => {
            // Only the lower half counts, as a number with a sign.
            let is_call = (value as i32) >= 0;
            context.vector = if is_call { SYSCALL_VECTOR } else { NO_VECTOR };
            context.error = if is_call { value } else { 0 };
            return Ok(());
        }
        place::RIP => &mut context.rip,
        place::FLAGS => {
            context.set_flags(value as usize);
            return Ok(());
        }
        SP_WORD => &mut context.rsp,
        place::FS_BASE | place::GS_BASE if value >= ADDRESS_LIMIT => return Err(Errno::EIO),
        place::FS_BASE => &mut context.fs_base,
        place::GS_BASE => &mut context.gs_base,
        // A program's segments are always the same; what is refused is what no program could have.
        place::CS | place::SS if value & 3 != 3 => return Err(Errno::EIO),
        place::CS | place::SS => return Ok(()),
        _ if value & 3 != 3 && value != 0 => return Err(Errno::EIO),
        _ => return Ok(()),
    };
    *register = value;
    Ok(())
}

/// Sets the trap flag for a step; `false`: the program has set it.
#[must_use]
pub const fn begin_step(context: &mut UserContext) -> bool {
    let is_new = context.rflags & TRAP_FLAG == 0;
    context.rflags |= TRAP_FLAG;
    is_new
}

/// Forgets what the processor has noted about traps.
pub(super) fn forget_status() {
    let _ = take_status();
}

/// Clears the trap flag.
pub const fn end_step(context: &mut UserContext) {
    context.rflags &= !TRAP_FLAG;
}

/// The debug registers of a thread: four addresses, the status of the last trap (6), and what is watched (7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DebugRegisters([u64; REGISTERS]);

/// How many debug registers there are.
pub const REGISTERS: usize = 8;

/// In DR7: local and global enables of the four addresses.
const ENABLES: u64 = 0xff;
/// In DR7: the bits that stay clear, `DR_CONTROL_RESERVED` of Linux and the global enables' general detection.
const CONTROL_RESERVED: u64 = 0xffff_ffff_0000_fc00;
/// DR7 with nothing watched.
const CONTROL_IDLE: u64 = 0x400;
/// DR6 as the processor resets it.
const STATUS_IDLE: u64 = 0xffff_0ff0;
/// In DR6: a step.
const STATUS_STEP: u64 = 1 << 14;

impl DebugRegisters {
    /// The register of a number, as a debugger reads it.
    #[must_use]
    pub const fn get(&self, index: usize) -> u64 {
        if index == 6 { self.0[6] ^ STATUS_IDLE } else { self.0[index] }
    }

    /// Whether anything is watched.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.0[7] & ENABLES != 0
    }

    /// Sets a register.
    ///
    /// # Errors
    /// `EIO`: there is none of this number. `EINVAL`: the address is the kernel's, or what is to be watched does not
    /// exist or is not aligned.
    pub fn set(&mut self, index: usize, value: u64) -> Result<(), Errno> {
        match index {
            0..=3 => {
                if value >= ADDRESS_LIMIT {
                    return Err(Errno::EINVAL);
                }
                let mut changed = *self;
                changed.0[index] = value;
                changed.check()?;
                *self = changed;
            }
            6 => self.0[6] = value ^ STATUS_IDLE,
            7 => {
                let mut changed = *self;
                changed.0[7] = value & !CONTROL_RESERVED;
                changed.check()?;
                *self = changed;
            }
            _ => return Err(Errno::EIO),
        }
        Ok(())
    }

    /// Checks that what is enabled can be watched.
    fn check(&self) -> Result<(), Errno> {
        for index in 0..4 {
            if self.0[7] >> (2 * index) & 3 == 0 {
                continue;
            }
            let kind = self.0[7] >> (16 + 4 * index) & 15;
            let (access, length) = (kind & 3, kind >> 2);
            let bytes = [1, 2, 8, 4][length as usize];
            // Ports (2) are not watched, and instructions (0) have the length 1.
            if access == 2 || access == 0 && length != 0 || !self.0[index].is_multiple_of(bytes) {
                return Err(Errno::EINVAL);
            }
        }
        Ok(())
    }

    /// Adds the status of a trap.
    pub const fn note(&mut self, status: u64) {
        self.0[6] |= status & (STATUS_STEP | 15);
    }

    /// Makes the processor watch; the program of the thread runs next.
    pub fn load(&self) {
        let [first, second, third, fourth, _, _, _, control] = self.0;
        // SAFETY: the addresses are of the lower half (`set`), so that accesses of the kernel are watched only where it
        // copies for a program; such a trap is dropped (trap.s).
        unsafe {
            asm!(
                "mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}", "mov dr7, {}",
                in(reg) first, in(reg) second, in(reg) third, in(reg) fourth, in(reg) control | CONTROL_IDLE,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Makes the processor watch nothing.
    pub fn unload() {
        // SAFETY: watching nothing causes no trap.
        unsafe { asm!("mov dr7, {}", in(reg) CONTROL_IDLE, options(nostack, preserves_flags)) };
    }
}

/// Whether an exception is a debug trap.
#[must_use]
pub const fn is_trap(vector: u8) -> bool {
    vector == 1
}

/// The components of the floating-point state, as `NT_X86_XSTATE` names them.
#[must_use]
pub fn components() -> u64 {
    crate::arch::x86_64::float::components()
}

/// The status of the debug trap that has just come; cleared for the next.
pub(super) fn take_status() -> u64 {
    let status: u64;
    // SAFETY: reads and resets what the processor notes about traps.
    unsafe {
        asm!("mov {}, dr6", out(reg) status, options(nostack, preserves_flags));
        asm!("mov dr6, {}", in(reg) STATUS_IDLE, options(nostack, preserves_flags));
    }
    (status ^ STATUS_IDLE) & (STATUS_STEP | 15)
}
