//! Copies between kernel and user memory that survive a page fault.
//!
//! This module ensures only that no *fault* harms the kernel; its one caller, `memory::user`, ensures that an address
//! belongs to the right program.
//! `unsafe` here: raw copies and the table of fault continuations.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::x86_64::local::MAX_CPUS;
use crate::arch::x86_64::{local, paging};

global_asm!(include_str!("user.s"), options(att_syntax, raw));

unsafe extern "C" {
    fn heddle_user_copy(to: *mut u8, from: *const u8, length: usize) -> usize;
    fn heddle_user_clear(to: *mut u8, length: usize) -> usize;
    fn heddle_user_load(from: *const u32, to: *mut u32) -> usize;
    fn heddle_user_exchange(at: *mut u32, expected: u32, new: u32, found: *mut u32) -> usize;
    fn heddle_read_register(number: u32, to: *mut u64) -> usize;
    fn heddle_write_register(number: u32, value: u64) -> usize;
    static heddle_site_copy: u8;
    static heddle_copy_bytes: u8;
    static heddle_fixups: [u64; 3];
    static heddle_fixups_end: [u64; 3];
}

static FAULT_ADDRESS: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];

/// A fault stopped an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Bytes done before it.
    pub done: usize,
    /// The address that faulted.
    pub address: usize,
}

fn outcome(length: usize, left: usize) -> Result<(), Stopped> {
    if left == 0 {
        return Ok(());
    }
    Err(Stopped { done: length - left, address: FAULT_ADDRESS[local::current_id()].load(Ordering::Relaxed) })
}

/// The same address if it lies in the lower half, and one that nobody has otherwise: a processor that runs ahead of the
/// check that an address is a program's must not load from the kernel's half.
#[must_use]
#[inline(always)]
pub fn masked(address: usize) -> usize {
    let (mut result, sign): (usize, usize) = (address, address);
    // SAFETY: computes with two registers. The compiler, which believes in the check, must not leave it out.
    unsafe {
        asm!("sar {sign}, 63", "or {result}, {sign}", sign = inout(reg) sign => _, result = inout(reg) result,
             options(pure, nomem, nostack));
    }
    result
}

/// Copies from user memory.
///
/// # Errors
/// [`Stopped`] at a fault.
///
/// # Safety
/// `from..from + length` lies in the lower half, and `to` is valid for writes of `length` bytes.
pub unsafe fn copy_from(to: *mut u8, from: usize, length: usize) -> Result<(), Stopped> {
    // SAFETY: the caller's promise; user memory may fault, which the fixup table turns into a short count.
    outcome(length, unsafe { heddle_user_copy(to, from as *const u8, length) })
}

/// Copies to user memory.
///
/// # Errors
/// [`Stopped`] at a fault.
///
/// # Safety
/// `to..to + length` lies in the lower half, and `from` is valid for reads of `length` bytes.
pub unsafe fn copy_to(to: usize, from: *const u8, length: usize) -> Result<(), Stopped> {
    // SAFETY: as in `copy_from`.
    outcome(length, unsafe { heddle_user_copy(to as *mut u8, from, length) })
}

/// Fills user memory with zeros.
///
/// # Errors
/// [`Stopped`] at a fault.
///
/// # Safety
/// `to..to + length` lies in the lower half.
pub unsafe fn clear(to: usize, length: usize) -> Result<(), Stopped> {
    // SAFETY: as in `copy_from`.
    outcome(length, unsafe { heddle_user_clear(to as *mut u8, length) })
}

/// Loads an aligned word of user memory in one access.
///
/// # Errors
/// [`Stopped`] at a fault.
///
/// # Safety
/// `from` is a multiple of 4 in the lower half.
pub unsafe fn load(from: usize) -> Result<u32, Stopped> {
    let mut value = 0;
    // SAFETY: as in `copy_from`; `value` is this function's own.
    outcome(4, 4 * unsafe { heddle_user_load(from as *const u32, &raw mut value) })?;
    Ok(value)
}

/// Compares and exchanges an aligned word of user memory atomically; returns what was found.
///
/// # Errors
/// [`Stopped`] at a fault.
///
/// # Safety
/// `at` is a multiple of 4 in the lower half.
pub unsafe fn compare_exchange(at: usize, expected: u32, new: u32) -> Result<u32, Stopped> {
    let mut found = 0;
    // SAFETY: as in `load`.
    outcome(4, 4 * unsafe { heddle_user_exchange(at as *mut u32, expected, new, &raw mut found) })?;
    Ok(found)
}

/// Reads a word of user memory as if it were the kernel's, for the test that shows that the processor refuses it.
///
/// # Safety
/// `from` is a multiple of 4 in the lower half, and the page is there.
#[cfg(feature = "checking")]
pub unsafe fn provoke_access(from: usize) -> u32 {
    // SAFETY: the caller's promise; with SMAP it faults, which ends the machine.
    unsafe { core::ptr::with_exposed_provenance::<u32>(from).read_volatile() }
}

/// A model-specific register, if the processor has it.
pub(super) fn read_register(number: u32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: reading has no effect, and a register that is missing is a fault that the table names.
    (unsafe { heddle_read_register(number, &raw mut value) } == 0).then_some(value)
}

/// Writes a model-specific register; `false` if the processor refuses.
///
/// # Safety
/// The kernel can live with the value.
pub(super) unsafe fn write_register(number: u32, value: u64) -> bool {
    // SAFETY: the caller's promise; a refusal is a fault that the table names.
    unsafe { heddle_write_register(number, value) == 0 }
}

/// Has large copies made by bytes: for processors that are fast at it. Before other processors start.
pub(super) fn copy_by_bytes() {
    let (site, target) = (&raw const heddle_site_copy as usize, &raw const heddle_copy_bytes as usize);
    let distance = (target - site - 2) as u8;
    patch(&raw const heddle_site_copy, &[0xeb, distance]);
}

/// Writes instructions over others of the same length. Only the boot processor may run, and not these.
pub(super) fn patch(site: *const u8, code: &[u8]) {
    let target: *mut u8 = paging::direct_map(paging::physical_of(site));
    // SAFETY: the callers name sites of the kernel's text, which the direct map shows writable.
    unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), target, code.len()) };
}

/// Where kernel code that faulted at `rip` continues; `None` if it may not fault there.
pub(super) fn fixup(rip: u64) -> Option<u64> {
    let start = &raw const heddle_fixups;
    let end = &raw const heddle_fixups_end;
    let count = (end as usize - start as usize) / size_of::<[u64; 3]>();
    // SAFETY: the assembly in user.s fills the section between the two symbols with such triples.
    let table = unsafe { core::slice::from_raw_parts(start, count) };
    table.iter().find(|[from, to, _]| (*from..*to).contains(&rip)).map(|[_, _, target]| *target)
}

/// Remembers the address for the access that [`fixup`] ends.
pub(super) fn note_fault(address: usize) {
    FAULT_ADDRESS[local::current_id()].store(address, Ordering::Relaxed);
}
