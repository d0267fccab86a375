//! A thread and what hangs off it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use heddle_kernel_core::signal::{AlternateStack, Pending, SignalSet};

use crate::arch;
use crate::arch::{FloatState, UserContext};
use crate::error::Errno;
use crate::fs::{DescriptorTable, Directories};
use crate::memory::{Space, fallible};
use crate::process::cpu_time::Meter;
use crate::process::{Credentials, Process, RunState};
use crate::sched::{Parameters, Priority, SchedEntity, TaskRef};
use crate::signal::PendingWork;
use crate::sync::SpinLock;
use crate::syscall::{DeferredCopyOut, Restart};
use crate::wait::node::{WaitKind, WaitNode};

/// A thread of a program.
pub struct Thread {
    tid: AtomicI32,
    /// The thread group it belongs to.
    pub process: Arc<Process>,
    space: SpinLock<Arc<Space>>,
    descriptors: SpinLock<Arc<DescriptorTable>>,
    directories: SpinLock<Arc<Directories>>,
    credentials: SpinLock<Arc<Credentials>>,
    name: SpinLock<[u8; Self::NAME_BYTES]>,
    /// The thread in wait queues, and how signals wake it.
    pub node: Arc<WaitNode>,
    /// What to look at before the next return to user mode.
    work: AtomicU32,
    /// The CPU that polls the thread's coroutine, plus one; 0 when none does.
    pub cpu: AtomicU32,
    blocked: AtomicU64,
    /// Signals that `sigwait` waits for: they are neither ignored nor fatal meanwhile.
    awaited: AtomicU64,
    /// The mask to go back to once a signal has been delivered: `sigsuspend`, `ppoll`, `pselect`.
    pub saved_mask: SpinLock<Option<SignalSet>>,
    pub pending: SpinLock<Pending>,
    pub alternate_stack: SpinLock<AlternateStack>,
    pub restart: SpinLock<Option<Restart>>,
    /// `CLONE_CHILD_CLEARTID`: where to write 0 and wake a futex at the end.
    pub clear_child_tid: AtomicUsize,
    /// `set_robust_list`.
    pub robust_list: AtomicUsize,
    pub restartable: crate::process::rseq::RseqRegistration,
    /// Where the thread waits for a lock that inherits priorities. Guarded by the lock of all those.
    pub pi_wait: SpinLock<Option<Arc<crate::syscall::futex::pi::PiWaiter>>>,
    /// It has ended and given up such locks.
    pub has_left_locks: AtomicBool,
    /// Who waits in `vfork` for this thread to leave the space.
    pub vfork: SpinLock<Option<Arc<crate::syscall::process::clone::Vfork>>>,
    /// ioprio_set(2).
    pub io_priority: AtomicU32,
    /// Reached through [`Thread::with_float`].
    float: SpinLock<FloatState>,
    /// The registers of the CPU may not be the thread's.
    float_stale: AtomicBool,
    /// Registers to go on with instead of those that the coroutine holds: `execve`.
    next_context: SpinLock<Option<Box<UserContext>>>,
    pub(super) task: spin::Once<TaskRef>,
    /// What the thread is to its program's scheduler.
    pub(super) executor: crate::process::executor::ExecutorSlot,
    pub entity: SpinLock<SchedEntity>,
    /// The level and the end of the turn from `entity`, for a look without the lock.
    priority: AtomicU16,
    /// See [`Thread::rank`].
    rank: AtomicU8,
    pub(super) until_ns: AtomicU64,
    /// Results that found their page missing, with their addresses.
    pub late: DeferredCopyOut,
    /// What the thread passed to exit(2).
    pub exit_code: AtomicU8,
    /// How often the thread gave the CPU up.
    pub switches: AtomicU64,
    /// When the visit to the kernel began that is being measured; 0 for none.
    pub(super) sample_start_ns: AtomicU64,
    /// Time on a CPU, and the part of it in the kernel.
    pub(super) meter: Meter,
    pub(super) system_ns: AtomicU64,
    /// The most time in user mode that anybody was told.
    user_seen_ns: AtomicU64,
}

