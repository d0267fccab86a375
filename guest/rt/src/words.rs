//! A system call as the kernel takes it: a number and six words.
#![allow(unsafe_code)] // System calls, and descriptors from their results.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// Linux's number.
    pub number: libc::c_long,
    /// The arguments.
    pub arguments: [u64; 6],
    /// The result is a descriptor, which must not be lost.
    pub makes_descriptor: bool,
}

impl Words {
    /// The call `number`, whose result is an `O`.
    pub fn new<O: Output>(number: libc::c_long, arguments: [u64; 6]) -> Words {
        Words { number, arguments, makes_descriptor: O::IS_DESCRIPTOR }
    }

    /// Calls synchronously; the result is what the kernel returns, errors negated.
    pub fn call(&self) -> i64 {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: a `Words` is made of parameters that the calls in `calls` describe, and its maker keeps their
        // memory until the call is over.
        let result = unsafe { libc::syscall(self.number, a, b, c, d, e, f) };
        if result == -1 { -i64::from(last_error()) } else { result }
    }
}

/// `errno`.
pub(crate) fn last_error() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The type of a call's result.
pub(crate) trait Output {
    const IS_DESCRIPTOR: bool = false;

    fn of(result: i64) -> Self;
}

impl Output for () {
    fn of(_: i64) {}
}

impl Output for usize {
    fn of(result: i64) -> usize {
        result as usize
    }
}

impl Output for OwnedFd {
    const IS_DESCRIPTOR: bool = true;

    fn of(result: i64) -> OwnedFd {
        // SAFETY: the kernel has just made it, for this call alone.
        unsafe { OwnedFd::from_raw_fd(result as i32) }
    }
}

/// The result of a call as a value or an error.
pub(crate) fn output<O: Output>(result: i64) -> io::Result<O> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(O::of(result)) }
}
