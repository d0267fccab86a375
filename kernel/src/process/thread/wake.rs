//! How a thread is woken and told to look at something.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::task::Waker;

use crate::arch;
use crate::error::Errno;
use crate::process::{Thread, running};
use crate::sched::detour;
use crate::signal::PendingWork;
use crate::wait::node::{ThreadMark, WaitKind, WaitNode};

/// Counts the threads that have been made.
static THREADS: AtomicU32 = AtomicU32::new(1);

pub(super) struct Wake {
    /// The thread in wait queues, and how signals wake it.
    node: Arc<WaitNode>,
    /// Work to do before the next return to user mode.
    work: AtomicU32,
    /// The CPU that polls the thread's coroutine, plus one; 0 when none does.
    cpu: AtomicU32,
    /// The CPU that polled it last.
    last_cpu: AtomicU32,
    migrations: AtomicU64,
    /// A [`ThreadMark`].
    mark: AtomicU64,
    /// The poll stands still while the host is asked.
    in_detour: AtomicBool,
    /// It waits, and nothing but its death ends that early.
    waits_killably: AtomicBool,
}

impl Wake {
    pub(super) fn new(tid: i32) -> Result<Self, Errno> {
        let serial = THREADS.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            node: WaitNode::new()?,
            work: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            last_cpu: AtomicU32::new(arch::cpu::id() as u32),
            migrations: AtomicU64::new(0),
            mark: AtomicU64::new(ThreadMark::new(tid, serial).0),
            in_detour: AtomicBool::new(false),
            waits_killably: AtomicBool::new(false),
        })
    }
}

impl Thread {
    /// The name of the thread where it is not kept alive.
    #[inline]
    #[must_use]
    pub fn mark(&self) -> ThreadMark {
        ThreadMark(self.wake.mark.load(Ordering::Relaxed))
    }

    /// The thread has another number from now on.
    pub(super) fn renumber_mark(&self, tid: i32) {
        let serial = (self.mark().0 >> 32) as u32;
        self.wake.mark.store(ThreadMark::new(tid, serial).0, Ordering::Relaxed);
    }

    /// The thread's coroutine is polled here from now on.
    pub fn arrive(&self, waker: &Waker) {
        self.wake.node.set_waker(waker);
        let cpu = arch::cpu::id() as u32;
        if self.wake.last_cpu.load(Ordering::Relaxed) != cpu {
            self.migrate(cpu);
        }
        self.wake.cpu.store(cpu + 1, Ordering::Release);
        running::set_on(cpu as usize, self.mark());
    }

    #[cold]
    fn migrate(&self, cpu: u32) {
        let count = &self.wake.migrations;
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.wake.last_cpu.store(cpu, Ordering::Relaxed);
    }

    /// How often the thread went on on another CPU than the one it had been on.
    #[must_use]
    pub fn migrations(&self) -> u64 {
        self.wake.migrations.load(Ordering::Relaxed)
    }

    /// The poll stands still from now on, until [`Thread::end_detour`].
    pub fn begin_detour(&self) {
        self.wake.in_detour.store(true, Ordering::Relaxed);
        self.depart();
    }

    /// The poll goes on, on the same CPU.
    pub fn end_detour(&self) {
        self.wake.cpu.store(arch::cpu::id() as u32 + 1, Ordering::Release);
        self.wake.in_detour.store(false, Ordering::Relaxed);
        running::set_on(arch::cpu::id(), self.mark());
    }

    /// Whether the poll stands still.
    #[must_use]
    pub fn is_in_detour(&self) -> bool {
        self.wake.in_detour.load(Ordering::Relaxed)
    }

    /// Says whether the thread is in a wait that nothing but its death ends early.
    pub fn set_waits_killably(&self, waits: bool) {
        self.wake.waits_killably.store(waits, Ordering::Relaxed);
    }

    /// Whether it is in such a wait.
    #[must_use]
    pub fn waits_killably(&self) -> bool {
        self.wake.waits_killably.load(Ordering::Relaxed)
    }

    /// The poll has ended.
    pub fn depart(&self) {
        self.wake.cpu.store(0, Ordering::Release);
    }

    /// The thread in wait queues.
    #[must_use]
    pub const fn node(&self) -> &Arc<WaitNode> {
        &self.wake.node
    }

    /// The CPU that polls the thread's coroutine.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        (self.wake.cpu.load(Ordering::Acquire) as usize).checked_sub(1)
    }

    /// The CPU that runs the thread, or ran it last.
    #[must_use]
    pub fn last_cpu(&self) -> u32 {
        self.wake.last_cpu.load(Ordering::Relaxed)
    }

    /// Makes the thread ready if it waits.
    pub fn wake(&self) {
        self.wake.node.wake();
    }

    /// Makes the thread look at its work: wakes it if it waits, interrupts it if it runs a program elsewhere.
    pub fn kick(&self) {
        self.wake();
        self.interrupt();
        detour::look_again();
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
            WaitKind::Interruptible => work.intersects(
                PendingWork::DIE
                    | PendingWork::SIGNAL
                    | PendingWork::STOP
                    | PendingWork::TRAP
                    | PendingWork::FROZEN,
            ),
        }
    }

    /// Work to do before the next return to user mode.
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
}
