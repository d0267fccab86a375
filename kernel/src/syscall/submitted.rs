//! System calls that are made for a request of `io_uring` or native asynchronous I/O, and the pages of their rings.

use alloc::sync::Arc;
use alloc::vec::Vec;

use heddle_kernel_core::fallible::push_reserved;
use heddle_kernel_core::uring::SystemCall;

use crate::arch::UserContext;
use crate::arch::paging::PAGE_SIZE;
use crate::call::CallFuture;
use crate::call::asynchronous::AsyncRequest;
use crate::call::caller::Caller;
use crate::error::{Errno, TryError, TryResult};
use crate::fs::OpenFile;
use crate::memory::{FrameRef, fallible};
use crate::sched;
use crate::sched::Budget;
use crate::syscall::{Call, Restart, SyscallResult, SyscallState, start_call};
use crate::wait::node::WaitKind;
use crate::wait::queue::Events;

/// Units of work that clearing a page costs.
const PAGE_COST: u32 = 1;

/// Frames of zeros for so many bytes that a program is to map.
///
/// # Errors
/// `ENOMEM`.
pub async fn zeroed(bytes: usize) -> Result<Vec<FrameRef>, Errno> {
    let mut frames = fallible::try_with_capacity(bytes.div_ceil(PAGE_SIZE))?;
    let mut budget = Budget::new();
    while frames.len() < frames.capacity() {
        budget.step(PAGE_COST).await;
        push_reserved(&mut frames, FrameRef::allocate_zeroed()?);
        if frames.len() == bytes.div_ceil(PAGE_SIZE) {
            break;
        }
    }
    Ok(frames)
}

/// The result of starting a system call, once no page is missing.
pub enum Attempt {
    /// It is over.
    Done(Result<usize, Errno>),
    /// It waits.
    Waits(CallFuture),
}

/// The work of a request.
#[derive(Clone)]
pub enum SubmittedCall {
    /// A system call with its arguments.
    Number(SystemCall),
    /// A function like one of a system call, for what no system call does so.
    Function(Restart),
}

impl From<SystemCall> for SubmittedCall {
    fn from(call: SystemCall) -> Self {
        Self::Number(call)
    }
}

impl SubmittedCall {
    fn start(&self, caller: &Caller, context: &mut UserContext) -> SyscallResult {
        match self {
            Self::Number(call) => {
                let arguments = call.arguments.map(|word| word as usize);
                start_call(call.number as usize, &mut Call::with_arguments(caller, context, arguments))
            }
            Self::Function(function) => function(&mut Call::with_arguments(caller, context, [0; 6])),
        }
    }
}

/// Starts a system call for a request.
///
/// # Errors
/// A page fault: it is to be started again once the page is there.
pub fn attempt(
    request: &Arc<AsyncRequest>,
    context: &mut UserContext,
    call: &SubmittedCall,
) -> TryResult<Attempt> {
    let caller = Caller::Request(request.clone());
    match call.start(&caller, context) {
        Ok(SyscallState::Done(value)) => Ok(Attempt::Done(Ok(value))),
        Ok(SyscallState::Yield) => Ok(Attempt::Done(Ok(0))),
        Ok(SyscallState::Pending(future)) => Ok(Attempt::Waits(future)),
        Err(TryError::Error(error)) => Ok(Attempt::Done(Err(error))),
        Err(TryError::WouldBlock) => Ok(Attempt::Done(Err(Errno::EAGAIN))),
        Err(TryError::Fault(fault)) => Err(TryError::Fault(fault)),
    }
}

/// Carries a system call out, from what has been started of it. With `retry` it waits for a file that is open with
/// `O_NONBLOCK`, until one of the events is there.
///
/// # Errors
/// Its own; interrupted.
pub async fn complete(
    request: Arc<AsyncRequest>,
    call: SubmittedCall,
    mut first: Option<Attempt>,
    retry: Option<(Arc<OpenFile>, Events)>,
) -> Result<usize, Errno> {
    let caller = Caller::Request(request.clone());
    let mut has_connected = false;
    loop {
        let started = match first.take() {
            Some(started) => started,
            None => attempt_later(&request, &call).await?,
        };
        let result = match started {
            Attempt::Done(result) => result,
            Attempt::Waits(future) => future.await,
        };
        let Some((open, events)) = &retry else { return result };
        match result {
            Err(Errno::EAGAIN | Errno::EINPROGRESS | Errno::EALREADY) => {}
            Err(Errno::EISCONN) if has_connected => return Ok(0),
            result => return result,
        }
        has_connected = true;
        caller
            .wait_until(WaitKind::Interruptible, |watch| {
                let ready = open.file.poll(open, Some(watch), *events)?;
                Ok(ready.intersects(*events | Events::ERR | Events::HUP).then_some(()))
            })
            .await?;
        sched::yield_now().await;
    }
}

/// As [`attempt`], after bringing in the pages that are missing.
///
/// # Errors
/// `ENOMEM`, `EFAULT`, `EINTR`.
pub async fn attempt_later(request: &Arc<AsyncRequest>, call: &SubmittedCall) -> Result<Attempt, Errno> {
    loop {
        let started = {
            let mut context = fallible::try_box(UserContext::new_user())?;
            attempt(request, &mut context, call)
        };
        match started {
            Ok(started) => return Ok(started),
            Err(TryError::Fault(fault)) => {
                let is_over = || request.is_interrupted(WaitKind::Killable);
                request.space().fault_in_for(fault, is_over).await?;
            }
            Err(TryError::Error(error)) => return Err(error),
            Err(TryError::WouldBlock) => return Err(Errno::EAGAIN),
        }
        sched::yield_now().await;
    }
}
