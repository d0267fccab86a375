//! Memory that was promised to programs and is not used yet: `vm.overcommit_memory`, and `vm.overcommit_ratio` or
//! `vm.overcommit_kbytes`.
//!
//! A private mapping that can be written promises its pages when it is made, wherever it is made or becomes writable;
//! `MAP_NORESERVE` takes that back unless promises are limited. Memory that processes share is checked as a request
//! when it is made; its pages are not among the promises.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use heddle_kernel_core::overcommit::{Mode, limit};

use crate::arch::paging::PAGE_SIZE;
use crate::error::Errno;
use crate::memory::frame;

/// Linux's default for the part of memory that may be promised, in percent.
const RATIO_DEFAULT: u32 = 50;

static MODE: AtomicU32 = AtomicU32::new(0);
static RATIO: AtomicU32 = AtomicU32::new(RATIO_DEFAULT);
/// `vm.overcommit_kbytes`.
static LIMIT_KIB: AtomicU32 = AtomicU32::new(0);
/// The bytes that all spaces have been promised.
static PROMISED: AtomicUsize = AtomicUsize::new(0);

/// The number of the mode.
pub fn mode_number() -> u32 {
    MODE.load(Ordering::Relaxed)
}

fn mode() -> Mode {
    Mode::from_number(mode_number()).unwrap_or(Mode::Heuristic)
}

/// Whether promises are limited, so that no mapping can do without them.
pub fn is_limited() -> bool {
    mode() == Mode::Limited
}

/// Changes the mode.
///
/// # Errors
/// `EINVAL`.
pub fn set_mode(number: u32) -> Result<(), Errno> {
    Mode::from_number(number).ok_or(Errno::EINVAL)?;
    MODE.store(number, Ordering::Relaxed);
    Ok(())
}

/// How much of memory may be promised, in percent, if promises are limited.
pub fn ratio() -> u32 {
    RATIO.load(Ordering::Relaxed)
}

/// Changes that.
pub fn set_ratio(percent: u32) {
    RATIO.store(percent, Ordering::Relaxed);
    LIMIT_KIB.store(0, Ordering::Relaxed);
}

/// How much may be promised if promises are limited, in KiB, where it is not a part of memory; else 0.
pub fn limit_kib() -> u32 {
    LIMIT_KIB.load(Ordering::Relaxed)
}

/// Changes that. Of this limit and the part of memory, the one that was set last counts.
pub fn set_limit_kib(kib: u32) {
    LIMIT_KIB.store(kib, Ordering::Relaxed);
    RATIO.store(0, Ordering::Relaxed);
}

/// How much may be promised out of so many frames.
pub fn limit_bytes(frames: usize) -> usize {
    match limit_kib() as usize {
        0 => limit(frames * PAGE_SIZE, ratio()),
        kib => kib * 1024,
    }
}

/// The bytes that all spaces have been promised.
pub fn promised() -> usize {
    PROMISED.load(Ordering::Relaxed)
}

/// Checks a request for more memory.
///
/// # Errors
/// `ENOMEM`.
pub fn check(bytes: usize) -> Result<(), Errno> {
    let frames = frame::total_frames();
    let max = if is_limited() { limit_bytes(frames) } else { 0 };
    if bytes == 0 || mode().allows(bytes, promised(), frames * PAGE_SIZE, max) {
        Ok(())
    } else {
        Err(Errno::ENOMEM)
    }
}

/// The promise to one space, in bytes.
#[derive(Debug, Default)]
pub struct Promise(usize);

impl Promise {
    /// A promise of this much.
    pub fn new(bytes: usize) -> Self {
        let mut promise = Self(0);
        promise.set(bytes);
        promise
    }

    /// It is this much now.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.0 {
            PROMISED.fetch_add(bytes - self.0, Ordering::Relaxed);
        } else {
            PROMISED.fetch_sub(self.0 - bytes, Ordering::Relaxed);
        }
        self.0 = bytes;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.set(0);
    }
}
