//! A thread and what hangs off it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Waker;

use super::{Credentials, Process};
use crate::file::DescriptorTable;
use crate::memory::Space;
use crate::sync::{Disposition, Events, SpinLock, Watch, Watcher};
use crate::syscall::wait::WaitKind;

/// The generation of a thread that waits for nothing is even, of one that waits odd.
const WAITING: u32 = 1;

/// A thread of a program.
pub struct Thread {
    /// Its number.
    pub tid: i32,
    /// The thread group it belongs to.
    pub process: Arc<Process>,
    space: SpinLock<Arc<Space>>,
    descriptors: SpinLock<Arc<DescriptorTable>>,
    directories: SpinLock<Arc<Directories>>,
    credentials: SpinLock<Credentials>,
    /// The waker of the thread's coroutine: for signals, and for what the thread watches.
    waker: spin::Once<Waker>,
    generation: AtomicU32,
}

/// Root, working directory and file creation mask, shared by the threads that `CLONE_FS` joins.
pub struct Directories {
    /// File creation mask.
    pub umask: AtomicU32,
}

impl Thread {
    /// The address space.
    #[must_use]
    pub fn space(&self) -> Arc<Space> {
        self.space.lock().clone()
    }

    /// The table of descriptors.
    #[must_use]
    pub fn descriptors(&self) -> Arc<DescriptorTable> {
        self.descriptors.lock().clone()
    }

    /// Root and working directory.
    #[must_use]
    pub fn directories(&self) -> Arc<Directories> {
        self.directories.lock().clone()
    }

    /// Who the thread acts as.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        *self.credentials.lock()
    }

    /// Whether a wait of this kind has to end: a signal is to be delivered, or the thread is to die.
    #[must_use]
    pub fn is_interrupted(&self, kind: WaitKind) -> bool {
        kind != WaitKind::Uninterruptible && false
    }

    /// Starts a wait on any number of queues; ends the one before.
    pub fn begin_watch(self: &Arc<Self>) -> Watch {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store((generation | WAITING).wrapping_add(2), Ordering::Release);
        Watch::new(self.clone())
    }

    /// Ends the wait: registrations that are left in queues are stale from here on.
    pub fn end_watch(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store((generation | WAITING).wrapping_add(1), Ordering::Release);
    }
}

impl Watcher for Thread {
    fn notify(&self, generation: u32, _events: Events) -> Disposition {
        if self.generation() != generation {
            return Disposition::Stale;
        }
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
        Disposition::Done
    }

    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }
}
