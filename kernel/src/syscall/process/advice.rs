//! Advice about the memory of another process: process_madvise(2), process_mrelease(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::memory::Space;
use crate::process::access::{ViewerIds, may_access};
use crate::process::pidfd::{ProcessFile, is_known};
use crate::process::{Process, Thread};
use crate::sched::Budget;
use crate::syscall::fs::get_file;
use crate::syscall::fs::read_write::many;
use crate::syscall::{Call, SyscallResult, pending};

/// Advice that may be given about another's memory.
const FOR_OTHERS: [u32; 4] =
    [linux::MADV_COLD, linux::MADV_PAGEOUT, linux::MADV_WILLNEED, linux::MADV_COLLAPSE];

/// A process by its descriptor, as long as nobody has waited for it.
fn named(call: &Call<'_>) -> Result<Arc<Process>, Errno> {
    let process = ProcessFile::process_of(&*get_file(call, 0)?)?;
    if is_known(&process) { Ok(process) } else { Err(Errno::ESRCH) }
}

/// A thread of a process that has memory still, and that memory.
fn memory_of(process: &Process) -> Option<(Arc<Thread>, Arc<Space>)> {
    process.threads().find_map(|thread| thread.try_space().map(|space| (thread, space)))
}

/// process_madvise(2).
pub fn process_madvise(call: &mut Call<'_>) -> SyscallResult {
    let advice = call.uint(3);
    if call.uint(4) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let segments = many(call, call.word(1), call.word(2))?;
    let process = named(call)?;
    if !FOR_OTHERS.contains(&advice) {
        return Err(Errno::EINVAL.into());
    }
    let (thread, space) = memory_of(&process).ok_or(Errno::ESRCH)?;
    if !may_access(call.thread, &thread, ViewerIds::File) {
        return Err(Errno::EACCES.into());
    }
    if !call.thread.credentials().is_capable(linux::CAP_SYS_NICE) {
        return Err(Errno::EPERM.into());
    }
    let caller = call.thread.clone();
    pending(async move {
        let (mut done, mut budget) = (0, Budget::new());
        for segment in segments.as_slice() {
            caller.pace(&mut budget, Budget::ATTEMPT).await?;
            match space.advise(segment.address, segment.length, advice, &|| caller.is_dying()).await {
                Ok(()) => done += segment.length,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    })
}

/// process_mrelease(2): a process that is to die gives its memory back in its own end, which nothing delays here.
pub fn process_mrelease(call: &mut Call<'_>) -> SyscallResult {
    if call.uint(1) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let process = named(call)?;
    memory_of(&process).ok_or(Errno::ESRCH)?;
    if process.signal_state().ending().is_none() {
        return Err(Errno::EINVAL.into());
    }
    Ok(0.into())
}
