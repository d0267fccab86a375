//! eventfd(2).

use alloc::sync::Arc;
use linux_raw_sys::general as linux;

use crate::error::{Errno, TryError, TryResult};
use crate::fs::{File, IoBuffer, OpenFile};
use crate::memory::fallible;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue, Watch};

/// The largest count.
const LIMIT: u64 = u64::MAX - 1;
/// Bytes of a count.
const BYTES: usize = size_of::<u64>();

/// A counter to wait for.
pub struct EventCounter {
    count: SpinLock<u64>,
    queue: WaitQueue,
    /// A read takes one instead of everything.
    semaphore: bool,
}

impl EventCounter {
    /// A counter that begins at `count`; `flags` may have `EFD_SEMAPHORE`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(count: u64, flags: u32) -> Result<Arc<Self>, Errno> {
        let semaphore = flags & linux::EFD_SEMAPHORE != 0;
        fallible::try_arc(Self { count: SpinLock::new(count), queue: WaitQueue::new(), semaphore })
    }

    /// Counts one more, as far as there is room. The highest count, which no write leads to, says that there was none.
    pub fn signal(&self) {
        {
            let mut count = self.count.lock();
            *count = count.saturating_add(1);
        }
        self.queue.wake(Events::IN | Events::RDNORM);
    }
}

impl File for EventCounter {
    fn read(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if buffer.remaining() < BYTES {
            return Err(Errno::EINVAL.into());
        }
        let mut count = self.count.lock();
        if *count == 0 {
            return Err(TryError::WouldBlock);
        }
        let taken = if self.semaphore { 1 } else { *count };
        buffer.copy_out(&taken.to_ne_bytes())?;
        *count -= taken;
        drop(count);
        self.queue.wake(Events::OUT | Events::WRNORM);
        Ok(BYTES)
    }

    fn write(&self, _: &OpenFile, buffer: &mut IoBuffer<'_>, _: u64) -> TryResult<usize> {
        if buffer.remaining() < BYTES {
            return Err(Errno::EINVAL.into());
        }
        // Looked at without taking it, because the call may have to wait and come again.
        let mut bytes = [0; BYTES];
        buffer.peek(&mut bytes)?;
        let added = u64::from_ne_bytes(bytes);
        if added == u64::MAX {
            return Err(Errno::EINVAL.into());
        }
        let mut count = self.count.lock();
        match count.checked_add(added) {
            Some(sum) if sum <= LIMIT => *count = sum,
            _ => return Err(TryError::WouldBlock),
        }
        drop(count);
        buffer.skip(BYTES);
        self.queue.wake(Events::IN | Events::RDNORM);
        Ok(BYTES)
    }

    fn writes_once(&self) -> bool {
        true
    }

    fn poll(&self, _: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        if let Some(watch) = watch {
            self.queue.watch_to_take(watch, events)?;
        }
        let count = *self.count.lock();
        let mut ready = Events::empty();
        ready.set(Events::IN | Events::RDNORM, count > 0);
        ready.set(Events::OUT | Events::WRNORM, count < LIMIT);
        ready.set(Events::ERR, count == u64::MAX);
        Ok(ready)
    }

    fn name(&self) -> &'static str {
        "anon_inode:[eventfd]"
    }
}
