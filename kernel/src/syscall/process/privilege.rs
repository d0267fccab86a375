//! The operations of prctl(2) about capabilities.

use linux_raw_sys::{general as linux, prctl};

use crate::error::Errno;
use crate::process::{Capabilities, SecureBits};
use crate::syscall::process::credentials::change;
use crate::syscall::{Call, SyscallResult};

/// `PR_CAPBSET_READ`.
pub(super) fn read_bounding(call: &Call<'_>) -> SyscallResult {
    let number = call.word(1);
    if !Capabilities::is_known(number) {
        return Err(Errno::EINVAL.into());
    }
    Ok((usize::from(call.thread.credentials().capabilities.bounding & 1 << number != 0)).into())
}

/// `PR_CAPBSET_DROP`.
pub(super) fn drop_bounding(call: &Call<'_>) -> SyscallResult {
    let number = call.word(1);
    change(call.thread, |credentials| {
        if !credentials.has_capability(linux::CAP_SETPCAP) {
            return Err(Errno::EPERM);
        }
        if !Capabilities::is_known(number) {
            return Err(Errno::EINVAL);
        }
        credentials.capabilities.bounding &= !(1 << number);
        Ok(())
    })
}

/// `PR_GET_KEEPCAPS`.
pub(super) fn keeps_capabilities(call: &Call<'_>) -> SyscallResult {
    let bits = call.thread.credentials().secure_bits;
    Ok(usize::from(bits.has(SecureBits::KEEP_CAPABILITIES)).into())
}

/// `PR_SET_KEEPCAPS`.
pub(super) fn set_keeps_capabilities(call: &Call<'_>) -> SyscallResult {
    let argument = call.word(1);
    if argument > 1 {
        return Err(Errno::EINVAL.into());
    }
    change(call.thread, |credentials| {
        let (bits, bit) = (&mut credentials.secure_bits, SecureBits::KEEP_CAPABILITIES);
        if bits.is_locked(bit) {
            return Err(Errno::EPERM);
        }
        bits.0 = if argument == 1 { bits.0 | bit.0 } else { bits.0 & !bit.0 };
        Ok(())
    })
}

/// `PR_GET_SECUREBITS`.
pub(super) fn secure_bits(call: &Call<'_>) -> SyscallResult {
    Ok((call.thread.credentials().secure_bits.0 as usize).into())
}

/// `PR_SET_SECUREBITS`.
pub(super) fn set_secure_bits(call: &Call<'_>) -> SyscallResult {
    let new = u32::try_from(call.word(1)).map_err(|_| Errno::EPERM)?;
    change(call.thread, |credentials| {
        if !credentials.secure_bits.may_become(SecureBits(new))
            || !credentials.has_capability(linux::CAP_SETPCAP)
        {
            return Err(Errno::EPERM);
        }
        credentials.secure_bits = SecureBits(new);
        Ok(())
    })
}

/// `PR_CAP_AMBIENT`.
pub(super) fn ambient(call: &Call<'_>) -> SyscallResult {
    let (operation, number) = (call.uint(1), call.word(2));
    let has_rest = call.word(3) != 0 || call.word(4) != 0;
    if operation == prctl::PR_CAP_AMBIENT_CLEAR_ALL {
        if number != 0 || has_rest {
            return Err(Errno::EINVAL.into());
        }
        return change(call.thread, |credentials| {
            credentials.capabilities.ambient = 0;
            Ok(())
        });
    }
    if !Capabilities::is_known(number) || has_rest {
        return Err(Errno::EINVAL.into());
    }
    let bit = 1 << number;
    match operation {
        prctl::PR_CAP_AMBIENT_IS_SET => {
            Ok(usize::from(call.thread.credentials().capabilities.ambient & bit != 0).into())
        }
        prctl::PR_CAP_AMBIENT_RAISE => change(call.thread, |credentials| {
            let sets = &mut credentials.capabilities;
            let is_kept = sets.permitted & sets.inheritable & bit != 0;
            if !is_kept || credentials.secure_bits.has(SecureBits::NO_AMBIENT_RAISE) {
                return Err(Errno::EPERM);
            }
            sets.ambient |= bit;
            Ok(())
        }),
        prctl::PR_CAP_AMBIENT_LOWER => change(call.thread, |credentials| {
            credentials.capabilities.ambient &= !bit;
            Ok(())
        }),
        _ => Err(Errno::EINVAL.into()),
    }
}
