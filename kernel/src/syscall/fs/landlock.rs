//! landlock_create_ruleset(2), landlock_add_rule(2), landlock_restrict_self(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use heddle_kernel_core::landlock::{Rights, VERSION};

use crate::error::{Errno, TryResult};
use crate::fs::landlock::RulesetFile;
use crate::fs::{OpenFile, StatusFlags, downcast};
use crate::memory::fallible;
use crate::syscall::fs::{add, get, get_bytes, get_file};
use crate::syscall::{Call, SyscallResult};

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const CREATE_VERSION: u32 = 1;
/// `LANDLOCK_CREATE_RULESET_ERRATA`, and those that are mended: the third, directories that were moved out of what a
/// mount shows.
const CREATE_ERRATA: u32 = 2;
const ERRATA: usize = 1 << 2;
/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: u32 = 1;
/// Bytes of `struct landlock_ruleset_attr`, and the most of a later one.
const ATTRIBUTES: usize = 8;
const ATTRIBUTES_MAX: usize = 4096;
/// Bytes of `struct landlock_path_beneath_attr`.
const RULE: usize = 12;

/// landlock_create_ruleset(2).
pub fn landlock_create_ruleset(call: &mut Call<'_>) -> SyscallResult {
    let (address, size, flags) = (call.word(0), call.word(1), call.uint(2));
    if flags != 0 {
        return match flags {
            CREATE_VERSION if address == 0 && size == 0 => Ok(VERSION.into()),
            CREATE_ERRATA if address == 0 && size == 0 => Ok(ERRATA.into()),
            _ => Err(Errno::EINVAL.into()),
        };
    }
    if address == 0 {
        return Err(Errno::EFAULT.into());
    }
    if size < ATTRIBUTES {
        return Err(Errno::EINVAL.into());
    }
    if size > ATTRIBUTES_MAX {
        return Err(Errno::E2BIG.into());
    }
    let bytes = get_bytes(call, address, size)?;
    let (known, later) = bytes.split_first_chunk::<ATTRIBUTES>().ok_or(Errno::EINVAL)?;
    if later.iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG.into());
    }
    let handled = rights(u64::from_ne_bytes(*known)).ok_or(Errno::EINVAL)?;
    if handled.is_empty() {
        return Err(Errno::ENOMSG.into());
    }
    let open = OpenFile::new(RulesetFile::new(handled)?, StatusFlags::RDWR);
    add(call, fallible::try_arc(open)?, true)
}

/// The rights of a program's word, which may have no other bits.
fn rights(word: u64) -> Option<Rights> {
    u16::try_from(word).ok().and_then(Rights::from_bits)
}

/// Calls `use_it` with the ruleset behind the descriptor in the first argument.
fn with_ruleset<T>(call: &Call<'_>, use_it: impl FnOnce(&RulesetFile) -> TryResult<T>) -> TryResult<T> {
    let open: Arc<OpenFile> = get_file(call, 0)?;
    use_it(downcast::<RulesetFile>(&open).ok_or(Errno::EBADFD)?)
}

/// landlock_add_rule(2).
pub fn landlock_add_rule(call: &mut Call<'_>) -> SyscallResult {
    if call.uint(3) != 0 {
        return Err(Errno::EINVAL.into());
    }
    with_ruleset(call, |ruleset| {
        if call.uint(1) != PATH_BENEATH {
            return Err(Errno::EINVAL.into());
        }
        let bytes: [u8; RULE] = get(call, call.word(2))?;
        let [a, b, c, d, e, f, g, h, parent @ ..] = bytes;
        let granted = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        if granted == 0 {
            return Err(Errno::ENOMSG.into());
        }
        let handled = ruleset.handled();
        let granted = rights(granted).filter(|&granted| handled.contains(granted)).ok_or(Errno::EINVAL)?;
        // The file may be open for nothing but its place.
        let open = call.thread.descriptors().get(i32::from_ne_bytes(parent))?;
        ruleset.add(open.place.as_ref().ok_or(Errno::EBADFD)?, granted)?;
        Ok(0.into())
    })
}

/// landlock_restrict_self(2).
pub fn landlock_restrict_self(call: &mut Call<'_>) -> SyscallResult {
    let thread = call.thread;
    let mut credentials = (*thread.credentials()).clone();
    // As for a filter of calls.
    if !thread.has_no_new_privileges() && !credentials.has_capability(linux::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM.into());
    }
    if call.uint(1) != 0 {
        return Err(Errno::EINVAL.into());
    }
    credentials.restrictions = with_ruleset(call, |ruleset| Ok(credentials.restrictions.with(ruleset)?))?;
    thread.set_credentials(fallible::try_arc(credentials)?);
    Ok(0.into())
}
