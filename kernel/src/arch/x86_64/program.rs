//! Information for programs about the processor, and the registers that a program may change.

use core::arch::x86_64::__cpuid;

use crate::arch::x86_64::UserContext;
use crate::error::Errno;

/// `uname -m`, and `AT_PLATFORM`.
pub const MACHINE_NAME: &str = "x86_64";

/// The machine number in ELF files: `EM_X86_64`.
pub const ELF_MACHINE: u16 = 62;

/// `AT_HWCAP`: the feature word of CPUID leaf 1.
#[must_use]
pub fn hardware_capabilities() -> u64 {
    u64::from(__cpuid(1).edx)
}

const ARCH_SET_GS: u32 = 0x1001;
const ARCH_SET_FS: u32 = 0x1002;
const ARCH_GET_FS: u32 = 0x1003;
const ARCH_GET_GS: u32 = 0x1004;
/// Base addresses are in the lower half.
const ADDRESS_LIMIT: usize = 1 << 47;

/// Carries out arch_prctl(2) on a program's registers; a value is to be stored at `address`.
///
/// # Errors
/// `EPERM` (an address of the kernel), `EINVAL` (no such operation).
pub fn control(context: &mut UserContext, operation: u32, address: usize) -> Result<Option<u64>, Errno> {
    match operation {
        ARCH_SET_GS | ARCH_SET_FS if address >= ADDRESS_LIMIT => return Err(Errno::EPERM),
        ARCH_SET_GS => context.gs_base = address as u64,
        ARCH_SET_FS => context.fs_base = address as u64,
        ARCH_GET_FS => return Ok(Some(context.fs_base)),
        ARCH_GET_GS => return Ok(Some(context.gs_base)),
        _ => return Err(Errno::EINVAL),
    }
    Ok(None)
}
