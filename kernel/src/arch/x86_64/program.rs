//! What programs are told about the processor, and arch_prctl(2).

use core::arch::x86_64::__cpuid;

use crate::error::Errno;
use crate::syscall::{Call, SyscallResult, user};

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

/// arch_prctl(2).
pub fn arch_prctl(call: &mut Call<'_>) -> SyscallResult {
    let address = call.word(1);
    match call.uint(0) {
        ARCH_SET_GS | ARCH_SET_FS if address >= ADDRESS_LIMIT => return Err(Errno::EPERM.into()),
        ARCH_SET_GS => call.context.gs_base = address as u64,
        ARCH_SET_FS => call.context.fs_base = address as u64,
        ARCH_GET_FS => user::write_words(&call.thread.space(), address, &[call.context.fs_base])?,
        ARCH_GET_GS => user::write_words(&call.thread.space(), address, &[call.context.gs_base])?,
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(0.into())
}
