//! Floating-point and vector registers of programs. The kernel itself is built without them.
//!
//! `unsafe` here: saving and restoring the registers.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::arch::x86_64::{__cpuid, __cpuid_count, _fxrstor64, _fxsave64, _xrstor64, _xsave64, _xsetbv};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ::x86_64::registers::control::{Cr4, Cr4Flags};

use heddle_abi::boot::KEY_CLEAR_CPUID;

use crate::arch::x86_64::{local, protection_key};
use crate::boot;
use crate::error::Errno;

use heddle_kernel_core::fallible::{extend_reserved, resize_reserved};
use heddle_kernel_core::protection_key::KeyRights;

/// Size of the area without the extended part.
const LEGACY_BYTES: usize = 512;
const HEADER_BYTES: usize = 64;
const CONTROL_WORD: u16 = 0x037f;
const MXCSR: u32 = 0x1f80;
const MXCSR_OFFSET: usize = 24;
/// Bits of MXCSR that a program may set.
const MXCSR_MASK: u32 = 0xffff;
/// x87, SSE, AVX, and the three parts of AVX-512.
const COMPONENTS: u64 = 0xe7;
/// The rights of protection keys. They are no part of a saved state here, because threads have them also in the kernel
/// ([`super::protection_key`]); programs see them in signal frames and through debuggers.
pub(super) const KEY_RIGHTS: u64 = 1 << 9;
const KEY_RIGHTS_NUMBER: u32 = 9;

static USE_XSAVE: AtomicBool = AtomicBool::new(false);
static AREA_BYTES: AtomicUsize = AtomicUsize::new(LEGACY_BYTES);
static ENABLED: AtomicU64 = AtomicU64::new(3);
/// Where the rights of protection keys are in a state as programs see it; 0 where there are none.
static KEY_RIGHTS_OFFSET: AtomicUsize = AtomicUsize::new(0);
/// 0 stands for no state.
static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(1);

/// Switches the extended registers on, on this CPU.
pub(super) fn install() {
    // OSXSAVE is XSAVE's switch; bit 26 says that the CPU has it.
    if __cpuid(1).ecx & 1 << 26 == 0 || boot::is_listed(KEY_CLEAR_CPUID, "xsave") {
        return;
    }
    let leaf = __cpuid_count(0xd, 0);
    let supported = u64::from(leaf.edx) << 32 | u64::from(leaf.eax);
    let enabled = supported & COMPONENTS;
    // SAFETY: the CPU has XSAVE and these components; the kernel's own code uses none of their registers.
    unsafe {
        Cr4::update(|flags| flags.insert(Cr4Flags::OSXSAVE));
        set_components(enabled);
    }
    ENABLED.store(enabled, Ordering::Relaxed);
    AREA_BYTES.store(__cpuid_count(0xd, 0).ebx as usize, Ordering::Relaxed);
    USE_XSAVE.store(true, Ordering::Relaxed);
    if protection_key::are_supported(supported) {
        // SAFETY: as above.
        unsafe { set_components(enabled | KEY_RIGHTS) };
        KEY_RIGHTS_OFFSET.store(__cpuid_count(0xd, KEY_RIGHTS_NUMBER).ebx as usize, Ordering::Relaxed);
        protection_key::install();
    }
}

#[target_feature(enable = "xsave")]
unsafe fn set_components(enabled: u64) {
    // SAFETY: OSXSAVE is on, and the caller asks only for what the CPU supports.
    unsafe { _xsetbv(0, enabled) };
}

/// The unit of alignment that XSAVE asks for.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The saved floating-point registers of one thread.
///
/// **Ownership.** A CPU remembers which state's values its registers hold, and a state remembers which CPU it was
/// restored on last. Only if both agree are the registers this state's, and [`Self::restore`] does nothing.
/// [`Self::save`] copies the registers out and leaves them owned, so a thread that comes back to the same CPU finds
/// them there. An operation that writes the saved values ([`Self::set_bytes`], [`Self::reset`]) takes a new identity.
pub struct FloatState {
    identity: u64,
    cpu: usize,
    area: Vec<Line>,
}

