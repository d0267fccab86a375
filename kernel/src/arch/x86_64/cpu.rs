//! This CPU and the others.
//!
//! `unsafe` here: switching interrupts on and off.
#![allow(unsafe_code)]

use core::arch::asm;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::arch::x86_64::{interrupt, local};

static COUNT: AtomicUsize = AtomicUsize::new(1);

/// This CPU's number, from 0.
#[must_use]
#[inline]
pub fn id() -> usize {
    local::current_id()
}

/// How many CPUs run.
#[must_use]
#[inline]
pub fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

pub(super) fn set_count(count: usize) {
    COUNT.store(count, Ordering::Relaxed);
}

/// Starts the other CPUs; they run `entry`, on stacks of frames from `zeroed_frame`, which are never freed.
pub fn start_others(entry: fn() -> !, zeroed_frame: fn() -> Option<u64>) {
    crate::arch::x86_64::smp::start_others(entry, zeroed_frame);
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

/// Whether an interrupt could come now.
#[cfg(feature = "checking")]
pub fn are_interrupts_on() -> bool {
    ::x86_64::instructions::interrupts::are_enabled()
}

/// Interrupts a CPU, so that it comes out of [`idle`] or out of the program it runs.
pub fn kick(cpu: usize) {
    interrupt::send_kick(cpu);
}

/// The same for a set of CPUs, one bit each.
pub fn kick_all(cpus: u64) {
    interrupt::send_kicks(cpus);
}

/// Stops this CPU permanently.
pub fn halt() -> ! {
    loop {
        // SAFETY: with interrupts off, only an NMI ends the halt, and the loop halts again.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

/// A word that programs cannot predict: from the processor's generator, or mixed from its counter where it has none.
#[must_use]
pub fn random() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
    const HAS_RDRAND: u32 = 1 << 30;
    if core::arch::x86_64::__cpuid(1).ecx & HAS_RDRAND != 0 {
        for _ in 0..10 {
            let (value, done): (u64, u8);
            // SAFETY: the processor has the instruction; it writes two registers and the carry flag.
            unsafe {
                asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) done, options(nomem, nostack))
            };
            if done != 0 {
                return value;
            }
        }
    }
    // splitmix64 over the counter.
    let step = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let mut mixed = step ^ crate::arch::x86_64::time::counter();
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
