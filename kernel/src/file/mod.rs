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

use crate::error::{Attempt, Errno};
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
