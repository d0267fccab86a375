//! A system call in the making: who calls, with which arguments, and what may come of it.
//!
//! A call *starts* and is either done or pending with a future ([`SyscallState`]); what never waits builds no future.
//! The functions that implement calls are in `syscall`, and their mechanism is here, so that files, sockets and
//! terminals can be asked to carry out a part of one (`ioctl`).
//!
//! - [`Caller`]: the thread that waits for the call, or an asynchronous request.
//! - [`asynchronous`]: requests that a program submits without waiting, and the ring of their completions.

pub mod asynchronous;
pub mod caller;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;

use crate::arch::UserContext;
use crate::error::{Errno, TryError, TryResult};

use heddle_kernel_core::fallible::resize_reserved;

pub use crate::call::caller::Caller;
pub use crate::memory::values as user;
pub use crate::process::thread::DeferredCopyOut;

/// The future of a pending call. Its output is the program's result.
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

/// The result of starting a call.
pub type SyscallResult = Result<SyscallState, TryError>;

/// A system call in the making.
pub struct Call<'a> {
    /// The caller.
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

/// Writes to the caller's memory.
///
/// # Errors
/// A page fault.
pub fn put(call: &Call<'_>, address: usize, bytes: &[u8]) -> TryResult<()> {
    Ok(call.thread.space().write_bytes(address, bytes)?)
}

/// Reads from the caller's memory.
///
/// # Errors
/// A page fault.
pub fn get<const N: usize>(call: &Call<'_>, address: usize) -> TryResult<[u8; N]> {
    let mut bytes = [0; N];
    call.thread.space().read_bytes(address, &mut bytes)?;
    Ok(bytes)
}

/// Reads `length` bytes from the caller's memory.
///
/// # Errors
/// A page fault, `ENOMEM`.
pub fn get_bytes(call: &Call<'_>, address: usize, length: usize) -> TryResult<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
    resize_reserved(&mut bytes, length, 0);
    call.thread.space().read_bytes(address, &mut bytes)?;
    Ok(bytes)
}
