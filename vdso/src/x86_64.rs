//! What only the processor can tell, and system calls.

use core::arch::asm;

use heddle_abi::shared::SystemPage;

/// The system page, which the kernel maps before the object's first page.
#[inline(always)]
#[cfg(heddle_vdso)]
pub fn system_page() -> &'static SystemPage {
    let page: *const SystemPage;
    // SAFETY: `__ehdr_start` is the linker's name for the object's first byte.
    unsafe {
        asm!("lea {}, [rip + __ehdr_start - 4096]", out(reg) page, options(pure, nomem, nostack, preserves_flags));
    }
    // SAFETY: the kernel maps the system page there, for as long as the object.
    unsafe { &*page }
}

/// Elsewhere than in the object itself there is no page: its functions ask the system.
#[inline(always)]
#[cfg(not(heddle_vdso))]
pub fn system_page() -> &'static SystemPage {
    static NONE: SystemPage = SystemPage::new();
    &NONE
}

/// The time-stamp counter, read after all loads before it.
#[inline(always)]
pub fn counter() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter that programs may read. The fence keeps the processor from reading it early, so that two
    // readings in order are in order. It counts as an access to memory for the compiler, for the same reason.
    unsafe { asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// The number of the processor: the limit of a segment that the kernel gives each.
#[inline(always)]
pub fn cpu() -> u32 {
    let limit: u32;
    // SAFETY: reads the limit of a segment; without that segment the result is what was there.
    unsafe {
        asm!("lsl {0:e}, {1:e}", inout(reg) 0u32 => limit, in(reg) u32::from(heddle_abi::shared::CPU_SEGMENT),
            options(nomem, nostack));
    }
    limit
}

/// Makes a system call.
///
/// # Safety
/// As the call's own.
#[inline(always)]
pub unsafe fn call(number: usize, arguments: [usize; 3]) -> isize {
    let result: isize;
    // SAFETY: the registers are those of the system call convention; the rest is the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") arguments[0], in("rsi") arguments[1],
            in("rdx") arguments[2], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}
