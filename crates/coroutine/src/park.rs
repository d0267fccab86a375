//! How a thread that runs a core sleeps and is woken, on Linux.
#![allow(unsafe_code)] // Two system calls.

use crate::core_entry::{CoreEntry, Hooks};
use crate::reactor;
use crate::sync::{Ordering, fence, spin_hint};
use core::ptr;
use core::time::Duration;
use std::time::Instant;

/// The parker's word: nobody has kicked since the thread last looked.
const CALM: u32 = 0;
const KICKED: u32 = 1;

/// Cores whose own thread sleeps on the entry's word.
pub(crate) static THREAD_HOOKS: Hooks = Hooks { kick, is_here, left: |_, _| {} };

fn is_here(entry: &CoreEntry) -> bool {
    crate::threads::here().is_some_and(|here| ptr::eq(here, entry))
}

/// Wakes the thread that sleeps in [`sleep`], or makes its next sleep end at once. Safe in signal handlers.
pub(crate) fn kick(entry: &CoreEntry) {
    if entry.parker.swap(KICKED, Ordering::AcqRel) == CALM {
        if entry.polling.load(Ordering::Relaxed) != 0 {
            return reactor::notify();
        }
        // SAFETY: a futex wake only reads the address, which is valid; it changes no memory.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                entry.parker.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            );
        }
    }
}

/// Sleeps until a kick or for `limit`; the kick is used up. May return early.
pub(crate) fn sleep(entry: &CoreEntry, limit: Option<Duration>) {
    let kicked = || entry.parker.swap(CALM, Ordering::AcqRel) == KICKED;
    if let Some(host) = crate::host::host() {
        if !kicked() {
            host.sleep(&entry.parker, CALM, limit);
            entry.parker.store(CALM, Ordering::Relaxed);
        }
        return;
    }
    if reactor::sleep_in(entry, limit, kicked) || kicked() {
        return;
    }
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
            entry.parker.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            CALM,
            timeout,
        );
    }
    entry.parker.store(CALM, Ordering::Relaxed);
}

/// How long a core spins before it sleeps: long if its sleeps turn out short, because then a poster pays for a system
/// call that the spinning would have spared both.
pub(crate) struct Patience {
    spins: u32,
}

/// In looks at the inbox; the longest spin is some microseconds, about what a wake costs.
const SPINS_MIN: u32 = 4;
const SPINS_MAX: u32 = 100;

/// A sleep below this was not worth it.
const SHORT: Duration = Duration::from_micros(50);

impl Patience {
    pub fn new() -> Patience {
        Patience { spins: SPINS_MIN }
    }

    /// Waits a little for a post; `true` if there was one.
    pub fn spin(&self, entry: &CoreEntry) -> bool {
        for _ in 0..self.spins {
            if !entry.state.inbox().is_empty() {
                return true;
            }
            spin_hint();
        }
        false
    }

    /// Sleeps like [`sleep`], and learns from it.
    pub fn sleep(&mut self, entry: &CoreEntry, limit: Option<Duration>) {
        let start = Instant::now();
        sleep(entry, limit);
        let short = !entry.state.inbox().is_empty() && start.elapsed() < SHORT;
        self.spins = if short { SPINS_MAX } else { (self.spins / 2).max(SPINS_MIN) };
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
