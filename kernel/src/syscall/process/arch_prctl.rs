//! arch_prctl(2).

use crate::arch;
use crate::error::Errno;
use crate::syscall::{Call, SyscallResult, user};

/// Whether a program may use the CPUID instruction, as the result of the call.
const ARCH_GET_CPUID: u32 = 0x1011;
const ARCH_SET_CPUID: u32 = 0x1012;

/// arch_prctl(2).
pub fn arch_prctl(call: &mut Call<'_>) -> SyscallResult {
    let (operation, address) = (call.uint(0), call.word(1));
    match operation {
        ARCH_GET_CPUID => return Ok(1.into()),
        // As on a processor that can't make the instruction fault.
        ARCH_SET_CPUID => return Err(Errno::ENODEV.into()),
        _ => {}
    }
    if let Some(value) = arch::control(call.context, operation, address)? {
        user::write_words(&call.thread.space(), address, &[value])?;
    }
    Ok(0.into())
}
