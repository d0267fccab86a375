//! Waiting until there is an answer.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::Poll;

use crate::error::Errno;
use crate::wait::node::{AwaitedThread, Interrupted, WaitKind, WaitNode, Waiter};
use crate::wait::queue::{Events, WaitQueue, Watch};

/// Awaits `future`, in the waiter's coroutine, until it completes or the wait is interrupted.
///
/// # Errors
/// [`Interrupted`]; the future is dropped then.
pub async fn wait<F: Future>(
    waiter: &impl Waiter,
    kind: WaitKind,
    future: F,
) -> Result<F::Output, Interrupted> {
    let mut future = pin!(future);
    let mut donation = None;
    core::future::poll_fn(|context| {
        if kind == WaitKind::Interruptible && waiter.is_withdrawn() {
            return Poll::Ready(Err(Interrupted));
        }
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        if waiter.is_interrupted(kind) {
            return Poll::Ready(Err(Interrupted));
        }
        // A wake has taken back what was lent before.
        if let Some(thread) = waiter.node().awaited()
            && !waiter.node().lends()
        {
            donation = None;
            donation = waiter.donate(thread);
        }
        Poll::Pending
    })
    .await
}

/// Waits until `check` gives an answer, or the monotonic clock has reached `deadline_ns`: then the answer is nothing.
/// `check` gets a watch, registers it wherever the answer may come from, and then looks; it is called again after each
/// notification.
///
/// # Errors
/// The error of `check`, or `ERESTARTSYS` when interrupted.
pub async fn until<T>(
    waiter: &impl Waiter,
    kind: WaitKind,
    deadline_ns: Option<u64>,
    mut check: impl FnMut(&Watch) -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    let mut sleep = deadline_ns.map(crate::time::sleep_until);
    let waiting = core::future::poll_fn(|context| {
        match check(&waiter.node().begin()) {
            Ok(None) => {}
            result => return Poll::Ready(result),
        }
        match &mut sleep {
            Some(sleep) => Pin::new(sleep).poll(context).map(|()| Ok(None)),
            None => Poll::Pending,
        }
    });
    let result = wait(waiter, kind, waiting).await;
    waiter.node().end();
    result?
}

/// Waits for a wake by one of the queues at which the waiter has registered since [`WaitNode::begin_in_steps`]; `false`
/// if the monotonic clock has reached `deadline_ns` before.
///
/// # Errors
/// `ERESTARTSYS` when interrupted.
pub async fn woken(waiter: &impl Waiter, kind: WaitKind, deadline_ns: Option<u64>) -> Result<bool, Errno> {
    let mut sleep = deadline_ns.map(crate::time::sleep_until);
    let waiting = core::future::poll_fn(|context| {
        if waiter.node().was_woken() {
            return Poll::Ready(true);
        }
        match &mut sleep {
            Some(sleep) => Pin::new(sleep).poll(context).map(|()| false),
            None => Poll::Pending,
        }
    });
    let result = wait(waiter, kind, waiting).await;
    waiter.node().end();
    Ok(result?)
}

/// As [`until`], without a deadline.
///
/// # Errors
/// As [`until`].
pub async fn answer<T>(
    waiter: &impl Waiter,
    kind: WaitKind,
    mut check: impl FnMut(&Watch) -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    let waiting = core::future::poll_fn(|_| match check(&waiter.node().begin()) {
        Ok(None) => Poll::Pending,
        Ok(Some(value)) => Poll::Ready(Ok(value)),
        Err(error) => Poll::Ready(Err(error)),
    });
    let result = wait(waiter, kind, waiting).await;
    waiter.node().end();
    result?
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

/// Waits until `check`, which registers the watch that it gets, says that an attempt may go on. After the first wake it
/// is not asked again: the attempt that follows is the better question.
///
/// # Errors
/// The error of `check`, or `ERESTARTSYS` when interrupted.
pub async fn ready(
    waiter: &impl Waiter,
    kind: WaitKind,
    deadline_ns: Option<u64>,
    check: impl Fn(Watch) -> Result<bool, Errno>,
) -> Result<Waited, Errno> {
    let mut sleep = deadline_ns.map(crate::time::sleep_until);
    let mut is_registered = false;
    let waiting = core::future::poll_fn(|context| {
        if core::mem::replace(&mut is_registered, true) {
            return Poll::Ready(Ok(Waited::Woken));
        }
        if check(waiter.node().begin())? {
            return Poll::Ready(Ok(Waited::NotAtAll));
        }
        match &mut sleep {
            Some(sleep) => Pin::new(sleep).poll(context).map(|()| Ok(Waited::InVain)),
            None => Poll::Pending,
        }
    });
    let result = wait(waiter, kind, waiting).await;
    waiter.node().end();
    result?
}

/// A coroutine of the kernel that waits: no signal reaches it.
struct KernelWaiter {
    node: Arc<WaitNode>,
}

impl KernelWaiter {
    /// The coroutine that awaits this.
    async fn new() -> Result<Self, Errno> {
        let waiter = Self { node: WaitNode::new()? };
        core::future::poll_fn(|context| {
            waiter.node.set_waker(context.waker());
            Poll::Ready(())
        })
        .await;
        Ok(waiter)
    }
}

impl Waiter for KernelWaiter {
    fn node(&self) -> &Arc<WaitNode> {
        &self.node
    }

    fn is_interrupted(&self, _: WaitKind) -> bool {
        false
    }

    type Donation = ();

    fn donate(&self, _: AwaitedThread) -> Option<()> {
        None
    }
}

/// Completes when `condition` holds, which is looked at again whenever `queue` is woken. For coroutines that are no
/// thread of a program.
///
/// # Errors
/// `ENOMEM`.
pub async fn kernel_until(queue: &WaitQueue, mut condition: impl FnMut() -> bool) -> Result<(), Errno> {
    kernel_answer(|watch| {
        queue.watch(watch, Events::all())?;
        Ok(condition().then_some(()))
    })
    .await
}

/// As [`answer`], for coroutines that are no thread of a program.
///
/// # Errors
/// The error of `check`, or `ENOMEM`.
pub async fn kernel_answer<T>(check: impl FnMut(&Watch) -> Result<Option<T>, Errno>) -> Result<T, Errno> {
    let waiter = KernelWaiter::new().await?;
    answer(&waiter, WaitKind::Uninterruptible, check).await
}

/// As [`kernel_until`], but no longer than until the monotonic clock has reached `deadline_ns`. Returns whether the
/// condition holds.
///
/// # Errors
/// `ENOMEM`.
pub async fn kernel_until_deadline(
    queue: &WaitQueue,
    deadline_ns: u64,
    mut condition: impl FnMut() -> bool,
) -> Result<bool, Errno> {
    let waiter = KernelWaiter::new().await?;
    let found = until(&waiter, WaitKind::Uninterruptible, Some(deadline_ns), |watch| {
        queue.watch(watch, Events::all())?;
        Ok(condition().then_some(()))
    });
    Ok(found.await?.is_some())
}
