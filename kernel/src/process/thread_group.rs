//! A process: what the threads of a thread group share.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use heddle_kernel_core::signal::Actions;

use crate::error::Errno;
use crate::fs::OpenFile;
use crate::ipc::semaphore::SemUndoList;
use crate::memory::fallible;
use crate::process::cpu_time::Alarms;
use crate::process::timers::Timers;
use crate::process::{Credentials, ExitStatus, Group, Limits, Resource, ResourceLimit, Session, Thread};
use crate::signal::SignalState;
use crate::sync::SpinLock;
use crate::syscall::asynchronous::Calls;
use crate::wait::queue::{Events, WaitQueue, Watch};

/// A thread group.
pub struct Process {
    /// Its number, that of its first thread.
    pub pid: i32,
    parent: SpinLock<Weak<Process>>,
    /// The parent's number, so that asking for it takes no lock.
    parent_pid: AtomicI32,
    pub children: SpinLock<Vec<Arc<Process>>>,
    pub group: SpinLock<Arc<Group>>,
    pub state: SpinLock<SignalState>,
    pub(super) actions: SpinLock<Arc<SpinLock<Actions>>>,
    pub limits: SpinLock<Limits>,
    pub layout: SpinLock<ProcessLayout>,
    /// The program's file, for `/proc/PID/exe`.
    pub executable: SpinLock<Option<Arc<OpenFile>>>,
    /// Notified when a child ends, stops or goes on: `wait4`.
    pub child_events: WaitQueue,
    /// Notified when a thread has ended: `execve` waits for the others.
    pub(super) thread_events: WaitQueue,
    /// Notified when a signal has come, held back or not: `signalfd`.
    pub signal_events: WaitQueue,
    /// Notified when this process has ended.
    pub(super) ended: WaitQueue,
    /// The signal the parent gets at the end; 0 for none.
    pub exit_signal: AtomicI32,
    /// The user id at the start and after each change, which `SIGCHLD` tells when no thread is left.
    pub uid: AtomicU32,
    /// Whether it has run `execve` since its fork: the parent can't change its group any more.
    pub has_executed: AtomicBool,
    pub timers: SpinLock<Timers>,
    /// What waits for its processor time.
    pub(super) alarms: Alarms,
    /// What membarrier(2) has registered: bits of its commands.
    pub barriers: AtomicU32,
    /// The threads that run the program's coroutines.
    pub executors: crate::process::executor::Executors,
    /// The signal that `PR_SET_PDEATHSIG` asks for when the parent ends; 0 for none.
    pub parent_death_signal: AtomicI32,
    /// The thread that made it, which counts as its parent for that signal.
    pub creator: AtomicI32,
    /// Orphans among the descendants become children of this process.
    pub is_subreaper: AtomicBool,
    /// `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privileges: AtomicBool,
    /// When it started, on the monotonic clock.
    pub start_ns: u64,
    /// Its calls that go on by themselves.
    pub asynchronous: Calls,
    /// Operations on semaphores that are undone at its end.
    pub semaphore_undoes: SpinLock<Option<Arc<SemUndoList>>>,
    /// User and system time of threads that have ended, and of children waited for, in nanoseconds.
    pub(super) times: Times,
}

/// Where things are in a program's memory, for `/proc`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessLayout {
    /// The strings of `argv`: start and end.
    pub arguments: (usize, usize),
    /// The strings of `envp`: start and end.
    pub environment: (usize, usize),
    /// The auxiliary vector: start and end.
    pub auxiliary: (usize, usize),
    /// The code of the program: start and end.
    pub code: (usize, usize),
    /// The stack pointer at the start.
    pub stack: usize,
}

/// Accumulated processor time, in nanoseconds.
#[derive(Default)]
pub struct Times {
    pub(super) ended_user: AtomicU64,
    pub(super) ended_system: AtomicU64,
    pub(super) switches: AtomicU64,
    pub(super) children_user: AtomicU64,
    pub(super) children_system: AtomicU64,
}

