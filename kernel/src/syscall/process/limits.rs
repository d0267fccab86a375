//! getrlimit(2), setrlimit(2), prlimit(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::process::{Process, Resource, ResourceLimit, cpu_time, table};
use crate::syscall::{Call, SyscallResult, user};

fn get(process: &Process, resource: u32) -> Result<ResourceLimit, Errno> {
    process.limits().get(resource).ok_or(Errno::EINVAL)
}

fn set(call: &Call<'_>, process: &Arc<Process>, resource: u32, words: [u64; 2]) -> Result<(), Errno> {
    let [soft, hard] = words;
    let is_privileged = call.thread.credentials().is_capable(linux::CAP_SYS_RESOURCE);
    process.change_limits(|limits| {
        let old = limits.get(resource).ok_or(Errno::EINVAL)?;
        if soft > hard {
            return Err(Errno::EINVAL);
        }
        let is_files = resource == Resource::OpenFiles as u32;
        if hard > old.hard && !is_privileged || is_files && hard > ResourceLimit::open_files_max() {
            return Err(Errno::EPERM);
        }
        limits.set(resource, ResourceLimit { soft, hard });
        Ok(())
    })?;
    if resource == Resource::CpuTime as u32 {
        cpu_time::look_again(process);
    }
    if let Some(space) = process.main_thread().and_then(|thread| thread.try_space()) {
        process.limits().limit_space(&space);
    }
    Ok(())
}

/// getrlimit(2).
pub fn getrlimit(call: &mut Call<'_>) -> SyscallResult {
    let limit = get(&call.thread.process, call.uint(0))?;
    user::write_words(&call.thread.space(), call.word(1), &[limit.soft, limit.hard])?;
    Ok(0.into())
}

/// setrlimit(2).
pub fn setrlimit(call: &mut Call<'_>) -> SyscallResult {
    let words = user::read_words(&call.thread.space(), call.word(1))?;
    set(call, &call.thread.process, call.uint(0), words)?;
    Ok(0.into())
}

/// prlimit64(2).
pub fn prlimit64(call: &mut Call<'_>) -> SyscallResult {
    let process = match call.int(0) {
        0 => call.thread.process.clone(),
        pid => table::process(call.thread.process.named(pid)).ok_or(Errno::ESRCH)?,
    };
    let own = call.thread.credentials();
    let may = process.credentials().is_none_or(|theirs| {
        theirs.uid == own.uid && theirs.suid == own.uid
            || own.is_capable_in(&theirs.users, linux::CAP_SYS_RESOURCE)
    });
    if !may {
        return Err(Errno::EPERM.into());
    }
    let space = call.thread.space();
    let old = get(&process, call.uint(1))?;
    let new = match call.word(2) {
        0 => None,
        address => Some(user::read_words(&space, address)?),
    };
    if call.word(3) != 0 {
        user::write_words(&space, call.word(3), &[old.soft, old.hard])?;
    }
    if let Some(words) = new {
        set(call, &process, call.uint(1), words)?;
    }
    Ok(0.into())
}
