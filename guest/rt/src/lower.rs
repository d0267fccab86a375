//! Parameters of system calls as words: what the descriptions in [`crate::calls`] see of them.

use core::ffi::CStr;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};

/// One word.
#[derive(Clone, Copy)]
pub(crate) struct Plain(u64);

impl Plain {
    pub fn word(self) -> u64 {
        self.0
    }
}

/// Memory: where, and how much.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    address: u64,
    length: u64,
}

impl Memory {
    fn of<T>(pointer: *const T, length: usize) -> Memory {
        Memory { address: pointer.expose_provenance() as u64, length: length as u64 }
    }

    pub fn address(self) -> u64 {
        self.address
    }

    /// In elements.
    pub fn length(self) -> u64 {
        self.length
    }
}

/// The number of a descriptor.
pub(crate) fn number(descriptor: &impl AsFd) -> RawFd {
    descriptor.as_fd().as_raw_fd()
}

pub(crate) fn fd(number: RawFd) -> Plain {
    Plain(number as u64)
}

/// A descriptor that the call itself closes.
#[derive(Debug)]
pub struct Closing(Option<OwnedFd>);

impl<T: Into<OwnedFd>> From<T> for Closing {
    fn from(descriptor: T) -> Closing {
        Closing(Some(descriptor.into()))
    }
}

pub(crate) fn closing(descriptor: &mut Closing) -> Plain {
    // Taken once: the words of a call are made once.
    Plain(descriptor.0.take().map_or(-1, IntoRawFd::into_raw_fd) as u64)
}

pub(crate) fn input(bytes: &[u8]) -> Memory {
    Memory::of(bytes.as_ptr(), bytes.len())
}

pub(crate) fn output(bytes: &mut [u8]) -> Memory {
    Memory::of(bytes.as_mut_ptr(), bytes.len())
}

pub(crate) fn records<T>(records: &mut impl DerefMut<Target = [T]>) -> Memory {
    Memory::of(records.as_mut_ptr(), records.len())
}

pub(crate) fn record<T>(record: &mut impl DerefMut<Target = T>) -> Memory {
    Memory::of(core::ptr::from_mut::<T>(record), 1)
}

pub(crate) fn path(path: &mut impl AsPath) -> Memory {
    let path = path.path();
    Memory::of(path.as_ptr(), path.to_bytes_with_nul().len())
}

/// A path that ends with a zero, owned or borrowed.
pub(crate) trait AsPath {
    fn path(&self) -> &CStr;
}

impl AsPath for &CStr {
    fn path(&self) -> &CStr {
        self
    }
}

impl AsPath for std::ffi::CString {
    fn path(&self) -> &CStr {
        self
    }
}

pub(crate) fn word(word: &mut impl Deref<Target = AtomicU32>) -> Memory {
    Memory::of(word.as_ptr(), 1)
}

/// A length of time, where the kernel finds it.
#[derive(Debug)]
pub struct Span(Box<libc::timespec>);

impl From<Duration> for Span {
    fn from(duration: Duration) -> Span {
        let seconds = duration.as_secs().min(i64::MAX as u64);
        Span(Box::new(libc::timespec {
            tv_sec: seconds as libc::time_t,
            tv_nsec: duration.subsec_nanos().into(),
        }))
    }
}

pub(crate) fn span(span: &mut Span) -> Memory {
    Memory::of(&raw const *span.0, 1)
}
