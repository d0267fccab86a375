//! How much of each there may be: `/proc/sys/kernel`, and for POSIX message queues `/proc/sys/fs/mqueue`, where the
//! superuser changes them.

use core::sync::atomic::{AtomicUsize, Ordering};

use heddle_kernel_core::sysv_ipc::registry::PLACES;

use crate::error::Errno;

/// A limit that can be changed.
pub struct IpcLimit {
    value: AtomicUsize,
    min: usize,
    max: usize,
}

impl IpcLimit {
    const fn new(value: usize, max: usize) -> Self {
        Self::between(value, 0, max)
    }

    const fn between(value: usize, min: usize, max: usize) -> Self {
        Self { value: AtomicUsize::new(value), min, max }
    }

    /// Its value.
    pub fn get(&self) -> usize {
        self.value.load(Ordering::Relaxed)
    }

    /// Changes it.
    ///
    /// # Errors
    /// `EINVAL`: it cannot be as large or as small.
    pub fn set(&self, value: usize) -> Result<(), Errno> {
        if value < self.min || value > self.max {
            return Err(Errno::EINVAL);
        }
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// As good as none: rounding up to pages must not overflow.
const UNLIMITED: usize = usize::MAX - (1 << 24);

/// Bytes of a segment.
pub static SHMMAX: IpcLimit = IpcLimit::new(UNLIMITED, usize::MAX);
/// Pages of all segments.
pub static SHMALL: IpcLimit = IpcLimit::new(UNLIMITED, usize::MAX);
/// Segments.
pub static SHMMNI: IpcLimit = IpcLimit::new(4096, PLACES);
/// Semaphores of a set.
pub static SEMMSL: IpcLimit = IpcLimit::new(32_000, 65_536);
/// Semaphores of all sets.
pub static SEMMNS: IpcLimit = IpcLimit::new(1_024_000_000, i32::MAX as usize);
/// Operations of a call.
pub static SEMOPM: IpcLimit = IpcLimit::new(500, 65_536);
/// Sets of semaphores.
pub static SEMMNI: IpcLimit = IpcLimit::new(32_000, PLACES);
/// Bytes of a message.
pub static MSGMAX: IpcLimit = IpcLimit::new(8192, i32::MAX as usize);
/// Bytes of a new queue.
pub static MSGMNB: IpcLimit = IpcLimit::new(16_384, i32::MAX as usize);
/// Queues.
pub static MSGMNI: IpcLimit = IpcLimit::new(32_000, PLACES);

/// POSIX message queues.
pub static MQ_QUEUES_MAX: IpcLimit = IpcLimit::new(256, i32::MAX as usize);
/// Messages of a queue whose maker is not privileged, and of one whose maker does not say.
pub static MQ_MSG_MAX: IpcLimit = IpcLimit::between(10, 1, 65_536);
pub static MQ_MSG_DEFAULT: IpcLimit = IpcLimit::between(10, 1, 65_536);
/// Bytes of a message, likewise.
pub static MQ_MSGSIZE_MAX: IpcLimit = IpcLimit::between(8192, 128, 16 << 20);
pub static MQ_MSGSIZE_DEFAULT: IpcLimit = IpcLimit::between(8192, 128, 16 << 20);
