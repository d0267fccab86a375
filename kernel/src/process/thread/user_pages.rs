//! Pages of its program that the kernel needs for a thread on the way: a handler's frame, the area of restartable
//! sequences, results. As for a fault of the program itself, a thread waits for memory as long as it lives: a signal
//! for a page that is missing because memory ran out for a while would be no fault of the program's.

use crate::arch::time::now_ns;
use crate::error::Errno;
use crate::memory::user::PageFault;
use crate::memory::{Space, values as user};
use crate::process::Thread;
use crate::wait::node::WaitKind;

impl Thread {
    /// Brings in a page that was missing.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`: the thread is to die.
    pub async fn resolve_missing(&self, missing: PageFault) -> Result<(), Errno> {
        self.space().fault_in_until(missing, || self.is_interrupted(WaitKind::Killable)).await
    }

    /// Brings in a page of a space that the thread's end writes to: a word that others wait at. The thread is to die,
    /// so that is no reason to give up. If its whole process ends, others wait for the memory that this gives back, so
    /// memory is waited for only for a while then.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`, which nobody sees.
    pub async fn resolve_at_end(&self, space: &Space, missing: PageFault) -> Result<(), Errno> {
        let until_ns = now_ns().saturating_add(Space::MEMORY_WAIT_NS);
        let is_over = || now_ns() >= until_ns && self.process.signal_state().ending().is_some();
        space.fault_in_for(missing, is_over).await
    }

    /// Repeats an access to user memory until it needs no page that is missing.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`, which nobody sees.
    pub async fn resolve<T>(&self, access: impl FnMut(&Space) -> Result<T, PageFault>) -> Result<T, Errno> {
        user::resolve_for(&self.space(), || self.is_interrupted(WaitKind::Killable), access).await
    }
}
