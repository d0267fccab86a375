//! Waiting with a deadline.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::Poll;

use crate::error::Errno;
use crate::process::Thread;
use crate::sync::Watch;
use crate::syscall::wait::WaitKind;

/// Waits until `check` gives an answer, as `Thread::wait_until` does, or the monotonic clock has reached `deadline_ns`:
/// then the answer is nothing.
///
/// # Errors
/// What `check` says, or `ERESTARTSYS` when interrupted.
pub async fn until<T>(
    thread: &Arc<Thread>,
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
