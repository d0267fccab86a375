//! The machine as a whole: where the log goes, and how it ends.
//!
//! `unsafe` here: port I/O and frame pointers.
#![allow(unsafe_code)]

use core::arch::asm;

use ::x86_64::instructions::port::Port;
use heddle_abi::boot::{DEBUG_CONSOLE_PORT, DEBUG_EXIT_PORT};

use crate::arch::x86_64::{cpu, paging};

/// Appends bytes to the log.
pub fn write_console(bytes: &[u8]) {
    let mut port = Port::<u8>::new(DEBUG_CONSOLE_PORT);
    for &byte in bytes {
        // SAFETY: the debug console takes any byte; nothing else is at this port.
        unsafe { port.write(byte) };
    }
}

/// Ends the machine with this status for `isa-debug-exit`.
pub fn exit(status: u8) -> ! {
    // SAFETY: the debug-exit device; without one the write is ignored.
    unsafe { Port::<u8>::new(DEBUG_EXIT_PORT).write(status) };
    cpu::halt()
}

/// The return addresses on the current stack, innermost first, by frame pointers.
pub fn backtrace(mut visit: impl FnMut(usize)) {
    const FRAMES_MAX: usize = 64;
    let mut frame: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    for _ in 0..FRAMES_MAX {
        if !frame.is_multiple_of(8) || !paging::is_kernel_data(frame) {
            return;
        }
        // SAFETY: the address is aligned and lies in memory that the kernel maps; frames are pushed as (previous
        // frame pointer, return address), and a wrong one at worst reads a meaningless word.
        let (next, address) = unsafe { (*(frame as *const usize), *((frame + 8) as *const usize)) };
        if address == 0 {
            return;
        }
        visit(address);
        if next <= frame {
            return;
        }
        frame = next;
    }
}
