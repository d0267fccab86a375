//! Copies between the kernel and the memory of a program.
//!
//! User memory is (space, address, length), never a pointer: a coroutine may resume while another space is in use. A
//! copy checks that the range belongs to the space, makes this CPU use the space, and copies. It never waits; when a
//! page is missing it stops and says where, and the caller drops what it holds, awaits [`Space::fault_in`], and tries
//! again.
//!
//! `unsafe` here: the copies of [`crate::arch::user`], after the range check, and values as bytes.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::arch::paging::PAGE_SIZE;
use crate::arch::user::{Stopped, masked};
use crate::arch::{cpu, user};
pub use crate::error::PageFault;
use crate::error::{Errno, TryResult};
use crate::memory::raw::FrameSlice;
use crate::memory::{Space, shootdown};

use heddle_kernel_core::fallible::extend_reserved;

/// A type whose values are plain bytes: every bit pattern is a value, and there is no padding.
///
/// # Safety
/// That is what an implementation promises.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {
        $(
            // SAFETY: integers have no padding and no forbidden values.
            unsafe impl Plain for $type {}
        )*
    };
}

plain! { u8 i8 u16 i16 u32 i32 u64 i64 usize isize }

// SAFETY: an array has the padding of its elements, which is none.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// This CPU touches user memory while this exists; other CPUs' flushes wait for its end.
struct Using;

impl Using {
    fn begin() -> Self {
        shootdown::enter();
        Self
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        shootdown::leave();
    }
}

impl Space {
    /// Checks that `length` bytes from `address` are in this space.
    fn check(&self, address: usize, length: usize, write: bool) -> Result<(), PageFault> {
        let range = self.range();
        let inside = range.start <= address && length <= range.end.saturating_sub(address);
        if !inside && length > 0 {
            let first_bad = if range.contains(&address) { range.end } else { address };
            return Err(PageFault { address: first_bad, write });
        }
        #[cfg(feature = "checking")]
        if crate::memory::fault_injection::fails(crate::memory::fault_injection::FailurePoint::Copy) {
            return Err(PageFault { address, write });
        }
        Ok(())
    }

    /// Checks the range, and makes this CPU use the space.
    fn prepare(&self, address: usize, length: usize, write: bool) -> Result<Using, PageFault> {
        self.check(address, length, write)?;
        loop {
            self.activate();
            let using = Using::begin();
            // Its tables may have become a child's, or it may have left them, before others saw the use.
            if cpu::count() == 1 || self.is_active() {
                return Ok(using);
            }
        }
    }

    /// Reads user memory.
    ///
    /// # Errors
    /// [`PageFault`]: bytes below its address were read.
    pub fn read_bytes(&self, address: usize, bytes: &mut [u8]) -> Result<(), PageFault> {
        let _using = self.prepare(address, bytes.len(), false)?;
        // SAFETY: the range is in the lower half (`prepare`), and `bytes` is valid for its length.
        unsafe { user::copy_from(bytes.as_mut_ptr(), masked(address), bytes.len()) }.map_err(fault(false))
    }

    /// Writes user memory.
    ///
    /// # Errors
    /// [`PageFault`]: bytes below its address were written.
    pub fn write_bytes(&self, address: usize, bytes: &[u8]) -> Result<(), PageFault> {
        let _using = self.prepare(address, bytes.len(), true)?;
        // SAFETY: the range is in the lower half (`prepare`), and `bytes` is valid for its length.
        unsafe { user::copy_to(masked(address), bytes.as_ptr(), bytes.len()) }.map_err(fault(true))
    }

    /// Copies a part of a frame to user memory of the same length.
    ///
    /// # Errors
    /// [`PageFault`]: bytes below its address were written.
    pub fn write_frame(&self, address: usize, bytes: FrameSlice<'_>) -> Result<(), PageFault> {
        let _using = self.prepare(address, bytes.len(), true)?;
        // SAFETY: the range is in the lower half (`prepare`), and the slice is memory of its length.
        unsafe { user::copy_to(masked(address), bytes.as_ptr(), bytes.len()) }.map_err(fault(true))
    }

    /// Fills a part of a frame from user memory of the same length.
    ///
    /// # Errors
    /// [`PageFault`]: bytes below its address were read.
    pub fn read_frame(&self, address: usize, bytes: FrameSlice<'_>) -> Result<(), PageFault> {
        let _using = self.prepare(address, bytes.len(), false)?;
        // SAFETY: the range is in the lower half (`prepare`), and the slice is memory of its length.
        unsafe { user::copy_from(bytes.as_ptr(), masked(address), bytes.len()) }.map_err(fault(false))
    }

