//! Signal frames: how a handler is called and how it returns. The layout is `heddle_kernel_core::signal::x86_64`'s.

use heddle_kernel_core::signal::x86_64::{
    CONTEXT_OFFSET, EXTENDED_STATE_FLAG, FRAME_BYTES, FRAME_WORDS, Frame, INFORMATION_OFFSET, Registers,
    STACK_SEGMENT_FLAGS, place,
};
use heddle_kernel_core::signal::{Action, AlternateStack, Detail, Information, Signal, SignalSet};
use linux_raw_sys::general::SA_RESTORER;

use crate::arch::x86_64::{UserContext, float};

/// Below the stack pointer lies memory that a function without calls may use.
const RED_ZONE_BYTES: u64 = 128;
const FLOAT_HEAD_BYTES: usize = 512;
/// Where Linux says what the floating-point state consists of.
const SOFTWARE_OFFSET: usize = 464;
/// `FP_XSTATE_MAGIC1` and `FP_XSTATE_MAGIC2`.
const MAGIC_START: u32 = 0x4650_5853;
const MAGIC_END: u32 = 0x4650_5845;
const MAGIC_END_BYTES: usize = 4;

/// The smallest stack that a handler can be called on: `AT_MINSIGSTKSZ`.
#[must_use]
pub fn minimum_stack_bytes() -> usize {
    const ALIGNMENT_BYTES: usize = 64 + 16;
    FRAME_BYTES + float::visible_bytes() + MAGIC_END_BYTES + ALIGNMENT_BYTES
}

/// The parameters of a handler's call.
pub struct Setup<'a> {
    /// The signal.
    pub information: &'a Information,
    /// The action that the program set.
    pub action: &'a Action,
    /// The mask to restore when the handler returns.
    pub mask: SignalSet,
    /// Whether user interrupts were allowed; kept for the handler's return.
    pub is_interruptible: bool,
    /// The alternate stack as it is now.
    pub stack: &'a AlternateStack,
    /// The top of the alternate stack if the handler is to run there.
    pub top: Option<usize>,
    /// The floating-point state, with the rights of protection keys or without.
    pub float: &'a [u8],
    /// Whether it has them.
    pub has_key_rights: bool,
}

/// A frame that is ready to be written.
pub struct HandlerCall {
    /// Where it goes.
    pub address: usize,
    /// The frame.
    pub words: [u64; FRAME_WORDS],
    /// Where the floating-point state goes.
    pub float_address: usize,
    /// The start of the floating-point state as the frame has it; the rest is as it was passed.
    pub float_head: [u8; FLOAT_HEAD_BYTES],
    is_extended: bool,
}

/// Lays out the frame; `None` if the program gave no return address or the stack is too low.
#[must_use]
pub fn prepare(context: &UserContext, setup: &Setup<'_>) -> Option<HandlerCall> {
    if !setup.action.flags.has(SA_RESTORER) {
        return None;
    }
    let is_extended = float::components() != 0;
    let float_bytes = setup.float.len() + if is_extended { MAGIC_END_BYTES } else { 0 };
    let top = setup.top.map_or(context.rsp.wrapping_sub(RED_ZONE_BYTES), |top| top as u64);
    let (address, float_address) = place(top, float_bytes)?;
    let mut float_head = [0; FLOAT_HEAD_BYTES];
    float_head.copy_from_slice(setup.float.get(..FLOAT_HEAD_BYTES)?);
    if is_extended {
        let mut put = |offset: usize, bytes: &[u8]| {
            let at = SOFTWARE_OFFSET + offset;
            float_head[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &MAGIC_START.to_ne_bytes());
        put(4, &(float_bytes as u32).to_ne_bytes());
        let components = if setup.has_key_rights { float::visible_components() } else { float::components() };
        put(8, &components.to_ne_bytes());
        put(16, &(setup.float.len() as u32).to_ne_bytes());
    }
    let frame = Frame {
        registers: registers(context),
        segments: (context.cs as u16, context.ss as u16),
        fault: fault(context, setup.information),
        mask: setup.mask,
        float_state: float_address,
        flags: STACK_SEGMENT_FLAGS
            | if is_extended { EXTENDED_STATE_FLAG } else { 0 }
            | if setup.is_interruptible { INTERRUPTIBLE_FLAG } else { 0 },
        stack: (setup.stack.base as u64, setup.stack.flags_seen(context.sp()), setup.stack.size as u64),
        information: setup.information.to_words(),
        restorer: setup.action.restorer as u64,
    };
    Some(HandlerCall {
        address: address as usize,
        words: frame.to_words(),
        float_address: float_address as usize,
        float_head,
        is_extended,
    })
}

impl HandlerCall {
    /// The bytes that follow the floating-point state.
    #[must_use]
    pub fn float_tail(&self) -> &'static [u8] {
        const TAIL: [u8; MAGIC_END_BYTES] = MAGIC_END.to_ne_bytes();
        if self.is_extended { &TAIL } else { &[] }
    }

    /// Makes the handler the next thing to run: `handler(signal, siginfo, ucontext)`.
    pub fn enter(&self, context: &mut UserContext, handler: usize, signal: Signal) {
        context.set_ip(handler);
        context.set_sp(self.address);
        context.set_argument(0, signal.number() as usize);
        context.set_argument(1, self.address + INFORMATION_OFFSET);
        context.set_argument(2, self.address + CONTEXT_OFFSET);
        context.set_result(0);
        context.set_flags(context.flags() & !FLAGS_CLEARED);
    }
}

