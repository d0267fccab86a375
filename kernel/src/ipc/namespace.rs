//! IPC namespaces, ipc_namespaces(7): the objects that some threads see, and the limits for them.
//!
//! A namespace lives as long as threads, descriptors or attached segments hold it. Its objects go with it, one after
//! the other in a coroutine: there may be many.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::AtomicUsize;

use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::sysv_ipc::registry::Registry;

use crate::error::Errno;
use crate::fs::Dentry;
use crate::fs::mount::next_namespace_number;
use crate::ipc::limits::IpcLimits;
use crate::ipc::message::{MessageCounts, Messages};
use crate::ipc::mqueue::QueueFileSystem;
use crate::ipc::semaphore::Semaphores;
use crate::ipc::shared_memory::SharedSegment;
use crate::memory::fallible;
use crate::process::namespace_counts::{CountedNamespace, NamespaceKind};
use crate::process::namespaces::{Namespaces, UpperNamespace};
use crate::process::user_namespace::Users;
use crate::process::{Credentials, Thread};
use crate::sched::Budget;
use crate::sync::SpinLock;
use crate::wait::queue::{Events, WaitQueue};

/// The number of the first one, which is the same on every Linux.
const FIRST_NUMBER: u64 = 0xefff_ffff;
/// The cost of dropping an object.
const OBJECT_COST: u32 = 16;

/// Objects of one kind under their lock.
pub(super) type Objects<T> = SpinLock<Registry<Arc<T>>>;

/// A namespace.
pub struct IpcNamespace {
    number: u64,
    counted: CountedNamespace,
    /// How much of each there may be.
    pub limits: IpcLimits,
    /// Segments of shared memory.
    pub segments: Objects<SharedSegment>,
    /// Pages of all segments, there or not.
    pub(super) segment_pages: AtomicUsize,
    /// Sets of semaphores.
    pub sets: Objects<Semaphores>,
    /// Semaphores of all sets.
    pub(super) semaphore_count: AtomicUsize,
    /// Message queues.
    pub queues: Objects<Messages>,
    /// Messages in all queues.
    pub(super) message_counts: Arc<MessageCounts>,
    /// POSIX message queues, from their first use on.
    pub(super) queue_files: spin::Once<QueueFileSystem>,
}

impl IpcNamespace {
    /// One without objects.
    fn new(number: u64, maker: &Credentials) -> Result<Arc<Self>, Errno> {
        let counted = CountedNamespace::new(maker, NamespaceKind::Ipc)?;
        let message_counts = fallible::try_arc(MessageCounts::default())?;
        fallible::try_arc(Self {
            number,
            counted,
            limits: IpcLimits::new(),
            segments: SpinLock::new(Registry::new()),
            segment_pages: AtomicUsize::new(0),
            sets: SpinLock::new(Registry::new()),
            semaphore_count: AtomicUsize::new(0),
            queues: SpinLock::new(Registry::new()),
            message_counts,
            queue_files: spin::Once::new(),
        })
    }

    /// The namespace of a thread.
    ///
    /// # Errors
    /// None in fact: `EINVAL` if it were of another type.
    pub fn of(thread: &Thread) -> Result<Arc<Self>, Errno> {
        Self::among(&thread.namespaces())
    }

    /// The one among others.
    ///
    /// # Errors
    /// As [`IpcNamespace::of`].
    pub fn among(namespaces: &Namespaces) -> Result<Arc<Self>, Errno> {
        let space: Arc<dyn Any + Send + Sync> = namespaces.ipc.clone();
        space.downcast().map_err(|_| Errno::EINVAL)
    }
}

impl UpperNamespace for IpcNamespace {
    fn number(&self) -> u64 {
        self.number
    }

    fn owner(&self) -> &Users {
        self.counted.owner()
    }

    fn another(&self, maker: &Credentials) -> Result<Arc<dyn UpperNamespace>, Errno> {
        Ok(Self::new(next_namespace_number(), maker)?)
    }
}

impl Drop for IpcNamespace {
    fn drop(&mut self) {
        let remains = IpcRemains {
            segments: core::mem::take(&mut *self.segments.lock()),
            sets: core::mem::take(&mut *self.sets.lock()),
            queues: core::mem::take(&mut *self.queues.lock()),
            files: self.queue_files.get().map_or_else(Vec::new, QueueFileSystem::take_queues),
        };
        if remains.is_empty() {
            return;
        }
        let mut all = REMAINS.lock();
        if all.try_reserve(1).is_ok() {
            push_reserved(&mut all, remains);
            drop(all);
            ADDED.wake(Events::all());
        }
    }
}

/// Makes the first namespace.
///
/// # Errors
/// `ENOMEM`.
pub fn first() -> Result<Arc<IpcNamespace>, Errno> {
    IpcNamespace::new(FIRST_NUMBER, &Credentials::ROOT)
}

/// The objects of a namespace that has gone.
struct IpcRemains {
    segments: Registry<Arc<SharedSegment>>,
    sets: Registry<Arc<Semaphores>>,
    queues: Registry<Arc<Messages>>,
    files: Vec<Arc<Dentry>>,
}

static REMAINS: SpinLock<Vec<IpcRemains>> = SpinLock::new(Vec::new());
static ADDED: WaitQueue = WaitQueue::new();

impl IpcRemains {
    const fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.sets.is_empty() && self.queues.is_empty() && self.files.is_empty()
    }

    /// Drops an object of each kind; returns whether there is another.
    fn drop_one(&mut self) -> bool {
        drop(self.segments.remove_any());
        drop(self.sets.remove_any());
        drop(self.queues.remove_any());
        if let Some(file) = self.files.pop() {
            // A file system that is still mounted somewhere, or an open directory, leads to it no more.
            file.mark_removed();
        }
        !self.is_empty()
    }
}

fn next() -> Option<IpcRemains> {
    let mut all = REMAINS.lock();
    let next = all.pop();
    let unused = if all.is_empty() { core::mem::take(&mut *all) } else { Vec::new() };
    drop(all);
    drop(unused);
    next
}

/// Drops the objects of namespaces that have gone, in steps.
pub async fn run() {
    let mut budget = Budget::new();
    loop {
        crate::device::wait(&ADDED, || !REMAINS.lock().is_empty()).await;
        while let Some(mut remains) = next() {
            while remains.drop_one() {
                budget.step(OBJECT_COST).await;
            }
        }
    }
}

/// Drops all of them. For when memory is short.
pub fn drain() {
    while let Some(mut remains) = next() {
        while remains.drop_one() {}
    }
}
