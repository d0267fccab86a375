//! Files: what a descriptor refers to, and everything that can be behind one.
//!
//! Three layers, each of which knows only the one below:
//! - [`descriptor`]: a process's table of descriptors.
//! - [`OpenFile`]: an open file description: offset, status flags, and the object.
//! - [`File`]: the object's behaviour. Its operations never wait: they stop with
//!   [`crate::error::TryError::WouldBlock`], and the caller waits for the object's readiness ([`File::poll`]) and tries
//!   again. So one implementation serves blocking and non-blocking calls, `poll`, epoll and asynchronous calls alike.
//!
//! Beside them stands the name space: [`Inode`]s are what file systems consist of, an [`Dentry`] is a node under a
//! name, a [`Path`] is an entry seen through a mount, and [`walk`] finds places by path. A node opens to a `File`.

pub mod access;
pub mod acl;
pub mod aio_share;
pub mod anonymous;
pub mod buffer;
pub mod byte_queue;
pub mod dentry;
pub mod descriptor;
pub mod devices;
mod directories;
pub mod epoll;
pub mod eventfd;
pub mod fanotify;
pub mod flags;
pub mod fuse;
pub mod inode;
pub mod inotify;
pub mod landlock;
pub mod lease;
pub mod lock;
pub mod lookup;
mod memory_devices;
pub mod mount;
pub mod notify;
pub mod offer;
pub mod open;
pub mod overlay;
mod packet_pipe;
pub mod pipe;
pub mod protection;
pub mod range_lock;
pub mod setup;
pub mod share;
pub mod socket_node;
pub mod timerfd;
pub mod tree;
pub mod view;
pub mod xattr;

use alloc::sync::Arc;
use core::any::Any;

use crate::error::{Errno, TryResult};
use crate::fs::offer::ReadOffer;
use crate::memory::MapSource;
use crate::process::Thread;
use crate::wait::node::WaitNode;
use crate::wait::queue::{Events, Watch};

pub use crate::fs::buffer::IoBuffer;
pub use crate::fs::dentry::Dentry;
pub use crate::fs::descriptor::DescriptorTable;
pub use crate::fs::directories::Directories;
pub use crate::fs::inode::{FileType, Inode, Metadata};
pub use crate::fs::mount::{Mount, Path};
pub use crate::fs::open::{OpenFile, StatusFlags};
pub use crate::fs::socket_node::SocketNode;

/// Frees what is only kept to be quick.
pub fn drain_caches() {
    tree::drain();
    share::drain();
}

/// The result of a bounded search for data or a hole ([`File::seek_data`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// It is there.
    Found(u64),
    /// There is none before this position.
    UpTo(u64),
}

/// Behaviour of an open object. Every method is an attempt that never waits; what an object doesn't support it leaves
/// to the default, which says what Linux says.
pub trait File: Any + Send + Sync {
    /// Copies data into `buffer`, from `offset` where the object has positions, and returns the number of bytes; 0 is
    /// end of file. On a fault in the middle it consumes exactly what was copied; the buffer remembers.
    fn read(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let _ = (open, buffer, offset);
        Err(Errno::EINVAL.into())
    }

