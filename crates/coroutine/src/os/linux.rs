//! Sleeping on a word by `futex`, and fences in other threads by `membarrier`.
#![allow(unsafe_code)] // System calls.

use crate::sync::{AtomicU32, Ordering, fence};
use core::ptr;
use core::time::Duration;

/// Wakes the thread that sleeps on `word`. Safe in signal handlers.
pub(crate) fn wake_word(word: &AtomicU32) {
    // SAFETY: a futex wake only reads the address, which is valid; it changes no memory.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

/// Sleeps as long as `word` is `calm`, until it is woken or for `limit`. May return early.
pub(crate) fn sleep_on(word: &'static AtomicU32, calm: u32, limit: Option<Duration>) {
    let timeout = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word lives for ever, the timeout for the call. A signal or a spurious return does no harm: the
    // caller looks for work after every sleep.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            calm,
            timeout,
        );
    }
}

/// Whether every thread of the process can be made to pass a fence, so that owners need none of their own.
pub(crate) fn has_heavy_barrier() -> bool {
    if cfg!(miri) {
        return false;
    }
    // SAFETY: registers the process; has no effect on memory.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

/// Makes every running thread of the process pass a fence, if [`has_heavy_barrier`]; one of its own otherwise.
pub(crate) fn heavy_barrier() {
    fence(Ordering::SeqCst);
    if !cfg!(miri) {
        // SAFETY: a barrier; without registration it fails, and then owners have fences of their own.
        unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) };
        fence(Ordering::SeqCst);
    }
}

/// Whether [`discard`] gives anything back.
pub(crate) const CAN_DISCARD: bool = true;

/// Gives the pages of `bytes` bytes at `start`, which are the caller's, back to the system: afterwards they are zeros,
/// or what they were.
pub(crate) fn discard(start: *mut u8, bytes: usize) {
    if !cfg!(miri) {
        // SAFETY: the memory stays mapped. Its content is the caller's, who expects zeros.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) };
    }
}
