//! Kernel stacks that a CPU leaves and comes back to.
//!
//! Each CPU has a stack of its own, by its number; spare ones have the numbers from [`MAX_CPUS`] on. A page that is not
//! mapped lies below each, so an overflow faults.
//!
//! `unsafe` here: changing the stack pointer, and the first frame of a stack.
#![allow(unsafe_code)]

use core::arch::global_asm;

use crate::arch::x86_64::local::MAX_CPUS;
use crate::arch::x86_64::paging;

global_asm!(
    ".pushsection .text.stack, \"ax\", @progbits",
    ".global heddle_switch_stack",
    ".balign 16",
    "heddle_switch_stack:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rsp, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn heddle_switch_stack(left: *mut usize, to: usize);
    static heddle_boot_stack_top: u8;
}

/// Stacks beside those of the CPUs.
pub const SPARE_STACKS: usize = 64;

/// Words that a stack holds which was left: the registers that a function keeps for its caller, and where it goes on.
const FRAME_WORDS: usize = 7;

/// The upper end of a stack. A spare one that is needed for the first time is made of frames from `zeroed_frame`, which
/// it keeps. `None`: there is no memory for it, or no such stack.
///
/// Only one caller at a time may ask for the same stack.
#[must_use]
pub fn top(number: usize, zeroed_frame: fn() -> Option<u64>) -> Option<usize> {
    match number {
        0 => Some((&raw const heddle_boot_stack_top) as usize),
        number if number < MAX_CPUS + SPARE_STACKS => paging::map_stack(number, zeroed_frame),
        _ => None,
    }
}

/// Leaves the current stack where it is and calls `entry` on another, from its upper end. Returns when somebody
/// [switches](switch_to) to what is stored in `left`.
///
/// # Safety
/// `top` is from [`top`], nothing on that stack is in use any more, and nobody else uses it until `entry` has left it
/// for good. `left` stays valid until the stack is gone back to, on this CPU.
pub unsafe fn call_on(top: usize, entry: extern "C" fn() -> !, left: *mut usize) {
    let frame = top - (FRAME_WORDS + 1) * size_of::<usize>();
    let words = frame as *mut usize;
    // SAFETY: the stack is mapped and the caller's alone. The registers are zero, which ends backtraces, as the word
    // does where `entry` would find its return address.
    unsafe {
        words.write_bytes(0, FRAME_WORDS + 1);
        words.add(FRAME_WORDS - 1).write(entry as usize);
        heddle_switch_stack(left, frame);
    }
}

/// Goes back to a stack that was left, and leaves the current one where it is.
///
/// # Safety
/// `to` was stored by this function or [`call_on`], on this CPU, and nobody has gone back to it since. `left` is as
/// there.
pub unsafe fn switch_to(to: usize, left: *mut usize) {
    // SAFETY: the caller's promise: a frame of the function's own making lies there, on a stack as it was left.
    unsafe { heddle_switch_stack(left, to) };
}
