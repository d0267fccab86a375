//! rseq(2).

use crate::error::Errno;
use crate::process::rseq;
use crate::process::rseq::AREA_BYTES;
use crate::syscall::{Call, SyscallResult};

/// `RSEQ_FLAG_UNREGISTER` of `linux/rseq.h`, which the generated constants leave out.
const UNREGISTER: u32 = 1;

/// rseq(2).
pub fn rseq(call: &mut Call<'_>) -> SyscallResult {
    let thread = call.thread;
    let (address, length, flags, signature) = (call.word(0), call.uint(1), call.uint(2), call.uint(3));
    let registered = thread.restartable.get();
    let is_area = length as usize == AREA_BYTES;
    match (flags, registered) {
        (UNREGISTER, Some((own, expected))) if own == address && is_area => {
            if signature != expected {
                return Err(Errno::EPERM.into());
            }
            rseq::unregister(thread, address)?;
        }
        (0, Some((own, expected))) if own == address && is_area => {
            return Err(if signature == expected { Errno::EBUSY } else { Errno::EPERM }.into());
        }
        (0, None) if is_area && address.is_multiple_of(AREA_BYTES) => {
            rseq::register(thread, address, signature)?;
        }
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(0.into())
}
