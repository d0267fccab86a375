//! How a coroutine gives way.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// Gives way to the others of the level, and to more urgent ones: the coroutine goes to the tail of its queue.
pub const fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

/// See [`yield_now`].
#[must_use = "futures do nothing unless awaited"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        if !crate::sched::core().is_some_and(|core| core.yield_current(context.waker())) {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
