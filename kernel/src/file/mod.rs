//! Files: what a descriptor refers to, and everything that can be behind one.
//!
//! Three layers, each of which knows only the one below:
//! - [`descriptor`]: a process's table of descriptors.
//! - [`OpenFile`]: an open file description: offset, status flags, and the object.
//! - [`File`]: the object's behaviour. Its operations never wait: they stop with [`crate::error::Halt::Block`], and
//!   the caller waits for the object's readiness ([`File::poll`]) and tries again. So one implementation serves blocking
//!   and non-blocking calls, `poll`, epoll and asynchronous calls alike.

pub mod buffer;
pub mod descriptor;
pub mod open;

use alloc::sync::Arc;

use crate::error::{Attempt, Errno};
use crate::process::Thread;
use crate::sync::{Events, Watch};

pub use buffer::IoBuffer;
pub use descriptor::DescriptorTable;
pub use open::{OpenFile, StatusFlags};

/// Behaviour of an open object. Every method is an attempt that never waits; what an object doesn't support it leaves to the
/// default, which says what Linux says.
pub trait File: Send + Sync {
    /// Copies data into `buffer`, from `offset` where the object has positions, and returns the number of bytes; 0 is
    /// end of file. On a fault in the middle it consumes exactly what was copied; the buffer remembers.
    fn read(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Attempt<usize> {
        let _ = (open, buffer, offset);
        Err(Errno::EINVAL.into())
    }

    /// Takes data from `buffer`, the counterpart of [`File::read`].
    fn write(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Attempt<usize> {
        let _ = (open, buffer, offset);
        Err(Errno::EINVAL.into())
    }

    /// Whether `thread` may read (`IN`) or write (`OUT`) now: the job control of terminals. `read` and `write` ask before
    /// each attempt.
    ///
    /// # Errors
    /// `EIO`, or `ERESTARTSYS` after the thread's process group was sent a signal.
    fn before_transfer(&self, thread: &Arc<Thread>, events: Events) -> Result<(), Errno> {
        let _ = (thread, events);
        Ok(())
    }

    /// Whether an operation that stopped with [`crate::error::Halt::Block`] can go on. The same as readiness but where a
    /// blocking read is content with other than what `poll` reports (`VMIN` and `VTIME` of terminals).
    ///
    /// # Errors
    /// `ENOMEM` when the watch could not be registered.
    fn can_go_on(&self, open: &OpenFile, watch: &Watch, events: Events) -> Result<bool, Errno> {
        let ready = self.poll(open, Some(watch), events)?;
        Ok(ready.intersects(events | Events::ERR | Events::HUP))
    }

    /// What the object is ready for now, after registering `watch` (if there is one) for `events` at every queue
    /// that may change the answer.
    ///
    /// # Errors
    /// `ENOMEM` when the watch could not be registered.
    fn poll(&self, open: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        let _ = (open, watch, events);
        Ok(Events::IN | Events::OUT | Events::RDNORM | Events::WRNORM)
    }

    /// ioctl(2). `argument` is what the program passed: an address or a number, as the request says.
    fn ioctl(&self, call: &crate::syscall::Call<'_>, open: &OpenFile, request: u32, argument: usize) -> Attempt<usize> {
        let _ = (call, open, request, argument);
        Err(Errno::ENOTTY.into())
    }

    /// Whether the object has positions (`lseek`, `pread`); pipes and sockets have none.
    fn is_seekable(&self) -> bool {
        false
    }
}
