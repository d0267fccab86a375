//! Pages of its program that the kernel needs for a thread on the way: a handler's frame, the area of restartable
//! sequences, results. As for a fault of the program itself, a thread waits for memory as long as it lives: a signal for
//! a page that is missing because memory ran out for a while would be no fault of the program's.

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

    /// Repeats an access to user memory until it needs no page that is missing.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`, which nobody sees.
    pub async fn resolve<T>(&self, access: impl FnMut(&Space) -> Result<T, PageFault>) -> Result<T, Errno> {
        user::resolve_for(&self.space(), || self.is_interrupted(WaitKind::Killable), access).await
    }
}
