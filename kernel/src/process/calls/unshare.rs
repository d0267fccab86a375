//! unshare(2). There are no namespaces; what threads share they can leave.

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::memory::fallible;
use crate::syscall::{Call, Outcome};

/// What only a process with one thread can stop sharing, because it shares it with nobody.
const WHOLE: u32 = linux::CLONE_THREAD | linux::CLONE_SIGHAND | linux::CLONE_VM;
/// Semaphore adjustments belong to a process here, so there is nothing to leave.
const KNOWN: u32 = WHOLE | linux::CLONE_FILES | linux::CLONE_FS | linux::CLONE_SYSVSEM;

/// unshare(2).
pub fn unshare(call: &mut Call<'_>) -> Outcome {
    let flags = call.uint(0);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let thread = call.thread;
    if flags & WHOLE != 0 && thread.process.thread_count() > 1 {
        return Err(Errno::EINVAL.into());
    }
    let directories = if flags & linux::CLONE_FS != 0 {
        Some(fallible::try_arc(thread.directories().duplicate())?)
    } else {
        None
    };
    if flags & linux::CLONE_FILES != 0 {
        thread.unshare_descriptors()?;
    }
    if let Some(directories) = directories {
        thread.set_directories(directories);
    }
    Ok(0.into())
}