impl FloatState {
    /// The state a program starts with.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        let mut state = Self::empty()?;
        state.reset();
        Ok(state)
    }

    /// A copy for a new thread. The caller has saved this state if a CPU holds it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn try_clone(&self) -> Result<Self, Errno> {
        let mut state = Self::empty()?;
        state.area.copy_from_slice(&self.area);
        Ok(state)
    }

    fn empty() -> Result<Self, Errno> {
        let lines = AREA_BYTES.load(Ordering::Relaxed).div_ceil(size_of::<Line>());
        let mut area = Vec::new();
        area.try_reserve_exact(lines).map_err(|_| Errno::ENOMEM)?;
        resize_reserved(&mut area, lines, Line([0; 64]));
        Ok(Self { identity: new_identity(), cpu: usize::MAX, area })
    }

    /// Back to the state a program starts with.
    pub fn reset(&mut self) {
        self.identity = new_identity();
        self.area.fill(Line([0; 64]));
        let bytes = self.bytes_mut();
        bytes[..2].copy_from_slice(&CONTROL_WORD.to_le_bytes());
        bytes[MXCSR_OFFSET..MXCSR_OFFSET + 4].copy_from_slice(&MXCSR.to_le_bytes());
        if USE_XSAVE.load(Ordering::Relaxed) {
            // x87 and SSE are in the area, the rest is in its initial state.
            bytes[LEGACY_BYTES] = 3;
        }
    }

    fn is_loaded(&self) -> bool {
        let local = local::current();
        self.cpu == local.id.load(Ordering::Relaxed)
            && local.float_owner.load(Ordering::Relaxed) == self.identity
    }

    /// Copies the registers here if this CPU holds this state's. To be called on the CPU that ran the thread, before
    /// the thread can run elsewhere.
    pub fn save(&mut self) {
        if !self.is_loaded() {
            return;
        }
        let area = self.area.as_mut_ptr().cast::<u8>();
        if USE_XSAVE.load(Ordering::Relaxed) {
            // SAFETY: the area has the size that the enabled components need, aligned to 64 bytes.
            unsafe { xsave(area, ENABLED.load(Ordering::Relaxed)) };
        } else {
            // SAFETY: 512 bytes, aligned to 16.
            unsafe { _fxsave64(area) };
        }
    }

    /// Loads the registers unless this CPU still holds this state's.
    pub fn restore(&mut self) {
        if self.is_loaded() {
            return;
        }
        let area = self.area.as_ptr().cast::<u8>();
        if USE_XSAVE.load(Ordering::Relaxed) {
            // SAFETY: as in `save`; `set_bytes` admits no header or MXCSR that the instruction would refuse.
            unsafe { xrstor(area, ENABLED.load(Ordering::Relaxed)) };
        } else {
            // SAFETY: as above.
            unsafe { _fxrstor64(area) };
        }
        let local = local::current();
        self.cpu = local.id.load(Ordering::Relaxed);
        local.float_owner.store(self.identity, Ordering::Relaxed);
    }

    /// The saved values in the processor's layout (XSAVE or FXSAVE), as signal frames carry them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: lines are plain bytes without padding.
        unsafe { core::slice::from_raw_parts(self.area.as_ptr().cast(), self.area.len() * size_of::<Line>()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.area.len() * size_of::<Line>();
        // SAFETY: as in `as_bytes`, and exclusively borrowed.
        unsafe { core::slice::from_raw_parts_mut(self.area.as_mut_ptr().cast(), length) }
    }

    /// Replaces the saved values by those of a signal frame, which a program may have written to: bits that the
    /// processor would refuse are cleared. Bytes beyond the area are ignored, missing ones are zero.
    pub fn set_bytes(&mut self, source: &[u8]) {
        self.identity = new_identity();
        let extended = USE_XSAVE.load(Ordering::Relaxed);
        let enabled = ENABLED.load(Ordering::Relaxed);
        let bytes = self.bytes_mut();
        let length = source.len().min(bytes.len());
        bytes.fill(0);
        bytes[..length].copy_from_slice(&source[..length]);
        let mut mxcsr = [0; 4];
        mxcsr.copy_from_slice(&bytes[MXCSR_OFFSET..MXCSR_OFFSET + 4]);
        let mxcsr = u32::from_le_bytes(mxcsr) & MXCSR_MASK;
        bytes[MXCSR_OFFSET..MXCSR_OFFSET + 4].copy_from_slice(&mxcsr.to_le_bytes());
        if extended {
            let header = &mut bytes[LEGACY_BYTES..LEGACY_BYTES + HEADER_BYTES];
            let mut present = [0; 8];
            present.copy_from_slice(&header[..8]);
            let present = u64::from_le_bytes(present) & enabled | 3;
            header.fill(0);
            header[..8].copy_from_slice(&present.to_le_bytes());
        }
    }
}

/// A saved state with the rights of protection keys, as programs see it.
///
/// # Errors
/// `ENOMEM`.
pub fn with_key_rights(state: &[u8], rights: KeyRights) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    let offset = KEY_RIGHTS_OFFSET.load(Ordering::Relaxed);
    let length = if offset == 0 { state.len() } else { offset + KEY_RIGHTS_BYTES };
    bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
    extend_reserved(&mut bytes, state);
    if offset == 0 {
        return Ok(bytes);
    }
    resize_reserved(&mut bytes, length, 0);
    bytes[offset..offset + 4].copy_from_slice(&rights.0.to_le_bytes());
    bytes[LEGACY_BYTES + 1] |= (KEY_RIGHTS >> 8) as u8;
    Ok(bytes)
}

/// Where a state that a program has written has the rights of protection keys, by its first bytes; `None` if it says
/// nothing of them. Like the processor, it takes a part that is not there for zero.
#[must_use]
pub fn key_rights_place(state: &[u8]) -> Option<usize> {
    let offset = KEY_RIGHTS_OFFSET.load(Ordering::Relaxed);
    let has_rights = state.get(LEGACY_BYTES + 1).is_some_and(|bits| bits & (KEY_RIGHTS >> 8) as u8 != 0);
    (offset != 0 && has_rights).then_some(offset)
}

/// Bytes of that part.
const KEY_RIGHTS_BYTES: usize = 8;

/// Size in bytes of a state as programs see it.
#[must_use]
pub fn visible_bytes() -> usize {
    match KEY_RIGHTS_OFFSET.load(Ordering::Relaxed) {
        0 => AREA_BYTES.load(Ordering::Relaxed),
        offset => offset + KEY_RIGHTS_BYTES,
    }
}

/// The components of such a state.
#[must_use]
pub fn visible_components() -> u64 {
    if protection_key::are_on() { components() | KEY_RIGHTS } else { components() }
}

fn new_identity() -> u64 {
    NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed)
}

/// The components that are saved, as a signal frame names them; 0 where only the legacy part is.
#[must_use]
pub fn components() -> u64 {
    if USE_XSAVE.load(Ordering::Relaxed) { ENABLED.load(Ordering::Relaxed) } else { 0 }
}

#[target_feature(enable = "xsave")]
unsafe fn xsave(area: *mut u8, components: u64) {
    // SAFETY: the caller's promise.
    unsafe { _xsave64(area, components) };
}

#[target_feature(enable = "xsave")]
unsafe fn xrstor(area: *const u8, components: u64) {
    // SAFETY: the caller's promise.
    unsafe { _xrstor64(area, components) };
}
