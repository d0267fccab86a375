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
//! What has to wait returns [`SyscallState::Pending`]; see [`wait`] for how a wait meets signals. The future owns what
//! it uses (it may outlive the poll in which it was made, and resume while another address space is loaded).

pub mod asynchronous;
pub mod caller;
pub mod fs;
pub mod futex;
pub mod ipc;
pub mod memory;
pub mod net;
pub mod process;
pub mod record;
pub mod sched;
pub mod signal;
mod table;
pub mod time;
pub mod trace;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;

use crate::arch::UserContext;
use crate::error::{Errno, TryError};

pub use crate::memory::values as user;
pub use crate::process::thread::DeferredCopyOut;
pub use crate::syscall::caller::Caller;

/// What a pending call is waiting in. Its output is what the program gets.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<usize, Errno>> + Send>>;

/// A call that has started.
pub enum SyscallState {
    /// It is finished.
    Done(usize),
    /// It waits.
    Pending(CallFuture),
    /// It is finished with 0 once other threads have had their turn. Nothing else waits so often that a future of its
    /// own would be too dear.
    Yield,
}

impl From<usize> for SyscallState {
    fn from(value: usize) -> Self {
        Self::Done(value)
    }
}

/// How `restart_syscall` goes on with a call that a signal without a handler interrupted.
pub type Restart = Arc<dyn Fn(&mut Call<'_>) -> SyscallResult + Send + Sync>;

/// What starting a call gave.
pub type SyscallResult = Result<SyscallState, TryError>;

/// A system call in the making.
pub struct Call<'a> {
    /// Who calls.
    pub thread: &'a Caller,
    /// Its registers. Only calls that replace them (`rt_sigreturn`, `execve`, `clone`) look here.
    pub context: &'a mut UserContext,
    arguments: [usize; 6],
}

impl<'a> Call<'a> {
    /// The call that the thread's registers describe.
    #[inline]
    pub fn new(thread: &'a Caller, context: &'a mut UserContext) -> Self {
        let arguments = core::array::from_fn(|index| context.argument(index));
        Self { thread, context, arguments }
    }

    /// A call with these arguments, of a kind that does not look at the registers.
    pub const fn with_arguments(
        thread: &'a Caller,
        context: &'a mut UserContext,
        arguments: [usize; 6],
    ) -> Self {
        Self { thread, context, arguments }
    }

    /// Argument `index`, 0 to 5, as it was passed.
    #[must_use]
    pub const fn word(&self, index: usize) -> usize {
        self.arguments[index]
    }

    /// Argument `index` as a C `int`: the upper half of the register is not looked at.
    #[must_use]
    pub const fn int(&self, index: usize) -> i32 {
        self.arguments[index] as i32
    }

    /// Argument `index` as a C `unsigned int`.
    #[must_use]
    pub const fn uint(&self, index: usize) -> u32 {
        self.arguments[index] as u32
    }
}

/// Wraps the future of a call that waits.
///
/// # Errors
/// `ENOMEM`.
pub fn pending(future: impl Future<Output = Result<usize, Errno>> + Send + 'static) -> SyscallResult {
    let future: CallFuture = Box::into_pin(crate::memory::fallible::try_box(future)?);
    Ok(SyscallState::Pending(future))
}

/// Starts the call that the registers describe. Page faults are resolved here as long as that needs no waiting;
/// otherwise the caller resolves them and starts the call again.
pub fn start(thread: &Caller, context: &mut UserContext) -> SyscallResult {
    let number = context.syscall_number();
    start_call(number, &mut Call::new(thread, context))
}

/// Starts a call of this number, as [`start`] does.
fn start_call(number: usize, call: &mut Call<'_>) -> SyscallResult {
    loop {
        match table::invoke(number, call) {
            Err(TryError::Fault(fault)) => match call.thread.space().try_fault_in(fault) {
                Some(resolved) => resolved?,
                None => return Err(TryError::Fault(fault)),
            },
            outcome => return outcome,
        }
    }
}
