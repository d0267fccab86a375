//! How much of each there may be in a namespace: `/proc/sys/kernel`, and for POSIX message queues
//! `/proc/sys/fs/mqueue`, where the superuser changes them.

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

/// The limits of a namespace.
pub struct IpcLimits {
    /// Bytes of a segment.
    pub shmmax: IpcLimit,
    /// Pages of all segments.
    pub shmall: IpcLimit,
    /// Segments.
    pub shmmni: IpcLimit,
    /// Semaphores of a set.
    pub semmsl: IpcLimit,
    /// Semaphores of all sets.
    pub semmns: IpcLimit,
    /// Operations of a call.
    pub semopm: IpcLimit,
    /// Sets of semaphores.
    pub semmni: IpcLimit,
    /// Bytes of a message.
    pub msgmax: IpcLimit,
    /// Bytes of a new queue.
    pub msgmnb: IpcLimit,
    /// Queues.
    pub msgmni: IpcLimit,
    /// POSIX message queues.
    pub mq_queues_max: IpcLimit,
    /// Messages of a queue whose maker is not privileged.
    pub mq_msg_max: IpcLimit,
    /// Messages of a queue whose maker does not say.
    pub mq_msg_default: IpcLimit,
    /// Bytes of a message, likewise.
    pub mq_msgsize_max: IpcLimit,
    pub mq_msgsize_default: IpcLimit,
}

impl IpcLimits {
    /// Those of a new namespace.
    pub const fn new() -> Self {
        const INT_MAX: usize = i32::MAX as usize;
        Self {
            shmmax: IpcLimit::new(UNLIMITED, usize::MAX),
            shmall: IpcLimit::new(UNLIMITED, usize::MAX),
            shmmni: IpcLimit::new(4096, PLACES),
            semmsl: IpcLimit::new(32_000, 65_536),
            semmns: IpcLimit::new(1_024_000_000, INT_MAX),
            semopm: IpcLimit::new(500, 65_536),
            semmni: IpcLimit::new(32_000, PLACES),
            msgmax: IpcLimit::new(8192, INT_MAX),
            msgmnb: IpcLimit::new(16_384, INT_MAX),
            msgmni: IpcLimit::new(32_000, PLACES),
            mq_queues_max: IpcLimit::new(256, INT_MAX),
            mq_msg_max: IpcLimit::between(10, 1, 65_536),
            mq_msg_default: IpcLimit::between(10, 1, 65_536),
            mq_msgsize_max: IpcLimit::between(8192, 128, 16 << 20),
            mq_msgsize_default: IpcLimit::between(8192, 128, 16 << 20),
        }
    }
}