/// What a new thread starts with.
pub struct Parts {
    pub tid: i32,
    pub process: Arc<Process>,
    pub space: Arc<Space>,
    pub descriptors: Arc<DescriptorTable>,
    pub directories: Arc<Directories>,
    pub credentials: Arc<Credentials>,
    pub name: [u8; Thread::NAME_BYTES],
    pub blocked: SignalSet,
    pub scheduling: Parameters,
    pub account: heddle_kernel_core::fairness::Account,
    pub float: FloatState,
}

/// The most urgent realtime priority.
const REALTIME_MAX: u8 = 99;

/// The rank of a realtime priority, or of 0 for an ordinary thread.
const fn rank_of(realtime: u8) -> u8 {
    if realtime == 0 { Thread::RANK_ORDINARY } else { REALTIME_MAX - realtime }
}

impl Thread {
    /// See [`Thread::rank`].
    pub const RANK_ORDINARY: u8 = 120;
    /// The size of a thread's name with its final zero.
    pub const NAME_BYTES: usize = 16;

    pub fn new(parts: Parts) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            tid: AtomicI32::new(parts.tid),
            process: parts.process,
            space: SpinLock::new(parts.space),
            descriptors: SpinLock::new(parts.descriptors),
            directories: SpinLock::new(parts.directories),
            credentials: SpinLock::new(parts.credentials),
            name: SpinLock::new(parts.name),
            node: WaitNode::new()?,
            work: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            blocked: AtomicU64::new(parts.blocked.0),
            awaited: AtomicU64::new(0),
            saved_mask: SpinLock::new(None),
            pending: SpinLock::new(Pending::new()),
            alternate_stack: SpinLock::new(AlternateStack::default()),
            restart: SpinLock::new(None),
            clear_child_tid: AtomicUsize::new(0),
            robust_list: AtomicUsize::new(0),
            restartable: crate::process::rseq::RseqRegistration::new(),
            pi_wait: SpinLock::new(None),
            has_left_locks: AtomicBool::new(false),
            vfork: SpinLock::new(None),
            io_priority: AtomicU32::new(0),
            float: SpinLock::new(parts.float),
            float_stale: AtomicBool::new(true),
            next_context: SpinLock::new(None),
            task: spin::Once::new(),
            executor: crate::process::executor::ExecutorSlot::new(),
            priority: AtomicU16::new(parts.scheduling.priority(parts.account.is_spent()).to_bits()),
            rank: AtomicU8::new(rank_of(parts.scheduling.realtime)),
            until_ns: AtomicU64::new(0),
            entity: SpinLock::new(SchedEntity::new(parts.scheduling, parts.account)),
            late: DeferredCopyOut::default(),
            exit_code: AtomicU8::new(0),
            switches: AtomicU64::new(0),
            sample_start_ns: AtomicU64::new(0),
            meter: Meter::default(),
            system_ns: AtomicU64::new(0),
            user_seen_ns: AtomicU64::new(0),
        })
    }

    /// Its number.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Gives the thread another number: `execve` by a thread that isn't the first makes it the first.
    pub(super) fn set_tid(&self, tid: i32) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// The address space; one without mappings for a thread that has ended.
    #[must_use]
    pub fn space(&self) -> Arc<Space> {
        self.space.lock().clone()
    }

    /// The address space; `None` for a thread that has ended.
    #[must_use]
    pub fn try_space(&self) -> Option<Arc<Space>> {
        let space = self.space();
        crate::process::start::nothing()
            .is_none_or(|nothing| !Arc::ptr_eq(&space, &nothing.space))
            .then_some(space)
    }

    /// How the thread is scheduled.
    #[must_use]
    pub fn scheduling(&self) -> Parameters {
        self.entity.lock().parameters()
    }

    /// The signals that are pending for this thread only.
    #[must_use]
    pub fn pending_signals(&self) -> SignalSet {
        self.pending.lock().set()
    }

    /// Makes this CPU use the thread's address space.
    pub(super) fn activate_space(&self) {
        self.space.lock().activate();
    }

    /// Replaces the address space and returns the one before, to be dropped without a lock held.
    pub(super) fn set_space(&self, space: Arc<Space>) -> Arc<Space> {
        core::mem::replace(&mut *self.space.lock(), space)
    }

    /// The table of descriptors; an empty one for a thread that has ended.
    #[must_use]
    pub fn descriptors(&self) -> Arc<DescriptorTable> {
        self.descriptors.lock().clone()
    }

    /// Replaces the table of descriptors and returns the one before, to be dropped without a lock held.
    pub(super) fn set_descriptors(&self, table: Arc<DescriptorTable>) -> Arc<DescriptorTable> {
        core::mem::replace(&mut *self.descriptors.lock(), table)
    }

    /// Gives up the address space.
    pub(super) fn leave_space(&self) {
        if let Some(nothing) = crate::process::start::nothing() {
            drop(self.set_space(nothing.space.clone()));
        }
    }

    /// Gives up the descriptors.
    pub(super) fn leave_descriptors(&self) {
        if let Some(nothing) = crate::process::start::nothing() {
            let table = self.set_descriptors(nothing.descriptors.clone());
            // The last to leave: what a close of each descriptor does to the process's locks.
            if Arc::strong_count(&table) == 1 {
                table.release_locks(self.process.pid);
            }
            drop(table);
        }
    }

    /// Gives the thread a table of descriptors of its own, with what is in the one it shares.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn unshare_descriptors(&self) -> Result<(), Errno> {
        let copy = fallible::try_arc(self.descriptors().duplicate()?)?;
        drop(self.set_descriptors(copy));
        Ok(())
    }

    /// Makes the thread ready if it waits.
    pub fn wake(&self) {
        self.node.wake();
    }

    /// Looks at or changes the saved floating-point registers; a CPU loads them again before the program runs on.
    pub fn with_float<R>(&self, access: impl FnOnce(&mut FloatState) -> R) -> R {
        self.float_stale.store(true, Ordering::Relaxed);
        access(&mut self.float.lock())
    }

    /// Makes the CPU's floating-point registers the thread's.
    pub(super) fn load_float(&self) {
        if self.float_stale.load(Ordering::Relaxed) {
            self.float.lock().restore();
            self.float_stale.store(false, Ordering::Relaxed);
        }
    }

    /// The level of the thread's coroutine.
    #[must_use]
    pub fn priority(&self) -> Priority {
        Priority::from_bits(self.priority.load(Ordering::Relaxed))
    }

    /// Changes the entity, and what follows from it: the end of the turn and the coroutine's level.
    pub(super) fn with_entity(&self, change: impl FnOnce(&mut SchedEntity)) {
        let mut entity = self.entity.lock();
        change(&mut entity);
        self.until_ns.store(entity.until_ns, Ordering::Relaxed);
        let mut priority = entity.priority;
        if self.executor.is_executor() {
            priority = crate::process::executor::level(self).unwrap_or(priority);
        }
        let before = self.priority.load(Ordering::Relaxed);
        if before != priority.to_bits() {
            self.priority.store(priority.to_bits(), Ordering::Relaxed);
            if let Some(task) = self.task.get() {
                // As in Linux: whose priority falls is the first of its new equals, whose priority rises the last.
                task.set_priority(priority, before < priority.to_bits());
            }
        }
    }

    /// The thread has a turn that it was to leave out; returns when it ends.
    pub(super) fn remaining_slice(&self) -> u64 {
        self.with_entity(|entity| entity.continue_slice(crate::arch::time::now_ns()));
        self.until_ns.load(Ordering::Relaxed)
    }

    /// The level that the thread has by nice value and budget, whatever its coroutines' are.
    #[must_use]
    pub fn standing_priority(&self) -> Priority {
        self.entity.lock().priority
    }

    /// Changes how the thread is scheduled.
    pub fn set_scheduling(&self, parameters: Parameters) {
        if self.scheduling().affinity != parameters.affinity {
            self.add_work(PendingWork::AFFINITY);
        }
        // An ordinary thread that becomes a realtime one, or the other way round, must not wait for its next turn.
        let is_running = self.cpu.load(Ordering::Acquire) != 0;
        self.with_entity(|entity| {
            entity.set_parameters(parameters, crate::arch::time::now_ns(), is_running);
            self.rank.store(rank_of(entity.realtime()), Ordering::Relaxed);
        });
        self.kick();
    }

    /// How urgent the thread is, as Linux counts: 0 for realtime priority 99, 98 for 1, 120 for every ordinary thread.
    #[must_use]
    #[inline]
    pub fn rank(&self) -> u8 {
        self.rank.load(Ordering::Relaxed)
    }

    /// Lends the thread the level of those who wait for it, the most urgent of which has this rank. Returns whether
    /// the thread's own rank has changed.
    pub fn lend(&self, rank: Option<u8>) -> bool {
        let before = self.rank();
        let realtime = rank.map_or(0, |rank| REALTIME_MAX.saturating_sub(rank));
        let is_running = self.cpu.load(Ordering::Acquire) != 0;
        self.with_entity(|entity| {
            entity.lend(realtime, crate::arch::time::now_ns(), is_running);
            self.rank.store(rank_of(entity.realtime()), Ordering::Relaxed);
        });
        let has_changed = self.rank() != before;
        if has_changed {
            self.kick();
        }
        has_changed
    }

    /// Root and working directory.
    #[must_use]
    pub fn directories(&self) -> Arc<Directories> {
        self.directories.lock().clone()
    }

    /// Replaces root and working directory: `unshare(CLONE_FS)`.
    pub fn set_directories(&self, directories: Arc<Directories>) {
        let before = core::mem::replace(&mut *self.directories.lock(), directories);
        drop(before);
    }

    /// Who the thread acts as.
    #[must_use]
    pub fn credentials(&self) -> Arc<Credentials> {
        self.credentials.lock().clone()
    }

    /// Changes who the thread acts as. Only the superuser's programs stay in the shared space.
    pub fn set_credentials(&self, credentials: Arc<Credentials>) {
        if !credentials.is_root_owned() && self.space().is_shared() {
            self.add_work(PendingWork::LEAVE);
        }
        let before = core::mem::replace(&mut *self.credentials.lock(), credentials);
        drop(before);
    }

    /// The name that `/proc/PID/comm` shows, filled up with zeros.
    #[must_use]
    pub fn name(&self) -> [u8; Self::NAME_BYTES] {
        *self.name.lock()
    }

    /// Changes the name; what is too long is cut.
    pub fn set_name(&self, name: &[u8]) {
        let mut bytes = [0; Self::NAME_BYTES];
        let length = name.len().min(Self::NAME_BYTES - 1);
        bytes[..length].copy_from_slice(&name[..length]);
        *self.name.lock() = bytes;
    }

    /// The signals that the thread waits for with `sigwait`.
    #[must_use]
    pub fn awaited(&self) -> SignalSet {
        SignalSet(self.awaited.load(Ordering::Relaxed))
    }

    /// Says which signals the thread waits for. Only the thread itself does.
    pub fn set_awaited(&self, awaited: SignalSet) {
        self.awaited.store(awaited.0, Ordering::Relaxed);
    }

    /// The signals that are held back.
    #[must_use]
    pub fn blocked(&self) -> SignalSet {
        SignalSet(self.blocked.load(Ordering::Relaxed))
    }

    /// Changes the signals that are held back. Only the thread itself does.
    pub fn set_blocked(&self, blocked: SignalSet) {
        self.blocked.store(blocked.difference(SignalSet::UNBLOCKABLE).0, Ordering::Relaxed);
        crate::signal::recheck(self);
    }

    /// Waits with another mask (`ppoll`, `pselect`, `epoll_pwait`, `sigsuspend`): the old one comes back when the call
    /// ends, but only after a signal that ended the wait has found the new one.
    pub fn set_blocked_for_wait(&self, blocked: SignalSet) {
        self.saved_mask.lock().get_or_insert(self.blocked());
        self.add_work(PendingWork::MASK);
        self.set_blocked(blocked);
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
        PendingWork::from_bits_retain(self.work.load(Ordering::Acquire))
    }

    pub fn add_work(&self, work: PendingWork) {
        self.work.fetch_or(work.bits(), Ordering::Release);
    }

    pub fn remove_work(&self, work: PendingWork) {
        self.work.fetch_and(!work.bits(), Ordering::AcqRel);
    }

    /// Makes the thread look at its work: wakes it if it waits, interrupts it if it runs a program elsewhere.
    pub fn kick(&self) {
        self.wake();
        let cpu = self.cpu.load(Ordering::Acquire);
        if cpu != 0 && cpu as usize - 1 != arch::cpu::id() {
            arch::cpu::kick(cpu as usize - 1);
        }
    }

    /// The thread's coroutine.
    #[must_use]
    pub fn task(&self) -> Option<&TaskRef> {
        self.task.get()
    }

    /// How often the thread gave the CPU up.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.switches.load(Ordering::Relaxed)
    }

    /// When its turn began, or the last one ended.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.entity.lock().since_ns()
    }

    /// Whether the thread is ready, but does not run.
    fn is_queued(&self) -> bool {
        // Without a coroutine it has just been made, and gets one before its first run.
        self.task.get().is_none_or(TaskRef::runs_or_is_ready)
    }

    /// What the thread is doing.
    #[must_use]
    pub fn run_state(&self) -> RunState {
        if self.work().contains(PendingWork::STOPPED) {
            RunState::Stopped
        } else if self.cpu.load(Ordering::Relaxed) != 0 || self.is_queued() {
            RunState::Running
        } else {
            RunState::Sleeping
        }
    }

    /// Nanoseconds used in user mode and in the kernel.
    #[must_use]
    pub fn cpu_times(&self) -> (u64, u64) {
        let total = self.meter.used_ns();
        let system = self.system_ns.load(Ordering::Relaxed).min(total);
        // The kernel's part is an estimate that grows in steps, but no clock goes back.
        let user = self.user_seen_ns.fetch_max(total - system, Ordering::Relaxed).max(total - system);
        (user, total.saturating_sub(user))
    }

    /// Stores a result of a call whose effects are done, so that it must not start again. A page that has become
    /// missing or read-only since the call looked ([`Space::probe_write`]) is brought in before the program goes on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn store_result(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        if self.space().write_bytes(address, bytes).is_ok() {
            return Ok(());
        }
        self.late.put(address, bytes)?;
        self.add_work(PendingWork::STORE);
        Ok(())
    }

    /// Keeps what `restart_syscall` is to do; the call then returns `ERESTART_RESTARTBLOCK`.
    pub fn set_restart(&self, restart: Restart) {
        let before = self.restart.lock().replace(restart);
        drop(before);
    }

    /// Makes the thread go on with these registers once the call under way has ended.
    pub(super) fn replace_context(&self, context: Box<UserContext>) {
        let before = self.next_context.lock().replace(context);
        drop(before);
        self.add_work(PendingWork::CONTEXT);
    }

    /// The registers of [`Thread::replace_context`].
    pub(super) fn take_context(&self) -> Option<Box<UserContext>> {
        self.remove_work(PendingWork::CONTEXT);
        self.next_context.lock().take()
    }
}
