//! This CPU and the others.
//!
//! `unsafe` here: switching interrupts on and off.
#![allow(unsafe_code)]

use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::{interrupt, local};

static COUNT: AtomicUsize = AtomicUsize::new(1);

/// This CPU's number, from 0.
#[must_use]
pub fn id() -> usize {
    local::current_id()
}

/// How many CPUs run.
#[must_use]
pub fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Waits for an interrupt and runs its handler.
///
/// Interrupts are off before and after; one that arrived since they were switched off ends the wait at once, so a
/// caller that has just seen its queues empty loses no wake.
pub fn idle() {
    // SAFETY: `sti` takes effect after the next instruction, so nothing comes between it and `hlt`; the handlers
    // that run meanwhile keep every register (trap.s) and touch only atomics.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// Lets pending interrupts in: for long stretches of kernel code.
pub fn poll_interrupts() {
    // SAFETY: as in `idle`.
    unsafe { asm!("sti", "nop", "cli", options(nostack)) };
}

/// Interrupts a CPU, so that it comes out of [`idle`] or out of the program it runs.
pub fn kick(cpu: usize) {
    interrupt::send_kick(cpu);
}

/// Stops this CPU for good.
pub fn halt() -> ! {
    loop {
        // SAFETY: with interrupts off, only an NMI ends the halt, and the loop halts again.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