    /// Takes data from `buffer`, the counterpart of [`File::read`].
    fn write(&self, open: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> TryResult<usize> {
        let _ = (open, buffer, offset);
        Err(Errno::EINVAL.into())
    }

    /// Whether `thread` may read (`IN`) or write (`OUT`) now: the job control of terminals. `read` and `write` ask
    /// before each attempt.
    ///
    /// # Errors
    /// `EIO`, or `ERESTARTSYS` after the thread's process group was sent a signal.
    fn before_transfer(&self, thread: &Arc<Thread>, events: Events) -> Result<(), Errno> {
        let _ = (thread, events);
        Ok(())
    }

    /// Whether an operation that stopped with [`crate::error::TryError::WouldBlock`] can go on. The same as readiness
    /// but where a blocking read is content with other than what `poll` reports (`VMIN` and `VTIME` of terminals).
    ///
    /// # Errors
    /// `ENOMEM` when the watch could not be registered.
    fn can_go_on(&self, open: &OpenFile, watch: &Watch, events: Events) -> Result<bool, Errno> {
        let ready = self.poll(open, Some(watch), events)?;
        Ok(ready.intersects(events | Events::ERR | Events::HUP))
    }

    /// Takes an offer of memory from a reader that is registered and waits, for whoever writes next; drops it if the
    /// file wants none now.
    fn offer(&self, offer: ReadOffer) {
        drop(offer);
    }

    /// Gives a waiter's offer back, if there is one. Returns how many bytes were copied to its memory.
    fn take_offer(&self, waiter: &Arc<WaitNode>) -> usize {
        let _ = waiter;
        0
    }

    /// The events that are ready now, after registering `watch` (if there is one) for `events` at every queue
    /// that may change the answer.
    ///
    /// # Errors
    /// `ENOMEM` when the watch could not be registered.
    fn poll(&self, open: &OpenFile, watch: Option<&Watch>, events: Events) -> Result<Events, Errno> {
        let _ = (open, watch, events);
        Ok(Events::IN | Events::OUT | Events::RDNORM | Events::WRNORM)
    }

    /// Pages of memory that the file has and that go with it, in case that no name leads to it: what is in a pipe, in
    /// a socket, in a file without a name. One side of a pipe has what is in it.
    fn held_pages(&self) -> usize {
        0
    }

    /// Whether `poll` can ever say anything new; epoll refuses what can't be waited for.
    fn is_pollable(&self) -> bool {
        true
    }

    /// ioctl(2). `argument` is what the program passed: an address or a number, as the request says.
    fn ioctl(
        &self,
        call: &crate::call::Call<'_>,
        open: &OpenFile,
        request: u32,
        argument: usize,
    ) -> TryResult<usize> {
        let _ = (call, open, request, argument);
        Err(Errno::ENOTTY.into())
    }

    /// Whether the object has positions (`lseek`, `pread`); pipes and sockets have none. A read of one that has goes
    /// on until the buffer is full or the end is reached, and a large one may be done in steps.
    fn is_seekable(&self) -> bool {
        false
    }

    /// Whether a write takes one record, and leaves what is behind it.
    fn writes_once(&self) -> bool {
        false
    }

    /// The most bytes of a record, where each read gives one and each write takes one whole.
    fn record_bytes(&self) -> Option<usize> {
        None
    }

    /// Whether every `lseek` succeeds and leads to the start, as that of null(4) does.
    fn stays_at_start(&self) -> bool {
        false
    }

    /// How long a read (or write) waits at most: `SO_RCVTIMEO`, `SO_SNDTIMEO`.
    fn timeout_ns(&self, write: bool) -> Option<u64> {
        let _ = write;
        None
    }

    /// Whether closing it may have to wait.
    fn lingers(&self) -> bool {
        false
    }

    /// The metadata of a socket.
    fn socket_node(&self) -> Option<&SocketNode> {
        None
    }

    /// The result of `fstat` for an object that was opened without a place in a file system.
    fn metadata(&self) -> Metadata {
        self.socket_node().map_or_else(|| Metadata::anonymous(FileType::Regular, 0), SocketNode::metadata)
    }

    /// Changes what [`File::metadata`] tells, of an object without a place in a file system.
    ///
    /// # Errors
    /// `EPERM`: it has nothing of its own.
    fn change(&self, change: &inode::InodeChange) -> Result<(), Errno> {
        self.socket_node().ok_or(Errno::EPERM)?.change(change);
        Ok(())
    }

    /// The name that `/proc/PID/fd` shows for an object that was opened without a place, say
    /// `anon_inode:[eventpoll]`.
    fn name(&self) -> &'static str {
        if self.socket_node().is_some() { "socket" } else { "anon_inode:[file]" }
    }

    /// Its ranges, if reading and writing it are each to happen at once.
    fn ranges(&self) -> Option<&range_lock::Ranges> {
        None
    }

    /// Length in bytes, of an object that has one.
    fn size(&self) -> Option<u64> {
        None
    }

    /// Whether a program serves the file, so that who uses it may have to wait for that.
    fn is_served(&self) -> bool {
        false
    }

    /// Has a program that serves the file store it, `is_for_data` only as far as its bytes need that.
    ///
    /// # Errors
    /// The program's.
    fn store(&self, is_for_data: bool) -> Result<(), Errno> {
        let _ = is_for_data;
        Ok(())
    }