    /// Fills user memory with zeros.
    ///
    /// # Errors
    /// [`PageFault`]: bytes below its address were cleared.
    pub fn clear_bytes(&self, address: usize, length: usize) -> Result<(), PageFault> {
        let _using = self.prepare(address, length, true)?;
        // SAFETY: the range is in the lower half (`prepare`).
        unsafe { user::clear(masked(address), length) }.map_err(fault(true))
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`PageFault`].
    pub fn read<T: Plain>(&self, address: usize) -> Result<T, PageFault> {
        let mut value = MaybeUninit::<T>::zeroed();
        let _using = self.prepare(address, size_of::<T>(), false)?;
        // SAFETY: the range is in the lower half, and the value has room for its size.
        unsafe { user::copy_from(value.as_mut_ptr().cast(), masked(address), size_of::<T>()) }
            .map_err(fault(false))?;
        // SAFETY: all bytes are initialized, and every pattern is a value of a plain type.
        Ok(unsafe { value.assume_init() })
    }

    /// Writes a value.
    ///
    /// # Errors
    /// [`PageFault`]; a part of the value may have been written.
    pub fn write<T: Plain>(&self, address: usize, value: &T) -> Result<(), PageFault> {
        let _using = self.prepare(address, size_of::<T>(), true)?;
        let bytes = core::ptr::from_ref(value).cast();
        // SAFETY: the range is in the lower half, and a plain value is readable byte by byte.
        unsafe { user::copy_to(masked(address), bytes, size_of::<T>()) }.map_err(fault(true))
    }

    /// Appends the string at an address to `string`, without its zero byte, which must be among the first `limit`
    /// bytes: `Ok(false)` if it is not.
    ///
    /// # Errors
    /// A fault, with `string` as it was before; `ENOMEM`.
    pub fn read_cstr(&self, address: usize, limit: usize, string: &mut Vec<u8>) -> TryResult<bool> {
        let before = string.len();
        let mut chunk = [0; 128];
        let mut at = address;
        let end = address.saturating_add(limit);
        while at < end {
            // Up to a page's end, so that nothing behind the string is touched that might be missing.
            let length = chunk.len().min(end - at).min(PAGE_SIZE - at % PAGE_SIZE);
            if let Err(stopped) = self.read_bytes(at, &mut chunk[..length]) {
                string.truncate(before);
                return Err(stopped.into());
            }
            let text = chunk[..length].split(|&byte| byte == 0).next().unwrap_or(&[]);
            string.try_reserve(text.len()).map_err(|_| Errno::ENOMEM)?;
            extend_reserved(string, text);
            if text.len() < length {
                return Ok(true);
            }
            at += length;
        }
        Ok(false)
    }

    /// Loads an aligned word in one access.
    ///
    /// # Errors
    /// [`PageFault`].
    pub fn load_u32(&self, address: usize) -> Result<u32, PageFault> {
        let _using = self.prepare(address & !3, 4, false)?;
        // SAFETY: aligned, and in the lower half.
        unsafe { user::load(masked(address) & !3) }.map_err(fault(false))
    }

    /// Compares and exchanges an aligned word atomically; returns what was there. The address's last two bits are
    /// ignored.
    ///
    /// # Errors
    /// [`PageFault`].
    pub fn compare_exchange_u32(&self, address: usize, expected: u32, new: u32) -> Result<u32, PageFault> {
        let _using = self.prepare(address & !3, 4, true)?;
        // SAFETY: aligned, and in the lower half.
        unsafe { user::compare_exchange(masked(address) & !3, expected, new) }.map_err(fault(true))
    }

    /// Checks that a range can be written now, without changing it.
    ///
    /// # Errors
    /// [`PageFault`].
    pub fn probe_write(&self, address: usize, length: usize) -> Result<(), PageFault> {
        self.check(address, length, true)?;
        let mut at = address;
        let end = address.saturating_add(length);
        while at < end {
            // Stores 0 where there is 0: needs the right to store, and changes nothing.
            self.compare_exchange_u32(at, 0, 0)?;
            at = (at & !(PAGE_SIZE - 1)) + PAGE_SIZE;
        }
        Ok(())
    }
}

/// Reads the last word below `end`, an address of the running program, without leave to do so. It returns only where
/// the processor has no SMAP.
#[cfg(feature = "checking")]
pub fn provoke_access(end: usize) {
    if (PAGE_SIZE..=crate::arch::paging::USER_END).contains(&end) {
        // SAFETY: aligned, and in the lower half. Should the page be missing, the machine ends all the same.
        let word = unsafe { user::provoke_access((end - 4) & !3) };
        ::log::warn!("the kernel could read a program's memory: {word:#x}");
    }
}

fn fault(write: bool) -> impl Fn(Stopped) -> PageFault {
    move |stopped| PageFault { address: stopped.address, write }
}
