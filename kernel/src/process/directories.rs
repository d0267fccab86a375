//! Where a thread's paths start.

use core::sync::atomic::AtomicU32;

/// Root, working directory and file creation mask, shared by the threads that `CLONE_FS` joins.
pub struct Directories {
    /// File creation mask.
    pub umask: AtomicU32,
}
