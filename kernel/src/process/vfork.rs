//! `vfork`: a parent that waits until its child has left the address space they share.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::call::caller::Caller;
use crate::error::Errno;
use crate::memory::fallible;
use crate::process::Thread;
use crate::wait::node::WaitKind;
use crate::wait::queue::{Events, WaitQueue};

/// The event that a parent in `vfork` waits for.
pub struct Vfork {
    is_done: AtomicBool,
    waiters: WaitQueue,
}

impl Vfork {
    /// Has a child that has not started yet tell its parent.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn attach(child: &Thread) -> Result<Arc<Self>, Errno> {
        let vfork = fallible::try_arc(Self { is_done: AtomicBool::new(false), waiters: WaitQueue::new() })?;
        child.set_vfork(vfork.clone());
        Ok(vfork)
    }

    /// Waits until the child has left the space. Only the parent's death ends the wait earlier.
    pub async fn wait(&self, parent: &Caller) {
        let waiting = parent.wait_until(WaitKind::Killable, |watch| {
            self.waiters.watch(watch, Events::all())?;
            Ok(self.is_done.load(Ordering::Acquire).then_some(()))
        });
        // Interrupted by death: nobody sees the result.
        let _ = waiting.await;
    }
}

/// Lets the parent of a `vfork` go on.
pub(super) fn release_parent(child: &Thread) {
    if let Some(vfork) = child.take_vfork() {
        vfork.is_done.store(true, Ordering::Release);
        vfork.waiters.wake(Events::all());
    }
}
