//! Memory that programs may write at the same time.
//!
//! A page that a program has mapped is shared with threads that run on other CPUs, so the kernel never has a Rust
//! reference to its bytes: they are read and written by raw copies only, as bytes. Such a copy may race with the
//! program's stores; the kernel believes nothing of what it has read until it has checked its own copy.
//!
//! `unsafe` here: the copies, inside of memory that the lender keeps.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;

use crate::arch::user as copy;

/// Bytes of a frame that programs may use at the same time.
#[derive(Clone, Copy, Debug)]
pub struct FrameSlice<'a> {
    start: *mut u8,
    length: usize,
    lender: PhantomData<&'a ()>,
}

impl<'a> FrameSlice<'a> {
    /// `length` bytes at `start`.
    ///
    /// # Safety
    /// They are in the direct map, and stay memory as long as the lender lives. A writer holds a page
    /// that may be written.
    pub(super) const unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length, lender: PhantomData }
    }

    /// How many bytes it is.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the part is not inside.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> FrameSlice<'a> {
        assert!(range.start <= range.end && range.end <= self.length);
        Self {
            start: self.start.wrapping_add(range.start),
            length: range.end - range.start,
            lender: PhantomData,
        }
    }

    /// Where it is, for a raw copy.
    pub(super) const fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Copies all of it to `bytes`, which is as long.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn read(&self, bytes: &mut [u8]) {
        assert!(bytes.len() == self.length);
        // SAFETY: this memory is there (`new`), and `bytes` is valid for its length; neither copy can fault.
        let _ = unsafe { copy::copy_from(bytes.as_mut_ptr(), self.start as usize, self.length) };
    }

    /// Copies `bytes`, which is as long, over all of it.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() == self.length);
        // SAFETY: as in `read`; that the page may be written is the lender's promise.
        let _ = unsafe { copy::copy_to(self.start as usize, bytes.as_ptr(), self.length) };
    }
}
