//! unshare(2). There are no namespaces; what threads share they can leave.

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::memory::fallible;
use crate::syscall::{Call, SyscallResult};

/// Flags that need a process with one thread: its threads share these by definition.
const WHOLE: u32 = linux::CLONE_THREAD | linux::CLONE_SIGHAND | linux::CLONE_VM;
/// Undoes of semaphore operations belong to a process here, not to a thread.
const OF_PROCESS: u32 = WHOLE | linux::CLONE_SYSVSEM;
/// Everything that can be left.
const KNOWN: u32 = OF_PROCESS | linux::CLONE_FILES | linux::CLONE_FS;

/// unshare(2).
pub fn unshare(call: &mut Call<'_>) -> SyscallResult {
    let flags = call.uint(0);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let thread = call.thread;
    if flags & OF_PROCESS != 0 && thread.process.thread_count() > 1 {
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
    if flags & linux::CLONE_SYSVSEM != 0 {
        thread.process.detach_all();
    }
    if let Some(directories) = directories {
        thread.set_directories(directories);
    }
    Ok(0.into())
}
