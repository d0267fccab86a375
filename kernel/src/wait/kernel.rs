//! Waiting of the kernel's own coroutines, which are no thread of a program.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Poll, Waker};

use crate::error::Errno;
use crate::wait::queue::{Disposition, Events, WaitQueue, Watch, Watcher};

struct KernelWaiter {
    waker: Waker,
    generation: AtomicU32,
}

impl Watcher for KernelWaiter {
    fn notify(&self, generation: u32, _events: Events) -> Disposition {
        if self.generation() != generation {
            return Disposition::Stale;
        }
        self.waker.wake_by_ref();
        Disposition::Done
    }

    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }
}

/// Completes when `condition` holds, which is looked at again whenever `queue` is woken.
///
/// # Errors
/// `ENOMEM`.
pub async fn until(queue: &WaitQueue, mut condition: impl FnMut() -> bool) -> Result<(), Errno> {
    let mut waiter: Option<Arc<KernelWaiter>> = None;
    let result = core::future::poll_fn(|context| {
        if let Some(before) = waiter.take() {
            before.generation.fetch_add(1, Ordering::Release);
        }
        let made = KernelWaiter { waker: context.waker().clone(), generation: AtomicU32::new(0) };
        let next = match crate::memory::fallible::try_arc(made) {
            Ok(next) => next,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let watching = queue.watch(&Watch::new(next.clone()), Events::all());
        waiter = Some(next);
        match watching {
            Err(error) => Poll::Ready(Err(error)),
            Ok(()) if condition() => Poll::Ready(Ok(())),
            Ok(()) => Poll::Pending,
        }
    })
    .await;
    if let Some(before) = waiter {
        before.generation.fetch_add(1, Ordering::Release);
    }
    result
}
