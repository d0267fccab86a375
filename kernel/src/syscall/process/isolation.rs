//! Heddle's own options of prctl(2): who may reach a program's memory.

use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::memory::isolation;
use crate::memory::isolation::IsolationPolicy;
use crate::signal::PendingWork;
use crate::syscall::{Call, SyscallResult};

/// `PR_SET_ISOLATION`.
pub fn set(call: &Call<'_>) -> SyscallResult {
    let number = u8::try_from(call.word(1)).map_err(|_| Errno::EINVAL)?;
    let policy = IsolationPolicy::of_number(number).ok_or(Errno::EINVAL)?;
    if policy == IsolationPolicy::Direct {
        return Err(Errno::EINVAL.into());
    }
    // Where programs reach the kernel, nothing keeps them from each other.
    if isolation::machine() == IsolationPolicy::Direct {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let (thread, space) = (call.thread, call.thread.space());
    let (old, new) = (isolation::of_program(space.isolation()), isolation::of_program(policy));
    if new.strength() < old.strength() && !thread.credentials().is_capable(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM.into());
    }
    space.set_isolation(space.credentials(), policy);
    thread.add_work(PendingWork::ISOLATE);
    Ok(0.into())
}

/// `PR_GET_ISOLATION`.
pub fn get(call: &Call<'_>) -> SyscallResult {
    Ok((call.thread.space().isolation() as usize).into())
}
