//! The few services of the operating system that executors need beside the standard library's: a word to sleep on, a
//! barrier that reaches other threads, memory given back, and descriptors. Linux has its own for the first three. The
//! cfg `heddle_portable` takes what other systems get there too, so that it is tested.

mod descriptor;
#[cfg(all(any(target_os = "linux", target_os = "android"), not(heddle_portable)))]
mod linux;
#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(heddle_portable))))]
mod portable;

pub(crate) use descriptor::{AsFd, BorrowedFd, RawFd, borrow, borrow_raw, raw, set_nonblocking};
#[cfg(all(any(target_os = "linux", target_os = "android"), not(heddle_portable)))]
pub(crate) use linux::{can_discard, discard, has_heavy_barrier, heavy_barrier, sleep_on, wake_word};
#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(heddle_portable))))]
pub(crate) use portable::{can_discard, discard, has_heavy_barrier, heavy_barrier, sleep_on, wake_word};

/// Whether the poller forgets a descriptor by itself when it is closed, so that one that nobody waits for can stay.
pub(crate) const CLOSING_FORGETS: bool =
    cfg!(all(any(target_os = "linux", target_os = "android"), not(heddle_portable)));
