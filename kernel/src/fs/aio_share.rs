//! How many requests of native asynchronous I/O there may be, and how many contexts were made for.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::error::Errno;

/// The most requests of all contexts together, as Linux has it (`fs.aio-max-nr`).
pub static REQUESTS_MAX: AtomicU32 = AtomicU32::new(65536);

/// The requests that contexts were made for (`fs.aio-nr`).
static REQUESTS: AtomicU32 = AtomicU32::new(0);

/// How many requests contexts were made for.
pub fn requests() -> u32 {
    REQUESTS.load(Ordering::Relaxed)
}

/// A share in [`REQUESTS`].
pub struct RequestShare(u32);

impl RequestShare {
    /// A share for one context.
    ///
    /// # Errors
    /// `EAGAIN`: there are too many.
    pub fn take(requests: u32) -> Result<Self, Errno> {
        let max = REQUESTS_MAX.load(Ordering::Relaxed);
        let taken = REQUESTS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| {
            sum.checked_add(requests).filter(|&sum| sum <= max)
        });
        taken.map(|_| Self(requests)).map_err(|_| Errno::EAGAIN)
    }
}

impl Drop for RequestShare {
    fn drop(&mut self) {
        REQUESTS.fetch_sub(self.0, Ordering::Relaxed);
    }
}
