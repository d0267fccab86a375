//! In which process of a line of forks the caller is.

#[cfg(feature = "scheduler")]
use crate::sync::{AtomicU32, Ordering};

#[cfg(feature = "scheduler")]
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the process and its first ancestor that called
/// [`follow_forks`](crate::follow_forks): another number than before says that the caller is in a child.
#[cfg(feature = "scheduler")]
#[inline]
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Nobody follows forks.
#[cfg(not(feature = "scheduler"))]
#[inline]
pub(crate) const fn forks() -> u32 {
    0
}

/// The caller is in a new child.
#[cfg(feature = "scheduler")]
pub(crate) fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
