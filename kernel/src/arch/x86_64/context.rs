//! The registers of a program.

use core::mem::offset_of;

use crate::arch::x86_64::descriptor::{USER_CODE, USER_DATA};

/// General registers of a program at its last trap, with which it continues.
///
/// Field order is the order in which the trap entries push, from the end down; the size is a multiple of 16
/// because the processor aligns the stack pointer before it pushes.
#[repr(C, align(16))]
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "registers have no better names")]
pub struct UserContext {
    /// Base of FS: the thread pointer.
    pub fs_base: u64,
    /// Base of GS.
    pub gs_base: u64,
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// Number of the last trap.
    pub(super) vector: u64,
    /// Error code of the last trap; the call number if it was a system call.
    pub(super) error: u64,
    pub rip: u64,
    pub(super) cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub(super) ss: u64,
}

const _: () = assert!(size_of::<UserContext>() == SIZE && SIZE.is_multiple_of(16));
const _: () = assert!(offset_of!(UserContext, ss) + 8 == SIZE);

/// Offsets for the assembly entries.
pub const SIZE: usize = 192;
pub const CS: usize = offset_of!(UserContext, cs);
pub const SS: usize = offset_of!(UserContext, ss);
pub const R15: usize = offset_of!(UserContext, r15);
pub const R11: usize = offset_of!(UserContext, r11);
pub const RCX: usize = offset_of!(UserContext, rcx);
pub const VECTOR: usize = offset_of!(UserContext, vector);
pub const IP: usize = offset_of!(UserContext, rip);
pub const FLAGS: usize = offset_of!(UserContext, rflags);
pub const SP: usize = offset_of!(UserContext, rsp);

/// Flags that a program may set: carry, parity, adjust, zero, sign, trap, direction, overflow, resume, alignment
/// check, identification.
const FLAGS_OF_USER: u64 = 0x0025_0dd5;
/// Flags that are always set: the reserved bit 1, and interrupts on.
const FLAGS_FIXED: u64 = 0x0202;

impl UserContext {
    /// All registers zero, interrupts on.
    #[must_use]
    pub const fn new_user() -> Self {
        Self {
            fs_base: 0,
            gs_base: 0,
            r15: 0,
            r14: 0,
            r13: 0,
            r12: 0,
            rbp: 0,
            rbx: 0,
            r11: 0,
            r10: 0,
            r9: 0,
            r8: 0,
            rax: 0,
            rcx: 0,
            rdx: 0,
            rsi: 0,
            rdi: 0,
            vector: 0,
            error: 0,
            rip: 0,
            cs: USER_CODE as u64,
            rflags: FLAGS_FIXED,
            rsp: 0,
            ss: USER_DATA as u64,
        }
    }

    /// The number of the system call; meaningful after [`crate::arch::x86_64::Trap::SystemCall`], and unchanged by
    /// [`Self::set_result`].
    #[must_use]
    pub const fn syscall_number(&self) -> usize {
        // Linux looks at the lower half only, as a signed number.
        self.error as i32 as usize
    }

    /// Makes the registers those of a program that is in system call `number`.
    pub fn set_syscall(&mut self, number: usize) {
        self.vector = SYSCALL_VECTOR;
        self.error = number as u64;
    }

    /// Makes the program repeat the system call it has just made when it runs next.
    pub fn restart_syscall(&mut self) {
        self.rax = self.error;
        self.rip = self.rip.wrapping_sub(SYSCALL_LENGTH);
    }

    /// Argument `index` (0 to 5) of the system call; 0 for a higher index.
    #[must_use]
    pub const fn argument(&self, index: usize) -> usize {
        let value = match index {
            0 => self.rdi,
            1 => self.rsi,
            2 => self.rdx,
            3 => self.r10,
            4 => self.r8,
            5 => self.r9,
            _ => 0,
        };
        value as usize
    }

    /// Sets argument `index` as a *function* gets it (the entry of a signal handler or a thread): the fourth one
    /// differs from that of a system call.
    pub fn set_argument(&mut self, index: usize, value: usize) {
        let register = match index {
            0 => &mut self.rdi,
            1 => &mut self.rsi,
            2 => &mut self.rdx,
            3 => &mut self.rcx,
            4 => &mut self.r8,
            5 => &mut self.r9,
            _ => return,
        };
        *register = value as u64;
    }

    /// The result register.
    #[must_use]
    pub const fn result(&self) -> usize {
        self.rax as usize
    }

    /// Sets the result register.
    pub fn set_result(&mut self, value: usize) {
        self.rax = value as u64;
    }

    /// Instruction pointer.
    #[must_use]
    pub const fn ip(&self) -> usize {
        self.rip as usize
    }

    /// Sets the instruction pointer; any value is safe, a bad one is a fault of the program.
    pub fn set_ip(&mut self, value: usize) {
        self.rip = value as u64;
    }

    /// Stack pointer.
    #[must_use]
    pub const fn sp(&self) -> usize {
        self.rsp as usize
    }

    /// Sets the stack pointer.
    pub fn set_sp(&mut self, value: usize) {
        self.rsp = value as u64;
    }

    /// Thread pointer.
    #[must_use]
    pub const fn tls(&self) -> usize {
        self.fs_base as usize
    }

    /// Sets the thread pointer. A value outside the lower half is replaced by 0.
    pub fn set_tls(&mut self, value: usize) {
        self.fs_base = value as u64;
    }

    /// The flags register.
    #[must_use]
    pub const fn flags(&self) -> usize {
        self.rflags as usize
    }

    /// Sets the flags that a program may set, and leaves the rest as it must be.
    pub fn set_flags(&mut self, value: usize) {
        self.rflags = value as u64 & FLAGS_OF_USER | FLAGS_FIXED;
    }

    /// Error code of the last exception, as signal frames show it.
    #[must_use]
    pub const fn error_code(&self) -> u64 {
        self.error
    }

    /// Number of the last exception, as signal frames show it.
    #[must_use]
    pub const fn trap_number(&self) -> u64 {
        self.vector
    }

    /// Whether the last trap was a system call.
    #[must_use]
    pub const fn in_syscall(&self) -> bool {
        self.vector == SYSCALL_VECTOR
    }

    /// Replaces whatever a program may not have: privileged flags, kernel selectors.
    #[inline]
    pub(super) const fn sanitize(&mut self) {
        self.rflags = self.rflags & FLAGS_OF_USER | FLAGS_FIXED;
        self.cs = USER_CODE as u64;
        self.ss = USER_DATA as u64;
    }

    /// Replaces base addresses that the processor would refuse.
    pub(super) const fn sanitize_bases(&mut self) {
        if self.fs_base >> 47 != 0 {
            self.fs_base = 0;
        }
        if self.gs_base >> 47 != 0 {
            self.gs_base = 0;
        }
    }

    /// Whether the processor can be asked to continue at `rip`: sign-extended from bit 47.
    pub(super) const fn has_canonical_ip(&self) -> bool {
        (self.rip as i64 >> 47).wrapping_add(1) as u64 <= 1
    }
}

/// `vector` of a system call.
pub const SYSCALL_VECTOR: u64 = 256;
/// `vector` of a system call by the instruction, where a call could take its place: see [`crate::arch::direct`].
pub const INSTRUCTION_VECTOR: u64 = 258;
/// The instruction by which programs call the kernel.
pub const CALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];
pub(super) const SYSCALL_LENGTH: u64 = CALL_INSTRUCTION.len() as u64;
