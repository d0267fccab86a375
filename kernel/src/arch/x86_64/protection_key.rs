//! Protection keys: the rights register (PKRU) of this CPU.
//!
//! The register has the value of the thread whose turn goes on. Between turns, and in coroutines of the kernel, it has
//! the value that programs start with, so that nobody's accesses to user memory fail for what another thread has
//! forbidden itself. A thread that has that value, as nearly all have, costs nothing but a look at the end of a turn.
//!
//! `unsafe` here: the instructions that read and write the register.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicBool, Ordering};

use ::x86_64::registers::control::{Cr4, Cr4Flags};
use heddle_abi::boot::KEY_CLEAR_CPUID;
use heddle_kernel_core::protection_key::KeyRights;

use crate::arch::x86_64::paging::PageTableEntry;
use crate::boot;

/// The feature, in leaf 7, ECX.
const FEATURE: u32 = 1 << 3;

/// Whether programs can use keys. Changes at the start of the machine only.
static ARE_ON: AtomicBool = AtomicBool::new(false);

/// Whether the processor has them, with the part of XSAVE that signal frames need.
pub(super) fn are_supported(components: u64) -> bool {
    components & super::float::KEY_RIGHTS != 0
        && __cpuid(0).eax >= 7
        && __cpuid_count(7, 0).ecx & FEATURE != 0
        && !boot::is_listed(KEY_CLEAR_CPUID, "pku")
}

/// Switches them on, on this CPU.
pub(super) fn install() {
    // SAFETY: the processor has them, and all pages have key 0, which the value allows.
    unsafe {
        Cr4::update(|flags| flags.insert(Cr4Flags::PROTECTION_KEY_USER));
        write(KeyRights::INITIAL);
    }
    ARE_ON.store(true, Ordering::Relaxed);
}

/// Whether programs can use keys.
#[inline]
#[must_use]
pub fn are_on() -> bool {
    ARE_ON.load(Ordering::Relaxed)
}

/// # Safety
/// Keys are on.
#[inline]
unsafe fn read() -> KeyRights {
    let value: u32;
    // SAFETY: the instruction is there where keys are on, and reads a register.
    unsafe { asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _, options(nomem, nostack)) };
    KeyRights(value)
}

/// # Safety
/// Keys are on.
#[inline]
unsafe fn write(rights: KeyRights) {
    // SAFETY: the instruction is there where keys are on. The register changes accesses to pages of programs alone, and
    // the kernel's may all fault. It is no `nomem`, because such accesses must not be moved across it.
    unsafe { asm!("wrpkru", in("ecx") 0, in("edx") 0, in("eax") rights.0, options(nostack)) };
}

/// The register; the first value where there are no keys.
#[must_use]
pub fn rights() -> KeyRights {
    // SAFETY: keys are on.
    if are_on() { unsafe { read() } } else { KeyRights::INITIAL }
}

/// Changes the register, where there is one.
pub fn set_rights(rights: KeyRights) {
    if are_on() {
        // SAFETY: keys are on.
        unsafe { write(rights) };
    }
}

/// Gives the register its first value back. Returns what it had, if that was another.
#[inline]
pub fn take_rights() -> Option<KeyRights> {
    if !are_on() {
        return None;
    }
    // SAFETY: keys are on.
    let found = unsafe { read() };
    if found == KeyRights::INITIAL {
        return None;
    }
    set_rights(KeyRights::INITIAL);
    Some(found)
}

impl PageTableEntry {
    /// The protection key of a page.
    #[must_use]
    pub const fn key(self) -> u8 {
        ((self.0 & Self::KEY) >> Self::KEY_SHIFT) as u8
    }

    /// The same page with another protection key.
    #[must_use]
    pub const fn with_key(self, key: u8) -> Self {
        Self(self.0 & !Self::KEY | (key as u64) << Self::KEY_SHIFT)
    }
}
