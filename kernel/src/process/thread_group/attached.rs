//! State that other parts of the kernel keep with a process until its end.

use alloc::sync::Arc;
use core::any::Any;

use crate::process::Process;
use crate::process::keys::KeysPlace;
use crate::sync::{SpinGuard, SpinLock};

/// Something that another part of the kernel keeps with a process.
pub trait Attachment: Any + Send + Sync {
    /// The process ends. Several processes may share an attachment, each of which has a reference.
    fn process_ended(self: Arc<Self>, process: &Process);
}

#[derive(Default)]
pub(super) struct Attached {
    /// Operations on semaphores that are undone at the end: System V IPC.
    semaphore_undoes: SpinLock<Option<Arc<dyn Attachment>>>,
    /// Keyrings, once it has asked for any.
    keys: SpinLock<KeysPlace>,
}

impl Process {
    /// The undo values that System V semaphores keep with the process.
    pub fn semaphore_undoes(&self) -> SpinGuard<'_, Option<Arc<dyn Attachment>>> {
        self.attached.semaphore_undoes.lock()
    }

    /// The keyrings of the process.
    pub fn keys(&self) -> SpinGuard<'_, KeysPlace> {
        self.attached.keys.lock()
    }

    /// The process has ended: nobody possesses anything by it.
    pub fn forget_keys(&self) {
        let keys = self.keys().take();
        drop(keys);
    }

    /// The process ends, or does not share this any more (`unshare(CLONE_SYSVSEM)`): what is attached goes.
    pub fn detach_all(&self) {
        let undoes = self.attached.semaphore_undoes.lock().take();
        if let Some(undoes) = undoes {
            undoes.process_ended(self);
        }
    }
}
