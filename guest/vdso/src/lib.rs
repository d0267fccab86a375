//! The vDSO: a shared object that the kernel maps into every program and names in the auxiliary vector
//! (`AT_SYSINFO_EHDR`). See vdso(7).
//!
//! It is one read-only segment of code and constants, position-independent, without relocations and without statics:
//! the same pages serve every process at any address. All it knows, it reads from the system page, which lies in the
//! page before its first, and from memory that its caller passes.
//!
//! - [`clock`]: Linux's usual functions. The C library finds them by name and version, and reads the time without a
//!   system call.
//! - [`notice`]: a handler of user interrupts for programs that have a scheduler of their own.
//! - [`scheduler`]: coroutines for programs in any language, under the machine's order of priorities.
//!
//! `recipe.rs` builds it, for the kernel and for the test that reads the result.
#![no_std]
#![allow(unsafe_code)] // C's pointers, and symbols with C's names.

#[cfg(test)]
extern crate std;

pub mod clock;
pub mod notice;
mod ring;
pub mod scheduler;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

/// The object has no panic path, but a crate without `std` must have a handler. The symbol that this one needs exists
/// nowhere, so that the object does not link if anything can reach it.
#[cfg(all(heddle_vdso, not(test)))]
#[panic_handler]
fn unreachable(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn heddle_a_panic_is_reachable() -> !;
    }
    // SAFETY: never linked, see above.
    unsafe { heddle_a_panic_is_reachable() }
}
