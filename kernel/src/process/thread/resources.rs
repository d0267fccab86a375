//! Resources of a thread: its address space, descriptors, directories and namespaces. `clone` shares them one by one.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use heddle_kernel_core::mempolicy::MemoryPolicy;

use crate::error::Errno;
use crate::fs::{DescriptorTable, Directories};
use crate::memory::{Space, fallible};
use crate::process::namespaces::Namespaces;
use crate::process::{Thread, start};
use crate::sync::SpinLock;

pub(super) struct Resources {
    space: SpinLock<Arc<Space>>,
    descriptors: SpinLock<Arc<DescriptorTable>>,
    directories: SpinLock<Arc<Directories>>,
    namespaces: SpinLock<Arc<Namespaces>>,
    /// The bits of its memory policy.
    memory_policy: AtomicU32,
}

impl Resources {
    pub(super) fn new(
        space: Arc<Space>,
        descriptors: Arc<DescriptorTable>,
        directories: Arc<Directories>,
        namespaces: Arc<Namespaces>,
    ) -> Self {
        descriptors.attach();
        space.attach();
        directories.attach();
        Self {
            space: SpinLock::new(space),
            descriptors: SpinLock::new(descriptors),
            directories: SpinLock::new(directories),
            namespaces: SpinLock::new(namespaces),
            memory_policy: AtomicU32::new(MemoryPolicy::DEFAULT.to_bits()),
        }
    }
}

impl Drop for Resources {
    /// A thread that never ran, or has left its table for an empty one.
    fn drop(&mut self) {
        let _ = self.descriptors.lock().detach();
        self.space.lock().detach();
        self.directories.lock().detach();
    }
}

impl Thread {
    /// The address space; one without mappings for a thread that has ended.
    #[must_use]
    pub fn space(&self) -> Arc<Space> {
        self.resources.space.lock().clone()
    }

    /// The address space; `None` for a thread that has ended.
    #[must_use]
    pub fn try_space(&self) -> Option<Arc<Space>> {
        let space = self.space();
        start::nothing().is_none_or(|nothing| !Arc::ptr_eq(&space, &nothing.space)).then_some(space)
    }

    /// Makes this CPU use the thread's address space.
    pub fn activate_space(&self) {
        self.resources.space.lock().activate();
    }

    /// Replaces the address space and returns the one before, to be dropped without a lock held.
    #[must_use]
    pub(in crate::process) fn set_space(&self, space: Arc<Space>) -> Arc<Space> {
        space.attach();
        let before = core::mem::replace(&mut *self.resources.space.lock(), space);
        before.detach();
        before
    }

    /// Gives up the address space.
    pub fn leave_space(&self) {
        if let Some(nothing) = start::nothing() {
            drop(self.set_space(nothing.space.clone()));
        }
    }

    /// The table of descriptors; an empty one for a thread that has ended.
    #[must_use]
    pub fn descriptors(&self) -> Arc<DescriptorTable> {
        self.resources.descriptors.lock().clone()
    }

    /// Replaces the table of descriptors.
    pub(in crate::process) fn set_descriptors(&self, table: Arc<DescriptorTable>) {
        table.attach();
        let before = core::mem::replace(&mut *self.resources.descriptors.lock(), table);
        // The process goes on, and so do its locks.
        let _ = before.detach();
        drop(before);
    }

    /// Gives up the descriptors. With the last thread of the table, or of the process, the locks go that the process
    /// holds on the files: what a close of each descriptor does.
    pub async fn leave_descriptors(&self, is_last_of_process: bool) {
        if let Some((table, is_last)) = self.drop_descriptors()
            && (is_last || is_last_of_process)
        {
            table.closed_by(self.process.pid, is_last).await;
        }
    }

    /// Gives up the descriptors of a thread that has not run: it has no locks. Returns the table, and whether nobody
    /// else uses it.
    pub fn drop_descriptors(&self) -> Option<(Arc<DescriptorTable>, bool)> {
        let nothing = start::nothing()?;
        nothing.descriptors.attach();
        let table = core::mem::replace(&mut *self.resources.descriptors.lock(), nothing.descriptors.clone());
        let is_last = table.detach();
        Some((table, is_last))
    }

    /// Gives the thread a table of descriptors of its own, with what is in the one it shares.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn unshare_descriptors(&self) -> Result<(), Errno> {
        let copy = fallible::try_arc(self.descriptors().duplicate()?)?;
        self.set_descriptors(copy);
        Ok(())
    }

    /// Root and working directory.
    #[must_use]
    pub fn directories(&self) -> Arc<Directories> {
        self.resources.directories.lock().clone()
    }

    /// Replaces root and working directory: `unshare(CLONE_FS)`.
    pub fn set_directories(&self, directories: Arc<Directories>) {
        directories.attach();
        let before = core::mem::replace(&mut *self.resources.directories.lock(), directories);
        before.detach();
        drop(before);
    }

    /// Its memory policy, which mappings with one of their own do not look at: set_mempolicy(2).
    #[must_use]
    pub fn memory_policy(&self) -> MemoryPolicy {
        MemoryPolicy::from_bits(self.resources.memory_policy.load(Ordering::Relaxed))
    }

    /// Changes its memory policy.
    pub fn set_memory_policy(&self, policy: MemoryPolicy) {
        self.resources.memory_policy.store(policy.to_bits(), Ordering::Relaxed);
    }

    /// Its namespaces.
    #[must_use]
    pub fn namespaces(&self) -> Arc<Namespaces> {
        self.resources.namespaces.lock().clone()
    }

    /// Replaces its namespaces: unshare(2), setns(2).
    pub fn set_namespaces(&self, namespaces: Arc<Namespaces>) {
        let before = core::mem::replace(&mut *self.resources.namespaces.lock(), namespaces);
        drop(before);
    }

    /// Gives up the namespaces of a thread that ends: nobody waits for its parent to take them apart.
    pub fn leave_namespaces(&self) {
        if let Ok(initial) = Namespaces::initial() {
            self.set_namespaces(initial.clone());
        }
    }
}