    /// Tells a program that serves the file of a descriptor that was closed, of one that [`File::lingers`].
    ///
    /// # Errors
    /// The program's, which close(2) returns.
    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Changes the length, by a bounded amount of work: `false` if it has to be called again.
    ///
    /// # Errors
    /// `EINVAL` (has none), `EFBIG`, `EISDIR`, `ENOMEM`.
    fn truncate(&self, size: u64) -> Result<bool, Errno> {
        let _ = size;
        Err(Errno::EINVAL)
    }

    /// fallocate(2), by a bounded amount of work; `mode` has the `FALLOC_FL_` bits. Returns how many of the bytes are
    /// done.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP`, `EFBIG`, `ENOSPC`, `ENOMEM`.
    fn allocate(&self, mode: u32, first: u64, length: u64) -> Result<u64, Errno> {
        let _ = (mode, first, length);
        Err(Errno::ENODEV)
    }

    /// The first data, or if not `data` the first hole, from `offset` on, by a bounded amount of work.
    ///
    /// # Errors
    /// `ENXIO`: there is none.
    fn seek_data(&self, offset: u64, data: bool) -> Result<Sought, Errno> {
        match self.size() {
            Some(size) if offset < size => Ok(Sought::Found(if data { offset } else { size })),
            _ => Err(Errno::ENXIO),
        }
    }

    /// The source of the object's pages for mappings.
    ///
    /// # Errors
    /// `ENODEV`: it can't be mapped.
    fn map_source(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        Err(Errno::ENODEV)
    }

    /// Notes in the access time that an open file has been read, or mapped so that it can be.
    fn accessed_by(&self, open: &OpenFile) {
        let _ = open;
    }

    /// The source of a shared mapping of a file that is open for writing.
    ///
    /// # Errors
    /// `ENODEV`: it can't be mapped; `EPERM`: it is sealed.
    fn map_shared(self: Arc<Self>) -> Result<Arc<dyn MapSource>, Errno> {
        self.map_source()
    }

    /// The object as [`File::map_source`] gives it, if it has ever been mapped.
    fn mapped_source(self: Arc<Self>) -> Option<Arc<dyn MapSource>> {
        None
    }

    /// Tells once, as fsync(2) does, that something which was written before could not be stored and is lost.
    ///
    /// # Errors
    /// The error that kept it from being stored.
    fn loss(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// The seals of a `memfd`, `F_SEAL_` bits.
    ///
    /// # Errors
    /// `EINVAL`: it is none.
    fn seals(&self) -> Result<u32, Errno> {
        Err(Errno::EINVAL)
    }

    /// Adds seals.
    ///
    /// # Errors
    /// `EINVAL` (no `memfd`), `EPERM` (sealed against it), `EBUSY` (`F_SEAL_WRITE` while mapped writable).
    fn add_seals(&self, seals: u32) -> Result<(), Errno> {
        let _ = seals;
        Err(Errno::EINVAL)
    }

    /// Whether the opening is complete; `open` waits until it is. A FIFO waits for its other end.
    ///
    /// # Errors
    /// `ENXIO` (nobody reads, and the opener doesn't wait), `ENOMEM`.
    fn is_opened(&self, open: &OpenFile, watch: Option<&Watch>) -> Result<bool, Errno> {
        let _ = (open, watch);
        Ok(true)
    }

    /// Opens the object once more, through `/proc/PID/fd`, when it has no place.
    ///
    /// # Errors
    /// `ENXIO`: it can't be.
    fn reopen(self: Arc<Self>, flags: StatusFlags) -> Result<Arc<dyn File>, Errno> {
        let _ = flags;
        Err(Errno::ENXIO)
    }

    /// Called once when the last reference to an open file description is gone.
    fn released(&self, open: &OpenFile) {
        let _ = open;
    }
}

/// The object behind an open file as what it is, if it is a `T`.
#[must_use]
pub fn downcast<T: File>(open: &OpenFile) -> Option<&T> {
    let any: &dyn Any = &*open.file;
    any.downcast_ref()
}

/// The object as what it is, shared, if it is a `T`.
#[must_use]
pub fn downcast_arc<T: File>(file: &Arc<dyn File>) -> Option<Arc<T>> {
    let any: Arc<dyn Any + Send + Sync> = file.clone();
    any.downcast().ok()
}
