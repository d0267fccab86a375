//! One side of a pair that sends signals: each wakes the other, whose handler runs, by a signal to its thread.
#![allow(unsafe_code, reason = "handlers and masks of signals have no safe form")]

use std::sync::atomic::{AtomicU32, Ordering};

use crate::measure::check;

/// The signal that each side receives.
const SIGNALS: [libc::c_int; 2] = [libc::SIGUSR1, libc::SIGUSR2];
/// How many signals have come for each side that is in this process.
static ARRIVED: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// One side.
pub struct Signals {
    /// The thread of each side, 0 until it can be sent to.
    threads: &'static [AtomicU32; 2],
    own: usize,
    /// Whether the other side is a thread of this process.
    is_thread: bool,
}

extern "C" fn count(signal: libc::c_int) {
    let side = usize::from(signal == SIGNALS[1]);
    ARRIVED[side].fetch_add(1, Ordering::Relaxed);
}

impl Signals {
    /// A side whose thread is not known yet; `threads` is memory of both.
    pub fn new(threads: &'static [AtomicU32; 2], own: usize, is_thread: bool) -> Self {
        Self { threads, own, is_thread }
    }

    /// Makes the calling thread this side's, and waits for the other's.
    pub fn meet(&self) -> Result<(), std::io::Error> {
        let mut action = empty_action();
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as libc::sighandler_t;
        let mut blocked = action.sa_mask;
        // SAFETY: the handler only adds to an atomic; sets and action live through the calls.
        unsafe {
            libc::sigaddset(&raw mut blocked, SIGNALS[self.own]);
            check(libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut()).into())?;
            check(libc::sigaction(SIGNALS[self.own], &raw const action, std::ptr::null_mut()).into())?;
        }
        let thread = nix::unistd::gettid().as_raw();
        self.threads[self.own].store(thread as u32, Ordering::Release);
        while self.threads[1 - self.own].load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Signals the other side.
    pub fn send(&self) -> Result<(), std::io::Error> {
        let thread = self.threads[1 - self.own].load(Ordering::Relaxed);
        let process = if self.is_thread { std::process::id() } else { thread };
        let signal = SIGNALS[1 - self.own];
        // SAFETY: a call without memory.
        check(unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) }).map(drop)
    }

    /// Waits until the other side's signal has been handled.
    pub fn receive(&self) {
        let arrived = &ARRIVED[self.own];
        let mut open = empty_action().sa_mask;
        // SAFETY: the set lives through the calls; the own signal is delivered only within the second, so none is
        // missed between the look and the wait.
        unsafe {
            libc::sigaddset(&raw mut open, SIGNALS[1 - self.own]);
            while arrived.load(Ordering::Relaxed) == 0 {
                libc::sigsuspend(&raw const open);
            }
        }
        arrived.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An action with nothing in it, and with an empty set.
fn empty_action() -> libc::sigaction {
    // SAFETY: an action is of numbers, sets and a pointer that may be null; all zero is the empty set on Linux.
    unsafe { std::mem::zeroed() }
}
