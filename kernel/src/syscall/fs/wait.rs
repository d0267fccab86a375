//! Waiting with a deadline.

use core::future::Future;
use core::pin::Pin;
use core::task::Poll;

use crate::error::{Errno, TryError, TryResult};
use crate::syscall::{SyscallResult, pending};
use crate::wait::caller::Caller;
use crate::wait::queue::Watch;
use crate::wait::syscall::WaitKind;

/// What a call does that waited and then could not go on although the file said it could: a file's readiness can be
/// about less than the call wants. Others run, and a signal ends it.
///
/// # Errors
/// `ERESTARTSYS`.
pub async fn take_turns(thread: &Caller) -> Result<(), Errno> {
    if thread.is_interrupted(WaitKind::Interruptible) {
        return Err(Errno::ERESTARTSYS);
    }
    crate::sched::yield_now().await;
    Ok(())
}

/// An attempt that is repeated until it is done.
pub trait Operation: Send + Sync + 'static {
    /// Goes on; the value is the call's result.
    ///
    /// # Errors
    /// See [`TryError`].
    fn attempt(&mut self) -> TryResult<usize>;

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
pub struct WaitOptions {
    /// It doesn't.
    pub no_wait: bool,
    /// When it ends by itself with `EAGAIN`.
    pub deadline_ns: Option<u64>,
}

/// Carries an operation out: at once if it can be done, else as a future.
pub fn carry_out(thread: &Caller, manner: WaitOptions, mut operation: impl Operation) -> SyscallResult {
    let mut halt = loop {
        match operation.attempt() {
            Ok(value) => return Ok(value.into()),
            Err(TryError::Error(error)) => {
                return finish(&operation, error).map(Into::into).map_err(Into::into);
            }
            Err(TryError::WouldBlock) if manner.no_wait => {
                return finish(&operation, Errno::EAGAIN).map(Into::into).map_err(Into::into);
            }
            Err(TryError::WouldBlock) => break TryError::WouldBlock,
            Err(TryError::Fault(fault)) => match thread.space().try_fault_in(fault) {
                Some(Ok(())) => {}
                Some(Err(error)) => return finish(&operation, error).map(Into::into).map_err(Into::into),
                None => break TryError::Fault(fault),
            },
        }
    };
    let thread = thread.clone();
    pending(async move {
        let mut fruitless = false;
        loop {
            let result = match halt {
                TryError::Error(error) => Err(error),
                TryError::Fault(fault) => {
                    let space = thread.space();
                    space.fault_in(fault).await
                }
                TryError::WouldBlock if manner.no_wait => Err(Errno::EAGAIN),
                TryError::WouldBlock if core::mem::take(&mut fruitless) => take_turns(&thread).await,
                TryError::WouldBlock => {
                    let check = |watch: &Watch| operation.can_go_on(watch);
                    let waited = ready(&thread, WaitKind::Interruptible, manner.deadline_ns, check).await;
                    waited.and_then(|waited| waited.note(&mut fruitless))
                }
            };
            if let Err(error) = result {
                return finish(&operation, error);
            }
            halt = match operation.attempt() {
                Ok(value) => return Ok(value),
                Err(halt) => halt,
            };
        }
    })
}

/// The end by an error: what was done before counts more.
fn finish(operation: &impl Operation, error: Errno) -> Result<usize, Errno> {
    operation.partial().ok_or(error)
}

/// How a wait for readiness went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It could go on at once.
    NotAtAll,
    /// Something has come since. Whether it is what was waited for, an attempt says.
    Woken,
    /// Until its deadline.
    InVain,
}

impl Waited {
    /// Notes whether the file could go on although an attempt before has found the opposite. If the next one does too,
    /// [`take_turns`].
    ///
    /// # Errors
    /// `EAGAIN`: the deadline has passed.
    pub fn note(self, fruitless: &mut bool) -> Result<(), Errno> {
        *fruitless = self == Self::NotAtAll;
        if self == Self::InVain { Err(Errno::EAGAIN) } else { Ok(()) }
    }
}

/// Waits until `check`, which registers the watch that it gets, says that an attempt may go on. After the first wake it
/// is not asked again: the attempt that follows is the better question.
///
/// # Errors
/// What `check` says, or `ERESTARTSYS` when interrupted.
pub async fn ready(
    thread: &Caller,
    kind: WaitKind,
    deadline_ns: Option<u64>,
    check: impl Fn(&Watch) -> Result<bool, Errno>,
) -> Result<Waited, Errno> {
    let mut sleep = deadline_ns.map(crate::time::sleep_until);
    let mut is_registered = false;
    let waiting = core::future::poll_fn(|context| {
        if core::mem::replace(&mut is_registered, true) {
            return Poll::Ready(Ok(Waited::Woken));
        }
        if check(&thread.begin_watch())? {
            return Poll::Ready(Ok(Waited::NotAtAll));
        }
        match &mut sleep {
            Some(sleep) => Pin::new(sleep).poll(context).map(|()| Ok(Waited::InVain)),
            None => Poll::Pending,
        }
    });
    let result = thread.wait(kind, waiting).await;
    thread.end_watch();
    result?
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
