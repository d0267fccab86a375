//! How a system call waits.
//!
//! Every wait has a kind. An interruptible wait ends with [`Interrupted`] when a signal is to be delivered to the
//! thread, a killable one only when the thread is to die, an uninterruptible one never. A signal never drops a future:
//! the wait returns, and the call decides what to report (a partial count, `EINTR`, one of the restart codes of
//! [`Errno`]).

use alloc::sync::Arc;
use core::future::Future;
use core::pin::pin;
use core::task::Poll;

use crate::error::{Attempt, Errno, Halt};
use crate::file::OpenFile;
use crate::process::Thread;
use crate::sync::{Events, Watch};

/// What ends a wait early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// Nothing.
    Uninterruptible,
    /// The thread's death.
    Killable,
    /// A signal.
    Interruptible,
}

/// The wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl From<Interrupted> for Errno {
    /// The usual answer of a call that a signal interrupted: restart if the handler says so.
    fn from(_: Interrupted) -> Self {
        Self::ERESTARTSYS
    }
}

impl Thread {
    /// Awaits `future`, on behalf of this thread and in its coroutine, until it completes or the wait is interrupted.
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
        self: &Arc<Self>,
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
        self: &Arc<Self>,
        open: &OpenFile,
        events: Events,
        mut attempt: impl FnMut() -> Attempt<T>,
    ) -> Result<T, Errno> {
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Halt::Error(error)) => return Err(error),
                Err(Halt::Fault(fault)) => self.space().fault_in(fault).await?,
                Err(Halt::Block) if open.flags().contains(crate::file::StatusFlags::NONBLOCK) => {
                    return Err(Errno::EAGAIN);
                }
                Err(Halt::Block) => {
                    self.wait_until(WaitKind::Interruptible, |watch| {
                        Ok(open.file.can_go_on(open, watch, events)?.then_some(()))
                    })
                    .await?;
                }
            }
        }
    }
}