/// Direction, resume and trap flag: cleared for a handler.
const FLAGS_CLEARED: usize = 0x1_0500;

/// In a frame's flags, where Linux has none: user interrupts were allowed.
const INTERRUPTIBLE_FLAG: u64 = 1 << 31;

/// The state that rt_sigreturn(2) restores beyond registers.
pub struct Restored {
    /// User interrupts are allowed again.
    pub is_interruptible: bool,
    /// The signal mask.
    pub mask: SignalSet,
    /// Where the floating-point state is; 0 for none.
    pub float_address: usize,
    /// The alternate stack: base, flags, size.
    pub stack: (usize, u32, usize),
}

/// Where the frame is that rt_sigreturn(2) is called with: the handler's return has popped the first word.
#[must_use]
pub fn frame_address(context: &UserContext) -> usize {
    context.sp().wrapping_sub(size_of::<u64>())
}

/// Takes the registers from a frame. Segments stay, and flags that a program may not set are left out, whatever the
/// frame says.
pub fn restore(context: &mut UserContext, words: &[u64; FRAME_WORDS]) -> Restored {
    let frame = Frame::from_words(words);
    let r = frame.registers;
    (context.r8, context.r9, context.r10, context.r11) = (r.r8, r.r9, r.r10, r.r11);
    (context.r12, context.r13, context.r14, context.r15) = (r.r12, r.r13, r.r14, r.r15);
    (context.rdi, context.rsi, context.rbp, context.rbx) = (r.rdi, r.rsi, r.rbp, r.rbx);
    (context.rdx, context.rax, context.rcx) = (r.rdx, r.rax, r.rcx);
    (context.rsp, context.rip) = (r.rsp, r.rip);
    context.set_flags(r.eflags as usize);
    let (base, flags, size) = frame.stack;
    Restored {
        is_interruptible: frame.flags & INTERRUPTIBLE_FLAG != 0,
        mask: frame.mask,
        float_address: frame.float_state as usize,
        stack: (base as usize, flags, size as usize),
    }
}

/// Whether a frame's floating-point state, of which these are the first bytes, comes with the rights of protection keys.
#[must_use]
pub fn has_key_rights(state: &[u8]) -> bool {
    let word = |offset: usize| {
        state
            .get(SOFTWARE_OFFSET + offset..)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(0, |&bytes| u32::from_ne_bytes(bytes))
    };
    let has_size = word(16) as usize >= float::visible_bytes();
    word(0) == MAGIC_START && has_size && u64::from(word(8)) & float::KEY_RIGHTS != 0
}

/// The number of the trap that leaves an address.
const PAGE_FAULT: i32 = 14;

/// Error code, trap number and address, for a signal that an exception of this thread caused.
fn fault(context: &UserContext, information: &Information) -> (u64, u64, u64) {
    match information.detail {
        Detail::Fault { address, trap: PAGE_FAULT } => {
            (context.error_code(), PAGE_FAULT as u64, address as u64)
        }
        Detail::Key { address, .. } => (context.error_code(), PAGE_FAULT as u64, address as u64),
        Detail::Fault { trap, .. } => (context.error_code(), trap as u64, 0),
        _ => (0, 0, 0),
    }
}

fn registers(context: &UserContext) -> Registers {
    Registers {
        r8: context.r8,
        r9: context.r9,
        r10: context.r10,
        r11: context.r11,
        r12: context.r12,
        r13: context.r13,
        r14: context.r14,
        r15: context.r15,
        rdi: context.rdi,
        rsi: context.rsi,
        rbp: context.rbp,
        rbx: context.rbx,
        rdx: context.rdx,
        rax: context.rax,
        rcx: context.rcx,
        rsp: context.rsp,
        rip: context.rip,
        eflags: context.rflags,
    }
}
