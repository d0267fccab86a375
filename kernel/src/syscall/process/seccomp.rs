//! seccomp(2), and the same by prctl(2).

use heddle_kernel_core::seccomp::{FilterAction, INSTRUCTION_BYTES, LENGTH_MAX, Program, ProgramError};
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryError, TryResult};
use crate::process::seccomp::listener::{FilterListener, SIZES};
use crate::process::seccomp::{self, NewFilter};
use crate::syscall::{Call, SyscallResult, get, get_bytes, put};

const SET_MODE_STRICT: u32 = 0;
const SET_MODE_FILTER: u32 = 1;
const GET_ACTION_AVAIL: u32 = 2;
/// `SECCOMP_GET_NOTIF_SIZES`.
const GET_NOTIF_SIZES: u32 = 3;

const FLAG_TSYNC: usize = 1;
const FLAG_LOG: usize = 2;
/// The processor's speculation is not restrained, with and without it.
const FLAG_SPEC_ALLOW: usize = 4;
/// `SECCOMP_FILTER_FLAG_NEW_LISTENER`.
const FLAG_NEW_LISTENER: usize = 8;
const FLAG_TSYNC_ESRCH: usize = 16;
/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`.
const FLAG_WAIT_KILLABLE_RECV: usize = 32;
const KNOWN_FLAGS: usize =
    FLAG_TSYNC | FLAG_LOG | FLAG_SPEC_ALLOW | FLAG_NEW_LISTENER | FLAG_TSYNC_ESRCH | FLAG_WAIT_KILLABLE_RECV;

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
            let is_known = FilterAction::ALL.iter().any(|action| action.constant() == wanted);
            if is_known { Ok(0.into()) } else { Err(Errno::EOPNOTSUPP.into()) }
        }
        GET_NOTIF_SIZES if flags != 0 => Err(Errno::EINVAL.into()),
        GET_NOTIF_SIZES => {
            let bytes = SIZES.map(u16::to_ne_bytes);
            put(call, address, bytes.as_flattened())?;
            Ok(0.into())
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
    let has = |flag| flags & flag != 0;
    // A number of a thread could not be told from one of a descriptor.
    if flags & !KNOWN_FLAGS != 0
        || has(FLAG_TSYNC) && has(FLAG_NEW_LISTENER) && !has(FLAG_TSYNC_ESRCH)
        || has(FLAG_WAIT_KILLABLE_RECV) && !has(FLAG_NEW_LISTENER)
    {
        return Err(Errno::EINVAL.into());
    }
    let program = get_program(call, address)?;
    let (listener, descriptor) = if has(FLAG_NEW_LISTENER) {
        let listener = FilterListener::new(has(FLAG_WAIT_KILLABLE_RECV))?;
        let limit = call.thread.process.descriptor_limit();
        let descriptor = call.thread.descriptors().add(listener.open()?, 0, limit, true)?;
        (Some(listener), Some(descriptor))
    } else {
        (None, None)
    };
    let new = NewFilter { program, is_logged: has(FLAG_LOG), listener };
    let installed = seccomp::install(call.thread, new, has(FLAG_TSYNC));
    if let Some(descriptor) = descriptor {
        return match installed {
            Ok(None) => Ok((descriptor as usize).into()),
            refused => {
                drop(call.thread.descriptors().remove(descriptor));
                Err(refused.err().unwrap_or(Errno::ESRCH).into())
            }
        };
    }
    match installed? {
        Some(_) if has(FLAG_TSYNC_ESRCH) => Err(Errno::ESRCH.into()),
        Some(tid) => Ok((call.thread.process.shown(tid) as usize).into()),
        None => Ok(0.into()),
    }
}

/// Reads a `struct sock_fprog`, a length and where the instructions are, and the program.
fn get_program(call: &Call<'_>, address: usize) -> TryResult<Program> {
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
    Program::new(&bytes).map_err(|refused| {
        TryError::from(match refused {
            ProgramError::Invalid => Errno::EINVAL,
            ProgramError::OutOfMemory => Errno::ENOMEM,
        })
    })
}
