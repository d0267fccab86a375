//! System calls that come to the kernel's entry without the kernel's rights.
//!
//! A KVM that interprets the kernel and leaves programs to the processor may enter so: the instruction has done all of
//! its work but to change the level, and the program faults at the entry. Such a fault is then taken for the call. Only
//! a machine under KVM can be of that kind, and whether it is, the kernel finds out by a call of its own before the
//! first program runs; on all others a program that jumps to the entry gets its signal.
//!
//! # What a program gains where such faults are calls
//! It can jump to the entry with anything in its registers. The fault is a call only if the program could execute a
//! `syscall` at the address before the one in RCX (the caller of [`UserContext::strayed_call`] looks), and then it is
//! the call that a jump to *that* address makes: the same number and arguments, the same address for filters and
//! tracers, the same place to go on at. RCX and R11 are the program's own after a call anyway. R11 stands for the
//! flags, of which it can set those that `popf` sets. Nothing else of the saved state comes from it, and the fault is
//! one from user mode, so the kernel was not running. An interrupt, a signal or a tracer's stop between the
//! instruction and the fault shows the entry as the program's address and goes on to the fault.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::arch::x86_64::context::SYSCALL_LENGTH;
use crate::arch::x86_64::{UserContext, descriptor, direct, paravirt};

/// How calls come to the kernel.
static CALLS: AtomicU8 = AtomicU8::new(ARRIVE);
const ARRIVE: u8 = 0;
const STRAY: u8 = 1;
const UNKNOWN: u8 = 2;

/// Looks for a hypervisor that may be of that kind. Where programs have the kernel's level, no call changes it.
pub(super) fn install() {
    if paravirt::is_kvm() && !direct::is_on() {
        CALLS.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// Whether the kernel has to find out how calls come.
#[must_use]
#[inline]
pub fn is_unknown() -> bool {
    CALLS.load(Ordering::Relaxed) == UNKNOWN
}

/// Says whether a call has strayed.
pub fn settle(has_strayed: bool) {
    CALLS.store(if has_strayed { STRAY } else { ARRIVE }, Ordering::Relaxed);
}

impl UserContext {
    /// Whether a fault of the program at this address is one at the kernel's entry.
    #[must_use]
    pub fn is_at_entry(&self, fault_address: usize) -> bool {
        let entry = descriptor::syscall_entry();
        fault_address as u64 == entry && self.rip == entry
    }

    /// The address of the `syscall` by which a program came to the kernel's entry without the kernel's rights, if it
    /// faulted there and calls stray. The caller has to see to it that the program may execute the instruction there,
    /// because it can jump to the entry, with anything in the register.
    #[must_use]
    pub fn strayed_call(&self, fault_address: usize) -> Option<usize> {
        (CALLS.load(Ordering::Relaxed) == STRAY && self.is_at_entry(fault_address))
            .then(|| self.rcx.wrapping_sub(SYSCALL_LENGTH) as usize)
    }

    /// Makes a call of [`Self::strayed_call`] what it was to be.
    pub fn adopt_call(&mut self) {
        self.set_syscall(self.rax as usize);
        self.set_ip(self.rcx as usize);
        self.set_flags(self.r11 as usize);
    }
}
