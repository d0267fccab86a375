//! Small structures of C in user memory: on 64-bit machines those that system calls pass are rows of words.

use crate::error::{Errno, TryError, TryResult};
use crate::memory::Space;
use crate::memory::user::PageFault;
use crate::sched::Budget;
use crate::time;

/// The cost of a page that was missing, in units of a [`Budget`].
const FAULT_COST: u32 = 8;

/// Reads `N` 64-bit words.
///
/// # Errors
/// The page that is missing.
pub fn read_words<const N: usize>(space: &Space, address: usize) -> Result<[u64; N], PageFault> {
    space.read(address)
}

/// Writes 64-bit words.
///
/// # Errors
/// The page that is missing.
pub fn write_words<const N: usize>(space: &Space, address: usize, words: &[u64; N]) -> Result<(), PageFault> {
    space.write(address, words)
}

/// Reads a C `int` or `unsigned int`.
///
/// # Errors
/// The page that is missing.
pub fn read_int(space: &Space, address: usize) -> Result<u32, PageFault> {
    space.read(address)
}

/// Writes a C `int` or `unsigned int`.
///
/// # Errors
/// The page that is missing.
pub fn write_int(space: &Space, address: usize, value: u32) -> Result<(), PageFault> {
    space.write(address, &value)
}

/// Reads a `struct timespec` as nanoseconds; times beyond what 64 bits hold count as the latest.
///
/// # Errors
/// `EINVAL`: negative, or a second and more of nanoseconds.
pub fn read_timespec(space: &Space, address: usize) -> TryResult<u64> {
    let [seconds, nanoseconds] = read_words(space, address)?;
    Ok(time::timespec_ns(seconds, nanoseconds)?)
}

/// Repeats an access until it needs no page that is missing; memory is waited for only for a while. For the new program
/// of `execve`, which then fails.
///
/// # Errors
/// `EFAULT`, `ENOMEM`.
pub async fn resolve<T>(
    space: &Space,
    mut access: impl FnMut(&Space) -> Result<T, PageFault>,
) -> Result<T, Errno> {
    let mut budget = Budget::new();
    loop {
        match access(space) {
            Ok(value) => return Ok(value),
            Err(fault) => space.fault_in(fault).await?,
        }
        // Others may take the page away again and again.
        budget.step(FAULT_COST).await;
    }
}

/// The same for a thread, which waits for memory as long as it lives.
///
/// # Errors
/// `EFAULT`; `ENOMEM`, which nobody sees: `is_dying` says that the thread is to die.
pub async fn resolve_for<T>(
    space: &Space,
    is_dying: impl Fn() -> bool,
    mut access: impl FnMut(&Space) -> Result<T, PageFault>,
) -> Result<T, Errno> {
    let mut budget = Budget::new();
    loop {
        match access(space) {
            Ok(value) => return Ok(value),
            Err(fault) => space.fault_in_for(fault, &is_dying).await?,
        }
        budget.step(FAULT_COST).await;
    }
}

/// Repeats an attempt that has no file to wait for until it needs no page that is missing. As for [`resolve_for`],
/// `is_dying` ends a wait for memory.
///
/// # Errors
/// Those of the attempt; `EFAULT`, `ENOMEM`.
pub async fn resolve_attempt<T>(
    space: &Space,
    is_dying: impl Fn() -> bool,
    mut attempt: impl FnMut(&Space) -> TryResult<T>,
) -> Result<T, Errno> {
    let mut budget = Budget::new();
    loop {
        match attempt(space) {
            Ok(value) => return Ok(value),
            Err(TryError::Fault(fault)) => space.fault_in_for(fault, &is_dying).await?,
            Err(TryError::Error(error)) => return Err(error),
            Err(TryError::WouldBlock) => return Err(Errno::EAGAIN),
        }
        budget.step(FAULT_COST).await;
    }
}
