//! The work of calls that go on by themselves is paid for by the thread that made them.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::pin;

use heddle_kernel_core::protection_key::KeyRights;

use crate::arch::protection_key;
use crate::arch::time::now_ns;
use crate::process::{Thread, running};

/// The coroutine that `start` makes, whose time is the thread's. It is made here so that it has its place once.
pub fn charged<F: Future<Output = ()>>(
    thread: Arc<Thread>,
    start: impl FnOnce() -> F,
) -> impl Future<Output = ()> {
    // Those of the thread that makes the call, as Linux's workers have them.
    let rights = protection_key::rights();
    charged_with(thread, start, rights)
}

async fn charged_with<F: Future<Output = ()>>(
    thread: Arc<Thread>,
    start: impl FnOnce() -> F,
    rights: KeyRights,
) {
    let mut work = pin!(start());
    core::future::poll_fn(|context| {
        running::set_none();
        let start_ns = now_ns();
        let is_special = rights != KeyRights::INITIAL;
        if is_special {
            protection_key::set_rights(rights);
        }
        let polled = work.as_mut().poll(context);
        if is_special {
            let _ = protection_key::take_rights();
        }
        thread.pays_for_call(now_ns().saturating_sub(start_ns));
        polled
    })
    .await;
}
