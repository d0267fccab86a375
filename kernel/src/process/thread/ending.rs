//! Tasks at the end of a thread, or when it leaves its address space in `execve`.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::process::futex::pi::PiWaiter;
use crate::process::vfork::Vfork;
use crate::process::{ExitStatus, Thread};
use crate::sync::SpinLock;

#[derive(Default)]
pub(super) struct Ending {
    /// `CLONE_CHILD_CLEARTID`: where to write 0 and wake a futex at the end.
    clear_child_tid: AtomicUsize,
    /// `CLONE_CHILD_SETTID`: where the thread stores its number before it runs; 0 for nowhere.
    child_tid: AtomicUsize,
    /// `set_robust_list`.
    robust_list: AtomicUsize,
    /// Where the thread waits for a lock that inherits priorities. Guarded by the lock of all those.
    pi_wait: SpinLock<Option<Arc<PiWaiter>>>,
    /// It has ended and given up such locks.
    has_released_pi_locks: AtomicBool,
    /// The parent that waits in `vfork` for this thread to leave the space.
    vfork: SpinLock<Option<Arc<Vfork>>>,
    /// The argument of the thread's exit(2).
    exit_code: AtomicU8,
}

impl Thread {
    /// Where to store the thread's number, in its own memory, before it runs.
    pub fn set_child_tid(&self, address: usize) {
        self.ending.child_tid.store(address, Ordering::Relaxed);
    }

    /// The address of [`Thread::set_child_tid`], for once; 0 for none.
    #[must_use]
    pub fn take_child_tid(&self) -> usize {
        self.ending.child_tid.swap(0, Ordering::Relaxed)
    }

    /// Where to write 0 and wake a futex when the thread leaves its address space.
    pub fn set_clear_child_tid(&self, address: usize) {
        self.ending.clear_child_tid.store(address, Ordering::Relaxed);
    }

    /// The address of [`Thread::set_clear_child_tid`]; 0 for none.
    #[must_use]
    pub fn clear_child_tid(&self) -> usize {
        self.ending.clear_child_tid.load(Ordering::Relaxed)
    }

    /// The address of [`Thread::set_clear_child_tid`], for once; 0 for none.
    #[must_use]
    pub(in crate::process) fn take_clear_child_tid(&self) -> usize {
        self.ending.clear_child_tid.swap(0, Ordering::Relaxed)
    }

    /// The head of the thread's list of robust futexes; 0 for none.
    #[must_use]
    pub fn robust_list(&self) -> usize {
        self.ending.robust_list.load(Ordering::Relaxed)
    }

    /// set_robust_list(2). Returns the head before.
    pub fn set_robust_list(&self, head: usize) -> usize {
        self.ending.robust_list.swap(head, Ordering::Relaxed)
    }

    /// Where the thread waits for a lock that inherits priorities. The lock of all those is held.
    pub(in crate::process) const fn pi_wait(&self) -> &SpinLock<Option<Arc<PiWaiter>>> {
        &self.ending.pi_wait
    }

    /// Whether the thread has given up its locks that inherit priorities.
    #[must_use]
    pub(in crate::process) fn has_released_pi_locks(&self) -> bool {
        self.ending.has_released_pi_locks.load(Ordering::Relaxed)
    }

    /// The thread gives up its locks that inherit priorities; a new program may take such locks again.
    pub(in crate::process) fn set_released_pi_locks(&self, has_left: bool) {
        self.ending.has_released_pi_locks.store(has_left, Ordering::Relaxed);
    }

    /// The parent of the thread waits in `vfork`.
    pub(in crate::process) fn set_vfork(&self, vfork: Arc<Vfork>) {
        let before = self.ending.vfork.lock().replace(vfork);
        drop(before);
    }

    /// The parent that waits in `vfork`, for once.
    #[must_use]
    pub(in crate::process) fn take_vfork(&self) -> Option<Arc<Vfork>> {
        self.ending.vfork.lock().take()
    }

    /// How the thread, which is about to end, ends: as its process does, if that is decided.
    #[must_use]
    pub fn last_status(&self) -> ExitStatus {
        let ending = self.process.signal_state().ending();
        ending.unwrap_or(ExitStatus::Exited(self.exit_code()))
    }

    /// The argument of the thread's exit(2).
    #[must_use]
    pub(in crate::process) fn exit_code(&self) -> u8 {
        self.ending.exit_code.load(Ordering::Relaxed)
    }

    /// exit(2).
    pub fn exit(&self, code: u8) {
        self.ending.exit_code.store(code, Ordering::Relaxed);
        self.add_work(crate::signal::PendingWork::DIE);
    }
}
