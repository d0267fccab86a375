//! The work of calls that go on by themselves is paid for by the thread that made them.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::pin;

use crate::arch::time::now_ns;
use crate::process::{Thread, running};

/// The coroutine that `start` makes, whose time is the thread's. It is made here so that it has its place once.
pub async fn charged<F: Future<Output = ()>>(thread: Arc<Thread>, start: impl FnOnce() -> F) {
    let mut work = pin!(start());
    core::future::poll_fn(|context| {
        running::set_none();
        let start_ns = now_ns();
        let polled = work.as_mut().poll(context);
        thread.pays_for_call(now_ns().saturating_sub(start_ns));
        polled
    })
    .await;
}