impl Process {
    /// A process without threads.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(
        pid: i32,
        parent: &Weak<Process>,
        group: Arc<Group>,
        actions: Arc<SpinLock<Actions>>,
        limits: Limits,
    ) -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            pid,
            parent: SpinLock::new(parent.clone()),
            parent_pid: AtomicI32::new(parent.upgrade().map_or(0, |parent| parent.pid)),
            children: SpinLock::new(Vec::new()),
            group: SpinLock::new(group),
            state: SpinLock::new(SignalState::new()),
            actions: SpinLock::new(actions),
            limits: SpinLock::new(limits),
            layout: SpinLock::new(ProcessLayout::default()),
            executable: SpinLock::new(None),
            child_events: WaitQueue::new(),
            thread_events: WaitQueue::new(),
            signal_events: WaitQueue::new(),
            ended: WaitQueue::new(),
            exit_signal: AtomicI32::new(heddle_kernel_core::signal::Signal::CHLD.number()),
            uid: AtomicU32::new(0),
            has_executed: AtomicBool::new(false),
            timers: SpinLock::new(Timers::new()),
            alarms: Alarms::new(
                limits.get(Resource::CpuTime as u32).is_some_and(|limit| limit.soft != Limits::INFINITY),
            ),
            barriers: AtomicU32::new(0),
            executors: crate::process::executor::Executors::new(),
            parent_death_signal: AtomicI32::new(0),
            creator: AtomicI32::new(0),
            is_subreaper: AtomicBool::new(false),
            no_new_privileges: AtomicBool::new(false),
            start_ns: crate::arch::time::now_ns(),
            asynchronous: Calls::new(),
            semaphore_undoes: SpinLock::new(None),
            times: Times::default(),
        })
    }

    /// The parent; `None` for the first process of the kernel.
    #[must_use]
    pub fn parent(&self) -> Option<Arc<Process>> {
        self.parent.lock().upgrade()
    }

    /// Gives the process another parent, with the table locked.
    pub(super) fn set_parent(&self, parent: &Arc<Process>) {
        *self.parent.lock() = Arc::downgrade(parent);
        self.parent_pid.store(parent.pid, Ordering::Relaxed);
    }

    /// The parent's number, 0 if there is none.
    #[must_use]
    pub fn parent_pid(&self) -> i32 {
        self.parent_pid.load(Ordering::Relaxed)
    }

    /// The process group.
    #[must_use]
    pub fn group(&self) -> Arc<Group> {
        self.group.lock().clone()
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> Arc<Session> {
        self.group.lock().session.clone()
    }

    /// Whether the process is its session's leader.
    #[must_use]
    pub fn is_session_leader(&self) -> bool {
        self.session().id == self.pid
    }

    /// A resource limit.
    #[must_use]
    pub fn limit(&self, resource: Resource) -> ResourceLimit {
        let none = ResourceLimit { soft: Limits::INFINITY, hard: Limits::INFINITY };
        self.limits.lock().get(resource as u32).unwrap_or(none)
    }

    /// A resource limit by Linux's number, if there is such a resource.
    #[must_use]
    pub fn limit_by_number(&self, number: u32) -> Option<ResourceLimit> {
        self.limits.lock().get(number)
    }

    /// The signals that are pending for the process as a whole.
    #[must_use]
    pub fn pending_signals(&self) -> heddle_kernel_core::signal::SignalSet {
        self.state.lock().pending.set()
    }

    /// The strings of `argv` as they are in the program's memory now; nothing for a zombie.
    #[must_use]
    pub fn command_line(&self) -> Vec<u8> {
        self.read_memory(self.layout().arguments)
    }

    /// The strings of `envp` as they are in the program's memory now; nothing for a zombie.
    #[must_use]
    pub fn environment(&self) -> Vec<u8> {
        self.read_memory(self.layout().environment)
    }

    /// What of a range of the program's memory can be had without waiting.
    fn read_memory(&self, (start, end): (usize, usize)) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Some(space) = self.main_thread().and_then(|thread| thread.try_space()) else { return bytes };
        let length = end.saturating_sub(start).min(heddle_kernel_core::exec::Strings::BYTES_MAX);
        if bytes.try_reserve_exact(length).is_err() {
            return bytes;
        }
        bytes.resize(length, 0);
        while let Err(fault) = space.read_bytes(start, &mut bytes) {
            if !matches!(space.try_fault_in(fault), Some(Ok(()))) {
                bytes.truncate(fault.address.saturating_sub(start));
                break;
            }
        }
        bytes
    }

    /// The number of descriptors the process may have: what `RLIMIT_NOFILE` says.
    #[must_use]
    pub fn descriptor_limit(&self) -> usize {
        usize::try_from(self.limit(Resource::OpenFiles).soft).unwrap_or(usize::MAX)
    }

    /// The actions of signals.
    #[must_use]
    pub fn actions(&self) -> Arc<SpinLock<Actions>> {
        self.actions.lock().clone()
    }

    /// The number of threads that have not ended.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.state.lock().threads.len()
    }

    /// The thread with the smallest number from `from` on, to walk the threads without holding a lock.
    #[must_use]
    pub fn next_thread(&self, from: i32) -> Option<Arc<Thread>> {
        let state = self.state.lock();
        state.threads.iter().filter(|thread| thread.tid() >= from).min_by_key(|thread| thread.tid()).cloned()
    }

    /// The thread that stands for the process: its first, or any other when that has ended. `None` for a zombie.
    #[must_use]
    pub fn main_thread(&self) -> Option<Arc<Thread>> {
        let state = self.state.lock();
        state.threads.iter().find(|thread| thread.tid() == self.pid).or(state.threads.first()).cloned()
    }

    /// Who the process acts as; `None` for a zombie.
    #[must_use]
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.main_thread().map(|thread| thread.credentials())
    }

    /// How the process ended, once its last thread has.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.state.lock().ended
    }

    /// Where things are in the program's memory.
    #[must_use]
    pub fn layout(&self) -> ProcessLayout {
        *self.layout.lock()
    }

    /// The program's file.
    #[must_use]
    pub fn executable(&self) -> Option<Arc<OpenFile>> {
        self.executable.lock().clone()
    }

    /// Has a watch told of the end of the process.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch_end(&self, watch: &Watch, events: Events) -> Result<(), Errno> {
        self.ended.watch(watch, events)
    }

    /// Completes when the process has ended, and says how. For coroutines of the kernel.
    pub async fn wait_for_end(self: &Arc<Self>) -> ExitStatus {
        loop {
            if let Some(status) = self.exit_status() {
                return status;
            }
            // Without memory for a watch, look again when everyone else has had a turn.
            if crate::wait::engine::kernel_until(&self.ended, || self.exit_status().is_some()).await.is_err()
            {
                crate::sched::yield_now().await;
            }
        }
    }

    /// User and system time used by all threads, in nanoseconds.
    #[must_use]
    pub fn cpu_times(&self) -> (u64, u64) {
        let state = self.state.lock();
        let ended =
            (self.times.ended_user.load(Ordering::Relaxed), self.times.ended_system.load(Ordering::Relaxed));
        state
            .threads
            .iter()
            .map(|thread| thread.cpu_times())
            .fold(ended, |sum, each| (sum.0 + each.0, sum.1 + each.1))
    }

    /// How often the process's threads gave the CPU up.
    #[must_use]
    pub fn switches(&self) -> u64 {
        let state = self.state.lock();
        let ended = self.times.switches.load(Ordering::Relaxed);
        state.threads.iter().map(|thread| thread.switches.load(Ordering::Relaxed)).sum::<u64>() + ended
    }

    /// User and system time of the children that were waited for, in nanoseconds.
    #[must_use]
    pub fn children_times(&self) -> (u64, u64) {
        let times = &self.times;
        (times.children_user.load(Ordering::Relaxed), times.children_system.load(Ordering::Relaxed))
    }
}
