//! A task's control block and its waker.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use core::task::{Context, Waker};

use super::Priority;
use crate::error::Errno;
use crate::sync::SpinLock;

/// Waiting, in no queue.
const IDLE: u32 = 0;
/// In a ready queue.
const QUEUED: u32 = 1;
/// Being polled.
const RUNNING: u32 = 2;
/// Being polled, and woken meanwhile.
const WOKEN: u32 = 3;
/// Finished.
const DONE: u32 = 4;

type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Control block of a coroutine.
pub(super) struct Task {
    state: AtomicU32,
    priority: AtomicU8,
    future: SpinLock<Option<BoxedFuture>>,
}

/// A handle on a task.
#[derive(Clone)]
pub struct TaskRef(pub(super) Arc<Task>);

impl TaskRef {
    /// Makes the task ready if it waits.
    pub fn wake(&self) {
        self.0.wake_by_ref();
    }

    /// Changes the level; effective when the task is queued next.
    pub fn set_priority(&self, priority: Priority) {
        self.0.priority.store(priority.level() as u8, Ordering::Relaxed);
    }
}

impl Task {
    pub(super) fn new(
        priority: Priority,
        future: Box<impl Future<Output = ()> + Send + 'static>,
    ) -> Result<Arc<Self>, Errno> {
        crate::memory::fallible::try_arc(Self {
            state: AtomicU32::new(IDLE),
            priority: AtomicU8::new(priority.level() as u8),
            future: SpinLock::new(Some(Box::into_pin(future as Box<dyn Future<Output = ()> + Send>))),
        })
    }

    pub(super) fn priority(&self) -> Priority {
        Priority::new(self.priority.load(Ordering::Relaxed))
    }

    /// Runs the coroutine until it waits or ends.
    pub(super) fn poll(self: Arc<Self>) {
        self.state.store(RUNNING, Ordering::Relaxed);
        let Some(mut future) = self.future.lock().take() else { return };
        let waker = Waker::from(self.clone());
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.state.store(DONE, Ordering::Release);
            return;
        }
        *self.future.lock() = Some(future);
        if self.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.state.store(QUEUED, Ordering::Relaxed);
            super::push(self);
        }
    }

    pub(super) fn wake_by_ref(self: &Arc<Self>) {
        let next = |state| match state {
            IDLE => Some(QUEUED),
            RUNNING => Some(WOKEN),
            _ => None,
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(IDLE) {
            super::push(self.clone());
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        Task::wake_by_ref(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Task::wake_by_ref(self);
    }
}
