//! How a thread is woken and told to look at something.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Waker;

use crate::arch;
use crate::process::Thread;
use crate::signal::PendingWork;
use crate::wait::queue::{Disposition, Events, Watch, Watcher};
use crate::wait::syscall::WaitKind;

/// The generation of a thread that waits for nothing is even, of one that waits odd.
const WAITING: u32 = 1;

pub(super) struct Wake {
    /// The waker of the thread's coroutine: for signals, and for what the thread watches.
    waker: spin::Once<Waker>,
    generation: AtomicU32,
    /// What to look at before the next return to user mode.
    work: AtomicU32,
    /// The CPU that polls the thread's coroutine, plus one; 0 when none does.
    cpu: AtomicU32,
}

impl Wake {
    pub(super) const fn new() -> Self {
        Self {
            waker: spin::Once::new(),
            generation: AtomicU32::new(0),
            work: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
        }
    }
}

impl Thread {
    /// The thread's coroutine is polled here from now on.
    pub(in crate::process) fn arrive(&self, waker: &Waker) {
        self.wake.waker.call_once(|| waker.clone());
        self.wake.cpu.store(arch::cpu::id() as u32 + 1, Ordering::Release);
    }

    /// The poll has ended.
    pub(in crate::process) fn depart(&self) {
        self.wake.cpu.store(0, Ordering::Release);
    }

    /// The CPU that polls the thread's coroutine.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        (self.wake.cpu.load(Ordering::Acquire) as usize).checked_sub(1)
    }

    /// Makes the thread ready if it waits.
    pub fn wake(&self) {
        if let Some(waker) = self.wake.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Makes the thread look at its work: wakes it if it waits, interrupts it if it runs a program elsewhere.
    pub fn kick(&self) {
        self.wake();
        self.interrupt();
    }

    /// Interrupts the thread if it runs a program elsewhere.
    pub fn interrupt(&self) {
        if let Some(cpu) = self.cpu().filter(|&cpu| cpu != arch::cpu::id()) {
            arch::cpu::kick(cpu);
        }
    }

    /// Whether a wait of this kind has to end: a signal is to be delivered, or the thread is to die.
    #[must_use]
    pub fn is_interrupted(&self, kind: WaitKind) -> bool {
        let work = self.work();
        match kind {
            WaitKind::Uninterruptible => false,
            WaitKind::Killable => work.contains(PendingWork::DIE),
            WaitKind::Interruptible => {
                work.intersects(PendingWork::DIE | PendingWork::SIGNAL | PendingWork::STOP)
            }
        }
    }

    /// What to look at before the next return to user mode.
    #[must_use]
    pub fn work(&self) -> PendingWork {
        PendingWork::from_bits_retain(self.wake.work.load(Ordering::Acquire))
    }

    pub fn add_work(&self, work: PendingWork) {
        self.wake.work.fetch_or(work.bits(), Ordering::Release);
    }

    pub fn remove_work(&self, work: PendingWork) {
        self.wake.work.fetch_and(!work.bits(), Ordering::AcqRel);
    }

    /// Starts a wait on any number of queues; ends the one before.
    pub fn begin_watch(self: &Arc<Self>) -> Watch {
        let generation = self.wake.generation.load(Ordering::Relaxed);
        self.wake.generation.store((generation | WAITING).wrapping_add(2), Ordering::Release);
        Watch::new(self.clone())
    }

    /// Ends the wait: registrations that are left in queues are stale from here on.
    pub fn end_watch(&self) {
        let generation = self.wake.generation.load(Ordering::Relaxed);
        self.wake.generation.store((generation | WAITING).wrapping_add(1), Ordering::Release);
    }
}

impl Watcher for Thread {
    fn notify(&self, generation: u32, _events: Events) -> Disposition {
        if self.generation() != generation {
            return Disposition::Stale;
        }
        self.wake();
        Disposition::Done
    }

    fn generation(&self) -> u32 {
        self.wake.generation.load(Ordering::Acquire)
    }
}
