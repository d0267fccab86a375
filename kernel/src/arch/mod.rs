//! The machine, behind one contract per concern.
//!
//! Nothing outside this folder names a register, an instruction or a bit of a page-table entry. The folder of each
//! architecture has the same files and offers the same items, re-exported here; `contract` makes the compiler check
//! their signatures, so that a second architecture cannot drift from the first.
//!
//! - [`UserContext`]: the registers of a program; [`enter_user`] runs it until its next [`Trap`].
//! - [`FloatState`]: its floating-point and vector registers.
//! - [`cpu`]: which CPU this is, waiting for interrupts, waking another CPU.
//! - [`features`]: the processor's description.
//! - [`time`]: the monotonic clock and the one timer of each CPU.
//! - [`stack`]: the kernel's stacks, and going from one to another.
//! - [`interrupt`]: handlers of device interrupts.
//! - [`paging`]: page-table entries, loading a root, flushing translations.
//! - [`user`]: copies between kernel and user memory that survive a fault.
//! - [`signal`]: the frames that signal handlers are called with.
//! - [`debug`]: the registers as a debugger sees them, and what it has the processor watch.
//! - [`direct`]: calls in place of system calls.
//! - [`protection_key`]: the rights that a thread has to pages with a key.
//! - [`mitigations`]: measures against processors that run ahead of their checks.
//! - [`paravirt`]: what a hypervisor offers beyond a processor.
//! - [`stray`]: system calls that come to the kernel without the kernel's rights.
//! - [`machine`]: console of the log, and the end of the machine.
//!
//! **Interrupts** are off in kernel code. They are taken in user mode, in [`cpu::idle`] and in
//! [`cpu::poll_interrupts`], and nowhere else; handlers run to completion on the current stack and must neither
//! lock, nor allocate, nor free.

mod contract;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use self::x86_64 as current;

pub use current::{
    CALL_INSTRUCTION, ELF_MACHINE, FloatState, MACHINE_NAME, MAX_CPUS, Trap, UserContext, control, cpu,
    enter_user, exception_signal, features, hardware_capabilities, interrupt, machine, mitigations, paging,
    paravirt, signal, stack, stray, syscall_name, time, user,
};
pub use current::{debug, direct, float, protection_key};

/// Hooks that [`enter_user`] calls around the time in which a program runs.
///
/// A parameter and not a function pointer, because both are on the path of every system call.
pub trait UserHooks {
    /// The CPU is about to run the program: it drops now the translations that it must drop.
    fn enter();
    /// The CPU has left the program.
    fn leave();
}

/// A fault that is a signal to the program: number and `si_code`, as in signal(7) and sigaction(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalCause {
    /// Signal number.
    pub signal: u32,
    /// `si_code`.
    pub code: i32,
}
