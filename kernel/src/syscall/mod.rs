//! System calls: from a trapped thread to the function that implements the call.
//!
//! A call *starts* and is either done or pending with a future ([`SyscallState`]); what never waits builds no future.
//! An implementation is a function `fn(&mut Call) -> SyscallResult`. It reads what it needs from user memory first and
//! has its side effects last, because on [`TryError::Fault`] the page is brought in and the function is started again
//! from its beginning. A result that it must store in user memory after a side effect (say, the two descriptors of
//! `pipe2`) is preceded by a check that the memory is writable ([`crate::memory::Space::probe_write`]), and stored by
//! [`Thread::store_result`], which never makes the call start again: another thread's fork may have protected the page
//! since the check.
//!
//! The same functions serve calls that a thread waits for and those that go on by themselves ([`asynchronous`]);
//! [`Caller`] is what they see of either.
//!
//! A call that has to wait returns [`SyscallState::Pending`]; see [`wait`] for how a wait meets signals. The future
//! owns the it uses (it may outlive the poll in which it was made, and resume while another address space is loaded).

pub mod aio;
pub mod asynchronous;
pub mod fs;
pub mod futex;
pub mod ipc;
pub mod memory;
pub mod mempolicy;
pub mod net;
pub mod process;
pub mod record;
pub mod sched;
pub mod signal;
pub mod stray;
pub mod submitted;
mod table;
pub mod thread_loop;
pub mod time;
pub mod trace;
pub mod uring;

use linux_raw_sys::general as linux;

use crate::arch::UserContext;
use crate::error::{Errno, PageFault, TryError};

pub use crate::call::*;

/// Missing pages that are brought in without a look at who else wants to run.
const FAULTS_ON_THE_SPOT: usize = 16;

/// Starts the call that the registers describe. Page faults are resolved here as long as that needs no waiting;
/// otherwise the caller resolves them and starts the call again.
pub fn start(thread: &Caller, context: &mut UserContext) -> SyscallResult {
    let number = context.syscall_number();
    start_call(number, &mut Call::new(thread, context))
}

/// Starts a call of this number, as [`start`] does.
fn start_call(number: usize, call: &mut Call<'_>) -> SyscallResult {
    #[cfg(feature = "checking")]
    crate::sched::stretch::call_begins(number);
    match table::invoke(number, call) {
        Err(TryError::Fault(fault)) => start_with_page(number, call, fault),
        outcome => outcome,
    }
}

/// Whether the call that the registers describe never fails for lack of memory in Linux, so that programs don't expect
/// it: the C library ends a program whose futex does. Such a call that has found no memory has had no effect, and is
/// started again when there is some.
#[must_use]
pub fn waits_for_memory(context: &UserContext) -> bool {
    const WAITING: [u32; 7] = [
        linux::__NR_futex,
        linux::__NR_nanosleep,
        linux::__NR_clock_nanosleep,
        linux::__NR_wait4,
        linux::__NR_waitid,
        linux::__NR_pause,
        linux::__NR_rt_sigtimedwait,
    ];
    WAITING.iter().any(|&number| number as usize == context.syscall_number())
}

/// Brings in the pages that a call misses, and starts it again after each.
#[cold]
fn start_with_page(number: usize, call: &mut Call<'_>, mut fault: PageFault) -> SyscallResult {
    for _ in 0..FAULTS_ON_THE_SPOT {
        let Some(resolved) = call.thread.space().try_fault_in(fault) else { break };
        match resolved {
            Ok(()) => call.thread.count_fault(),
            // The caller waits for memory.
            Err(Errno::ENOMEM) => break,
            Err(error) => return Err(error.into()),
        }
        match table::invoke(number, call) {
            Err(TryError::Fault(next)) => fault = next,
            outcome => return outcome,
        }
    }
    // Others may take the pages away again and again: the caller looks whether it has to stop.
    Err(TryError::Fault(fault))
}
