//! Who makes a system call: a thread, whose coroutine awaits it, or a call that goes on by itself ([`AsyncRequest`]).
//!
//! Both are seen through one type, so each call has one implementation. It behaves like the thread that made the call
//! (its identity, its directories), but what a call waits in, what ends its wait, and the space and the descriptors it
//! works on are the request's own where there is one: the thread may do something else meanwhile, or end.

use alloc::sync::Arc;
use core::future::Future;
use core::ops::Deref;
use core::pin::pin;
use core::task::Poll;

use crate::error::{Errno, TryError, TryResult};
use crate::fs::{DescriptorTable, OpenFile, StatusFlags};
use crate::memory::Space;
use crate::process::Thread;
use crate::syscall::Restart;
use crate::syscall::asynchronous::AsyncRequest;
use crate::wait::queue::{Events, Watch};
use crate::wait::syscall::{Interrupted, WaitKind};

/// See the module.
#[derive(Clone)]
pub enum Caller {
    /// The thread waits for the call.
    Thread(Arc<Thread>),
    /// The call goes on by itself.
    Request(Arc<AsyncRequest>),
}

impl Deref for Caller {
    type Target = Arc<Thread>;

    #[inline]
    fn deref(&self) -> &Arc<Thread> {
        match self {
            Self::Thread(thread) => thread,
            Self::Request(request) => &request.thread,
        }
    }
}

impl Caller {
    /// The address space that the call works on.
    #[inline]
    #[must_use]
    pub fn space(&self) -> Arc<Space> {
        match self {
            Self::Thread(thread) => thread.space(),
            Self::Request(request) => request.space(),
        }
    }

    /// The descriptors that the call works on.
    #[inline]
    #[must_use]
    pub fn descriptors(&self) -> Arc<DescriptorTable> {
        match self {
            Self::Thread(thread) => thread.descriptors(),
            Self::Request(request) => request.descriptors(),
        }
    }

    /// Whether a wait of this kind has to end: a signal is to be delivered, or the thread is to die; or the call has
    /// been cancelled.
    #[must_use]
    pub fn is_interrupted(&self, kind: WaitKind) -> bool {
        match self {
            Self::Thread(thread) => thread.is_interrupted(kind),
            Self::Request(request) => request.is_interrupted(kind),
        }
    }

    /// Makes the coroutine that carries the call out ready.
    pub fn wake(&self) {
        match self {
            Self::Thread(thread) => thread.wake(),
            Self::Request(request) => request.wake(),
        }
    }

    /// Stores a result of a call whose effects are done, so that it must not start again. A page that has become
    /// missing or read-only since the call looked ([`Space::probe_write`]) is brought in before the call is over.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn store_result(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Thread(thread) => thread.store_result(address, bytes),
            Self::Request(request) if request.space().write_bytes(address, bytes).is_ok() => Ok(()),
            Self::Request(request) => request.late.put(address, bytes),
        }
    }

    /// Keeps what `restart_syscall` is to do. A cancelled call is not restarted.
    pub fn set_restart(&self, restart: Restart) {
        if let Self::Thread(thread) = self {
            thread.set_restart(restart);
        }
    }

    /// Starts a wait on any number of queues; ends the one before.
    pub fn begin_watch(&self) -> Watch {
        match self {
            Self::Thread(thread) => thread.begin_watch(),
            Self::Request(request) => request.begin_watch(),
        }
    }

    /// Ends the wait: registrations that are left in queues are stale from here on.
    pub fn end_watch(&self) {
        match self {
            Self::Thread(thread) => thread.end_watch(),
            Self::Request(request) => request.end_watch(),
        }
    }

    /// Awaits `future`, on behalf of this caller and in its coroutine, until it completes or the wait is interrupted.
    ///
    /// # Errors
    /// [`Interrupted`]; the future is dropped then.
    pub async fn wait<F: Future>(&self, kind: WaitKind, future: F) -> Result<F::Output, Interrupted> {
        let mut future = pin!(future);
        core::future::poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            if self.is_interrupted(kind) { Poll::Ready(Err(Interrupted)) } else { Poll::Pending }
        })
        .await
    }

    /// Waits until `check` gives an answer. `check` gets a watch, registers it wherever the answer may come from, and
    /// then looks; it is called again after each notification.
    ///
    /// # Errors
    /// What `check` says, or `ERESTARTSYS` when interrupted.
    pub async fn wait_until<T>(
        &self,
        kind: WaitKind,
        mut check: impl FnMut(&Watch) -> Result<Option<T>, Errno>,
    ) -> Result<T, Errno> {
        let waiting = core::future::poll_fn(|_| {
            let watch = self.begin_watch();
            match check(&watch) {
                Ok(None) => Poll::Pending,
                Ok(Some(value)) => Poll::Ready(Ok(value)),
                Err(error) => Poll::Ready(Err(error)),
            }
        });
        let result = self.wait(kind, waiting).await;
        self.end_watch();
        result?
    }

    /// Repeats `attempt` until it succeeds or fails: brings in pages that it misses, and when it would block, waits
    /// until the open file is ready for `events`, or says `EAGAIN` if the file is non-blocking.
    ///
    /// # Errors
    /// What `attempt` says, `EAGAIN`, `EFAULT`, `ERESTARTSYS`.
    pub async fn retry<T>(
        &self,
        open: &OpenFile,
        events: Events,
        mut attempt: impl FnMut() -> TryResult<T>,
    ) -> Result<T, Errno> {
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(TryError::Error(error)) => return Err(error),
                Err(TryError::Fault(fault)) => {
                    let space = self.space();
                    space.fault_in(fault).await?;
                }
                Err(TryError::WouldBlock) if open.flags().contains(StatusFlags::NONBLOCK) => {
                    return Err(Errno::EAGAIN);
                }
                Err(TryError::WouldBlock) => {
                    self.wait_until(WaitKind::Interruptible, |watch| {
                        Ok(open.file.can_go_on(open, watch, events)?.then_some(()))
                    })
                    .await?;
                }
            }
        }
    }
}
