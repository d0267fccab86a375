//! Waiting with a deadline.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::Poll;

use crate::error::{Attempt, Errno, Halt};
use crate::process::Thread;
use crate::sync::Watch;
use crate::syscall::wait::WaitKind;
use crate::syscall::{Caller, Outcome, pending};

/// What a call does that waited and then could not go on although the file said it could: a file's readiness can be
/// about less than the call wants. Others run, and a signal ends it.
///
/// # Errors
/// `ERESTARTSYS`.
pub async fn take_turns(thread: &Caller) -> Result<(), Errno> {
    if thread.is_interrupted(WaitKind::Interruptible) {
        return Err(Errno::ERESTARTSYS);
    }
    crate::schedule::yield_now().await;
    Ok(())
}

/// An attempt that is repeated until it is done.
pub trait Operation: Send + Sync + 'static {
    /// Goes on; the value is the call's result.
    ///
    /// # Errors
    /// See [`Halt`].
    fn attempt(&mut self) -> Attempt<usize>;

    /// The result if the call has to end now, when it has done something.
    fn partial(&self) -> Option<usize> {
        None
    }

    /// Whether a wait may end; called with a watch that it must register.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn can_go_on(&self, watch: &Watch) -> Result<bool, Errno>;
}

/// How an [`Operation`] waits.
pub struct Manner {
    /// It doesn't.
    pub no_wait: bool,
    /// When it ends by itself with `EAGAIN`.
    pub deadline_ns: Option<u64>,
}

/// Carries an operation out: at once if it can be done, else as a future.
pub fn carry_out(thread: &Caller, manner: Manner, mut operation: impl Operation) -> Outcome {
    loop {
        match operation.attempt() {
            Ok(value) => return Ok(value.into()),
            Err(Halt::Error(error)) => return finish(&operation, error).map(Into::into).map_err(Into::into),
            Err(Halt::Block) if manner.no_wait => {
                return finish(&operation, Errno::EAGAIN).map(Into::into).map_err(Into::into);
            }
            Err(Halt::Block) => break,
            Err(Halt::Fault(fault)) => match thread.space().try_fault_in(fault) {
                Some(Ok(())) => {}
                Some(Err(error)) => return finish(&operation, error).map(Into::into).map_err(Into::into),
                None => break,
            },
        }
    }
    let thread = thread.clone();
    pending(async move {
        let mut waited = false;
        loop {
            let result = match operation.attempt() {
                Ok(value) => return Ok(value),
                Err(Halt::Error(error)) => Err(error),
                Err(Halt::Fault(fault)) => {
                    let space = thread.space();
                    space.fault_in(fault).await
                }
                Err(Halt::Block) if manner.no_wait => Err(Errno::EAGAIN),
                Err(Halt::Block) if core::mem::replace(&mut waited, true) => {
                    waited = false;
                    take_turns(&thread).await
                }
                Err(Halt::Block) => {
                    let ready = until(&thread, WaitKind::Interruptible, manner.deadline_ns, |watch| {
                        Ok(operation.can_go_on(watch)?.then_some(()))
                    });
                    ready.await.and_then(|ready| ready.ok_or(Errno::EAGAIN))
                }
            };
            if let Err(error) = result {
                return finish(&operation, error);
            }
        }
    })
}

/// The end by an error: what was done before counts more.
fn finish(operation: &impl Operation, error: Errno) -> Result<usize, Errno> {
    operation.partial().ok_or(error)
}

/// Waits until `check` gives an answer, as `Thread::wait_until` does, or the monotonic clock has reached `deadline_ns`:
/// then the answer is nothing.
///
/// # Errors
/// What `check` says, or `ERESTARTSYS` when interrupted.
pub async fn until<T>(
    thread: &Caller,
    kind: WaitKind,
    deadline_ns: Option<u64>,
    mut check: impl FnMut(&Watch) -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    let mut sleep = deadline_ns.map(crate::time::sleep_until);
    let waiting = core::future::poll_fn(|context| {
        let watch = thread.begin_watch();
        match check(&watch) {
            Ok(None) => {}
            result => return Poll::Ready(result),
        }
        match &mut sleep {
            Some(sleep) => Pin::new(sleep).poll(context).map(|()| Ok(None)),
            None => Poll::Pending,
        }
    });
    let result = thread.wait(kind, waiting).await;
    thread.end_watch();
    result?
}
