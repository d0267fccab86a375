//! Waiting until something is ready.
//!
//! A file keeps one [`WaitQueue`] and calls [`WaitQueue::wake`] when it becomes readable, writable or broken.
//! Whoever waits (a thread in `read`, a `poll` over many files, an epoll instance) first *registers* a [`Watch`] and
//! then *checks* the file once more, so that a wake between check and registration cannot be lost.
//!
//! Registrations are not removed by hand. A watch carries the generation its watcher had when it registered; a
//! watcher that has stopped waiting moves to another generation, and its old entries report
//! [`Disposition::Stale`] and are dropped the next time the queue is walked. So a waiter needs no reference to the
//! queues it is in, and leaving a wait costs one increment however many files were polled.

use alloc::sync::Arc;
use alloc::vec::Vec;
use bitflags::bitflags;

use crate::error::Errno;
use crate::sync::SpinLock;

bitflags! {
    /// Readiness, with the bit values of poll(2) and epoll(7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Events: u32 {
        /// Data to read, or an end of file.
        const IN = linux_raw_sys::general::EPOLLIN;
        /// Urgent data.
        const PRI = linux_raw_sys::general::EPOLLPRI;
        /// Room to write.
        const OUT = linux_raw_sys::general::EPOLLOUT;
        /// Broken, e.g. a pipe without readers; reported whether asked for or not.
        const ERR = linux_raw_sys::general::EPOLLERR;
        /// The other side has closed for good; reported whether asked for or not.
        const HUP = linux_raw_sys::general::EPOLLHUP;
        /// Same as `IN` for the files of this kernel.
        const RDNORM = linux_raw_sys::general::EPOLLRDNORM;
        /// Same as `OUT` for the files of this kernel.
        const WRNORM = linux_raw_sys::general::EPOLLWRNORM;
        /// The other side has shut down its writing half.
        const RDHUP = linux_raw_sys::general::EPOLLRDHUP;
    }
}

/// What became of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The watcher was woken; forget the entry.
    Done,
    /// The watcher took note and stays registered (epoll).
    Keep,
    /// The watcher no longer waits; forget the entry.
    Stale,
}

/// Something that can be told of readiness.
pub trait Watcher: Send + Sync {
    /// Called by [`WaitQueue::wake`] from any context, interrupt handlers included: it must not wait, allocate or
    /// free, and must not touch the queue it is called from.
    fn notify(&self, generation: u32, events: Events) -> Disposition;

    /// The generation of the wait that is under way; entries of any other are stale.
    fn generation(&self) -> u32;
}

/// One wait of one watcher.
#[derive(Clone)]
pub struct Watch {
    watcher: Arc<dyn Watcher>,
    generation: u32,
}

impl Watch {
    /// A watch of the watcher's current generation.
    pub fn new(watcher: Arc<dyn Watcher>) -> Self {
        let generation = watcher.generation();
        Self { watcher, generation }
    }

    fn is_stale(&self) -> bool {
        self.watcher.generation() != self.generation
    }
}

struct WaitEntry {
    watch: Watch,
    events: Events,
}

/// The watches on one object.
pub struct WaitQueue {
    entries: SpinLock<Vec<WaitEntry>>,
}

impl WaitQueue {
    /// A queue without watches; allocates nothing.
    #[must_use]
    #[cfg_attr(feature = "checking", track_caller)]
    pub const fn new() -> Self {
        Self { entries: SpinLock::new(Vec::new()) }
    }

    /// Registers a watch for any of `events`; `ERR` and `HUP` are always included. Check readiness *after* this.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch(&self, watch: &Watch, events: Events) -> Result<(), Errno> {
        let mut entries = self.entries.lock();
        if entries.len() == entries.capacity() {
            entries.retain(|entry| !entry.watch.is_stale());
            entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        }
        let events = events | Events::ERR | Events::HUP;
        entries.push(WaitEntry { watch: watch.clone(), events });
        Ok(())
    }

    /// Forgets every watch. For an owner at its end whose own waits are among them: the entries refer to the watcher,
    /// and it to the owner.
    pub fn clear(&self) {
        let entries = core::mem::take(&mut *self.entries.lock());
        drop(entries);
    }

    /// Notifies every watch that asked for one of `events`.
    pub fn wake(&self, events: Events) {
        self.entries.lock().retain(|entry| {
            if !entry.events.intersects(events) {
                return !entry.watch.is_stale();
            }
            entry.watch.watcher.notify(entry.watch.generation, events) == Disposition::Keep
        });
    }

    /// Notifies watches that asked for one of `events`, in the order of their registration, until one has been
    /// woken. For objects where a wake hands over exactly one thing.
    pub fn wake_one(&self, events: Events) {
        let mut woken = false;
        self.entries.lock().retain(|entry| {
            if woken || !entry.events.intersects(events) {
                return !entry.watch.is_stale();
            }
            let disposition = entry.watch.watcher.notify(entry.watch.generation, events);
            woken = disposition == Disposition::Done;
            disposition == Disposition::Keep
        });
    }
}

impl Default for WaitQueue {
    #[cfg_attr(feature = "checking", track_caller)]
    fn default() -> Self {
        Self::new()
    }
}
