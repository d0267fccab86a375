//! The frame that a handler finds on its stack on x86-64, `struct rt_sigframe`: the return address, `ucontext_t`,
//! `siginfo_t`; the floating-point state lies above it, aligned to 64 bytes.

use crate::signal::SignalSet;

/// The registers of `struct sigcontext`, in its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "registers are called by their names")]
pub struct Registers {
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rsp: u64,
    pub rip: u64,
    pub eflags: u64,
}

/// The parts of the frame that depend on the signal and the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The interrupted registers.
    pub registers: Registers,
    /// Code and stack segment.
    pub segments: (u16, u16),
    /// The exception's error code, its number, and the address of a page fault.
    pub fault: (u64, u64, u64),
    /// The mask to restore.
    pub mask: SignalSet,
    /// Address of the floating-point state, 0 if there is none.
    pub float_state: u64,
    /// `uc_flags`: whether the floating-point state has the XSAVE format.
    pub flags: u64,
    /// The alternate stack: address, `ss_flags`, size.
    pub stack: (u64, u32, u64),
    /// `siginfo_t`.
    pub information: [u64; 16],
    /// Where the handler returns to.
    pub restorer: u64,
}

/// Words of the frame.
pub const FRAME_WORDS: usize = 1 + CONTEXT_WORDS + 16;
/// Bytes of the frame.
pub const FRAME_BYTES: usize = FRAME_WORDS * 8;
/// Where `ucontext_t` starts, in bytes.
pub const CONTEXT_OFFSET: usize = 8;
/// Where `siginfo_t` starts, in bytes.
pub const INFORMATION_OFFSET: usize = 8 + CONTEXT_WORDS * 8;

/// `UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`: the saved stack segment counts.
pub const STACK_SEGMENT_FLAGS: u64 = 6;

/// `UC_FP_XSTATE`: the floating-point state has the XSAVE format.
pub const EXTENDED_STATE_FLAG: u64 = 1;

/// flags, link, stack (3), sigcontext (32), mask.
const CONTEXT_WORDS: usize = 2 + 3 + 32 + 1;

/// Addresses of the frame and of the floating-point state of `float_bytes`, on a stack whose pointer is (or whose top
/// is) `top`: the lower address is the frame's. `None` when the stack is too low to hold them.
#[must_use]
pub const fn place(top: u64, float_bytes: usize) -> Option<(u64, u64)> {
    let Some(float_end) = top.checked_sub(float_bytes as u64) else { return None };
    let float = float_end & !63;
    let Some(frame) = float.checked_sub(FRAME_BYTES as u64) else { return None };
    // A handler starts as if just called: the stack pointer is 8 short of a multiple of 16.
    let Some(frame) = (frame & !15).checked_sub(8) else { return None };
    Some((frame, float))
}

impl Frame {
    /// The frame's bytes, word by word.
    #[must_use]
    pub fn to_words(&self) -> [u64; FRAME_WORDS] {
        let r = &self.registers;
        let mut words = [0; FRAME_WORDS];
        words[0] = self.restorer;
        words[1] = self.flags;
        words[3] = self.stack.0;
        words[4] = u64::from(self.stack.1);
        words[5] = self.stack.2;
        let context = [
            r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax,
            r.rcx, r.rsp, r.rip, r.eflags,
        ];
        words[6..24].copy_from_slice(&context);
        words[24] = u64::from(self.segments.0) | u64::from(self.segments.1) << 48;
        words[25] = self.fault.0;
        words[26] = self.fault.1;
        words[27] = self.mask.0;
        words[28] = self.fault.2;
        words[29] = self.float_state;
        words[38] = self.mask.0;
        words[39..].copy_from_slice(&self.information);
        words
    }

    /// The values that rt_sigreturn(2) takes from a frame; everything else in it is ignored.
    #[must_use]
    pub fn from_words(words: &[u64; FRAME_WORDS]) -> Self {
        let w = |index: usize| words[6 + index];
        let registers = Registers {
            r8: w(0),
            r9: w(1),
            r10: w(2),
            r11: w(3),
            r12: w(4),
            r13: w(5),
            r14: w(6),
            r15: w(7),
            rdi: w(8),
            rsi: w(9),
            rbp: w(10),
            rbx: w(11),
            rdx: w(12),
            rax: w(13),
            rcx: w(14),
            rsp: w(15),
            rip: w(16),
            eflags: w(17),
        };
        let mut information = [0; 16];
        information.copy_from_slice(&words[39..]);
        Self {
            registers,
            segments: (words[24] as u16, (words[24] >> 48) as u16),
            fault: (words[25], words[26], words[28]),
            mask: SignalSet(words[38]),
            float_state: words[29],
            flags: words[1],
            stack: (words[3], words[4] as u32, words[5]),
            information,
            restorer: words[0],
        }
    }
}
