//! pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2).

use alloc::sync::Arc;
use heddle_kernel_core::signal::Information;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::StatusFlags;
use crate::process::access::{ViewerIds, may_access};
use crate::process::pidfd::{ProcessFile, is_known};
use crate::process::table;
use crate::procfs;
use crate::syscall::fs::{add, get_file};
use crate::syscall::signal::{passed_to, read_information, send_checked, signal_argument};
use crate::syscall::{Call, SyscallResult};

/// pidfd_open(2).
pub fn pidfd_open(call: &mut Call<'_>) -> SyscallResult {
    let (pid, flags) = (call.int(0), call.uint(1));
    if flags & !linux::O_NONBLOCK != 0 || pid <= 0 {
        return Err(Errno::EINVAL.into());
    }
    let pid = call.thread.process.named(pid);
    let Some(process) = table::process(pid) else {
        // A thread that leads no group has a number, too.
        let error = if table::thread(pid).is_some() { Errno::EINVAL } else { Errno::ESRCH };
        return Err(error.into());
    };
    add(call, ProcessFile::open(process, StatusFlags::from_bits_retain(flags))?, true)
}

/// pidfd_send_signal(2). The directory of a process in `/proc` also names it.
pub fn pidfd_send_signal(call: &mut Call<'_>) -> SyscallResult {
    let (number, address) = (call.int(1), call.word(2));
    if call.uint(3) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let open = get_file(call, 0)?;
    let target = match procfs::process_of(&open) {
        Some(process) => process?,
        None => ProcessFile::process_of(&open)?,
    };
    let words = match address {
        0 => None,
        address => Some(read_information(call, address, target.pid)?),
    };
    if words.is_some_and(|words| words[0] as i32 != number) {
        return Err(Errno::EINVAL.into());
    }
    if !is_known(&target) {
        return Err(Errno::ESRCH.into());
    }
    let thread = call.thread;
    let information = signal_argument(number)?.map(|signal| match words {
        Some(words) => Information::from_words(signal, &passed_to(call, &target, words)),
        None => Information::user(signal, thread.process.pid, thread.credentials().uid),
    });
    send_checked(thread, &target, information)?;
    Ok(0.into())
}

/// pidfd_getfd(2).
pub fn pidfd_getfd(call: &mut Call<'_>) -> SyscallResult {
    if call.uint(2) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let target = ProcessFile::process_of(&*get_file(call, 0)?)?;
    // A first thread that has ended has no descriptors any more.
    let owner = table::thread(target.pid).filter(|thread| Arc::ptr_eq(&thread.process, &target));
    let owner = owner.ok_or(Errno::ESRCH)?;
    if !may_access(call.thread, &owner, ViewerIds::Real) {
        return Err(Errno::EPERM.into());
    }
    let open = owner.descriptors().get(call.int(1))?;
    add(call, open, true)
}
