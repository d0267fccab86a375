//! The handle by which a spawner awaits, names and aborts a coroutine.
#![allow(unsafe_code)] // The output's type is known to the handle alone.

use crate::registry::Global;
use crate::sched::{Id, Slot, Table};
use crate::task::{Failure, JoinError, TaskRef};
use crate::wait::inherit;
use crate::waker;
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// Awaits a coroutine's end and gives its output. Dropping it detaches the coroutine, which runs on.
#[must_use = "the coroutine runs on its own; use `detach` to say that its output is not wanted"]
pub struct JoinHandle<T> {
    task: TaskRef,
    id: Id,
    /// The number under which whoever awaits it has lent its level to the coroutine, 0 if it has not.
    source: u64,
    output: PhantomData<T>,
}

// SAFETY: the handle takes the output, so it may go where the output may; everything else in the task that it
// touches is guarded by the join state, which is atomic unless the handle is wrapped in a `LocalJoinHandle`.
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: through a shared handle nothing but the id and the join state are read.
unsafe impl<T: Send> Sync for JoinHandle<T> {}

// Nothing in a handle is pinned: the output stays in the task until it is moved out.
impl<T> Unpin for JoinHandle<T> {}
impl<T> Unpin for LocalJoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// # Safety
    /// `task` is a coroutine with output `T` whose handle was not made yet.
    pub(crate) unsafe fn new(task: TaskRef, id: Id) -> JoinHandle<T> {
        JoinHandle { task, id, source: 0, output: PhantomData }
    }

    /// The coroutine's name. Stale as soon as the coroutine has ended.
    pub fn id(&self) -> Id {
        self.id
    }

    /// The name that the spawner gave the coroutine.
    pub fn name(&self) -> Option<&'static str> {
        self.task.extras().name
    }

    /// The kind that the spawner gave.
    pub fn kind(&self) -> u32 {
        self.task.extras().kind
    }

    /// Whether the coroutine has ended.
    pub fn is_finished(&self) -> bool {
        self.task.header().join.is_complete()
    }

    /// Drops the coroutine's future at its next turn, which is due at once. Awaiting the handle then gives a
    /// `JoinError`, or the output if the coroutine ended before.
    pub fn abort(&self) {
        waker::abort(self.id);
    }

    /// Lets the coroutine run on without a handle.
    pub fn detach(self) {}

    /// The coroutine runs at its joiner's level if that is more urgent.
    #[inline]
    fn lend(&mut self, joiner: &Waker) {
        let Some(joiner) = waker::id_of(joiner) else { return };
        let level = |id: Id| Global.slot(id.index()).map_or(63, Slot::level);
        let lent = level(joiner);
        if self.source == 0 && lent < level(self.id) {
            self.source = inherit::new_source();
        }
        if self.source != 0 {
            inherit::lend(self.id, self.source, lent);
        }
    }

    #[inline]
    fn take_back(&mut self) {
        if self.source != 0 {
            inherit::take_back(self.id, core::mem::take(&mut self.source));
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    #[inline]
    fn drop(&mut self) {
        self.take_back();
        // SAFETY: the handle leaves, once.
        unsafe { self.task.drop_handle() };
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// When polled again after it was ready.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.task.header().join.poll(cx.waker()).is_pending() {
            self.lend(cx.waker());
            return Poll::Pending;
        }
        self.take_back();
        assert!(self.task.header().join.take_output(), "a JoinHandle was polled after it was ready");
        // SAFETY: complete, and taken here for the first time; `T` is the output's type by `new`.
        Poll::Ready(unsafe { self.task.read_output() })
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("id", &self.id).field("finished", &self.is_finished()).finish()
    }
}

/// A handle that aborts its coroutine when it is dropped.
#[derive(Debug)]
pub struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    /// Ties the coroutine to the wrapper's life.
    pub fn new(handle: JoinHandle<T>) -> AbortOnDrop<T> {
        AbortOnDrop(handle)
    }

    /// The handle inside.
    pub fn handle(&self) -> &JoinHandle<T> {
        &self.0
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

// SAFETY: a shared reference gives no access to the payload, which alone need not be `Sync`.
unsafe impl Sync for JoinError {}

impl JoinError {
    /// Whether the coroutine was aborted or its executor ended first.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.0, Failure::Cancelled)
    }

    /// The payload of the panic that ended the coroutine, if one did.
    #[cfg(feature = "std")]
    pub fn into_panic(self) -> Option<alloc::boxed::Box<dyn core::any::Any + Send + 'static>> {
        match self.0 {
            Failure::Panicked(payload) => Some(*payload),
            Failure::Cancelled => None,
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_cancelled() { "JoinError(cancelled)" } else { "JoinError(panicked)" })
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_cancelled() {
            "the coroutine was cancelled"
        } else {
            "the coroutine panicked"
        })
    }
}

impl core::error::Error for JoinError {}

/// The handle of a coroutine of a [`LocalExecutor`](crate::LocalExecutor): like [`JoinHandle`], but it stays on its
/// thread, which makes joining free of atomic read-modify-writes.
#[must_use = "the coroutine runs on its own; use `detach` to say that its output is not wanted"]
#[derive(Debug)]
pub struct LocalJoinHandle<T> {
    handle: JoinHandle<T>,
    not_send: PhantomData<*const ()>,
}

impl<T> LocalJoinHandle<T> {
    /// The caller is on the executor's thread, and `handle`'s join state is local.
    #[cfg_attr(not(feature = "std"), allow(dead_code))]
    pub(crate) fn new(handle: JoinHandle<T>) -> LocalJoinHandle<T> {
        LocalJoinHandle { handle, not_send: PhantomData }
    }

    /// See [`JoinHandle::id`].
    pub fn id(&self) -> Id {
        self.handle.id
    }

    /// See [`JoinHandle::name`].
    pub fn name(&self) -> Option<&'static str> {
        self.handle.name()
    }

    /// See [`JoinHandle::kind`].
    pub fn kind(&self) -> u32 {
        self.handle.kind()
    }

    /// See [`JoinHandle::is_finished`].
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// See [`JoinHandle::abort`].
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// See [`JoinHandle::detach`].
    pub fn detach(self) {}
}

impl<T> Future for LocalJoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// When polled again after it was ready.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(cx)
    }
}
