//! Functions that depend on the processor, and system calls.

use core::arch::asm;

use heddle_abi::user_sched::{SystemPage, TimePage};

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

/// The page of the time namespace, which the kernel maps before the system page.
#[inline(always)]
#[cfg(heddle_vdso)]
pub fn time_page() -> &'static TimePage {
    let page: *const TimePage;
    // SAFETY: as in `system_page`.
    unsafe {
        asm!("lea {}, [rip + __ehdr_start - 8192]", out(reg) page, options(pure, nomem, nostack, preserves_flags));
    }
    // SAFETY: the kernel maps the page there, for as long as the object.
    unsafe { &*page }
}

/// Elsewhere than in the object itself there is no page: its functions ask the system.
#[inline(always)]
#[cfg(not(heddle_vdso))]
pub fn time_page() -> &'static TimePage {
    static NONE: TimePage = TimePage::new();
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
        asm!("lsl {0:e}, {1:e}", inout(reg) 0u32 => limit, in(reg) u32::from(heddle_abi::user_sched::CPU_SEGMENT),
            options(nomem, nostack));
    }
    limit
}

/// Makes a system call.
///
/// # Safety
/// As the call's own.
#[inline(always)]
pub unsafe fn call(number: usize, arguments: [usize; 4]) -> isize {
    let result: isize;
    let [first, second, third, fourth] = arguments;
    // SAFETY: the registers are those of the system call convention; the rest is the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") first, in("rsi") second, in("rdx") third,
            in("r10") fourth, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

// Where a user interrupt enters: the stack holds an `InterruptFrame`, and above it lies what was interrupted, behind
// its red zone. Only general registers are used, here and in what is called: the object is built without others.
#[cfg(heddle_vdso)]
core::arch::global_asm!(
    ".globl __heddle_interrupt",
    ".type __heddle_interrupt, @function",
    "__heddle_interrupt:",
    // The exported name may be another object's; this one is here.
    ".hidden heddle_interrupt_here",
    "heddle_interrupt_here:",
    "push rax",
    "push rcx",
    "push rdx",
    "push rbx",
    "push rbp",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov rdi, [rsp + 15 * 8]",
    "mov rbp, rsp",
    "and rsp, -16",
    "call [rdi]",
    "mov rsp, rbp",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rbp",
    "pop rbx",
    "pop rdx",
    "pop rcx",
    "pop rax",
    // The argument, the flags, and then back over the red zone.
    "lea rsp, [rsp + 8]",
    "popfq",
    "ret 128",
    ".size __heddle_interrupt, . - __heddle_interrupt",
);

/// The address of a function of this object, whatever its own address is.
#[inline(always)]
pub fn interrupt_entry() -> usize {
    #[cfg(heddle_vdso)]
    {
        let entry: usize;
        // SAFETY: the address of the function above.
        unsafe {
            asm!("lea {}, [rip + heddle_interrupt_here]", out(reg) entry, options(pure, nomem, nostack))
        };
        entry
    }
    #[cfg(not(heddle_vdso))]
    0
}
