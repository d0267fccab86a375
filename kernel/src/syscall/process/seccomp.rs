//! seccomp(2), and the same by prctl(2).

use heddle_kernel_core::seccomp::{FilterAction, INSTRUCTION_BYTES, LENGTH_MAX, Program, ProgramError};
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryError};
use crate::process::seccomp;
use crate::syscall::{Call, SyscallResult, get, get_bytes};

const SET_MODE_STRICT: u32 = 0;
const SET_MODE_FILTER: u32 = 1;
const GET_ACTION_AVAIL: u32 = 2;

const FLAG_TSYNC: usize = 1;
const FLAG_LOG: usize = 2;
/// The processor's speculation is not restrained, with and without it.
const FLAG_SPEC_ALLOW: usize = 4;
const FLAG_TSYNC_ESRCH: usize = 16;
const KNOWN_FLAGS: usize = FLAG_TSYNC | FLAG_LOG | FLAG_SPEC_ALLOW | FLAG_TSYNC_ESRCH;

/// The modes of `PR_SET_SECCOMP`.
const MODE_STRICT: usize = 1;
const MODE_FILTER: usize = 2;

/// seccomp(2).
pub fn seccomp(call: &mut Call<'_>) -> SyscallResult {
    let (operation, flags, address) = (call.uint(0), call.uint(1) as usize, call.word(2));
    match operation {
        SET_MODE_STRICT if flags != 0 || address != 0 => Err(Errno::EINVAL.into()),
        SET_MODE_STRICT => set_strict(call),
        SET_MODE_FILTER => set_filter(call, flags, address),
        GET_ACTION_AVAIL if flags != 0 => Err(Errno::EINVAL.into()),
        GET_ACTION_AVAIL => {
            let wanted = u32::from_ne_bytes(get(call, address)?);
            // Nobody can listen to what a filter tells.
            let is_known =
                |action: &FilterAction| action.constant() == wanted && *action != FilterAction::Notify;
            if FilterAction::ALL.iter().any(is_known) { Ok(0.into()) } else { Err(Errno::EOPNOTSUPP.into()) }
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

/// `PR_SET_SECCOMP`.
pub fn set_by_prctl(call: &mut Call<'_>) -> SyscallResult {
    match call.word(1) {
        MODE_STRICT => set_strict(call),
        MODE_FILTER => set_filter(call, 0, call.word(2)),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn set_strict(call: &Call<'_>) -> SyscallResult {
    call.thread.restrict()?;
    Ok(0.into())
}

fn set_filter(call: &Call<'_>, flags: usize, address: usize) -> SyscallResult {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::EINVAL.into());
    }
    // `struct sock_fprog`: a length, and where the instructions are.
    let header: [u8; 16] = get(call, address)?;
    let [low, high, _, _, _, _, _, _, pointer @ ..] = header;
    let (length, instructions) =
        (usize::from(u16::from_ne_bytes([low, high])), usize::from_ne_bytes(pointer));
    if length == 0 || length > LENGTH_MAX {
        return Err(Errno::EINVAL.into());
    }
    let thread = call.thread;
    if !thread.has_no_new_privileges() && !thread.credentials().has_capability(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EACCES.into());
    }
    let bytes = get_bytes(call, instructions, length * INSTRUCTION_BYTES)?;
    let program = Program::new(&bytes).map_err(|refused| {
        TryError::from(match refused {
            ProgramError::Invalid => Errno::EINVAL,
            ProgramError::OutOfMemory => Errno::ENOMEM,
        })
    })?;
    let other = seccomp::install(thread, program, flags & FLAG_LOG != 0, flags & FLAG_TSYNC != 0)?;
    match other {
        Some(_) if flags & FLAG_TSYNC_ESRCH != 0 => Err(Errno::ESRCH.into()),
        Some(tid) => Ok((thread.process.shown(tid) as usize).into()),
        None => Ok(0.into()),
    }
}
