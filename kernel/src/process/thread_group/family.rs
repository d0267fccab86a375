//! Relations of a process: parent, children, group, session.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use heddle_kernel_core::signal::Signal;

use crate::error::Errno;
use crate::process::user_task::UserTask;
use crate::process::{ExitStatus, Group, Process, Session, Thread};
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::queue::{Events, WaitQueue, Watch};

pub(super) struct Family {
    parent: SpinLock<Weak<Process>>,
    /// The parent's number, so that asking for it takes no lock.
    parent_pid: AtomicI32,
    children: SpinLock<Vec<Arc<Process>>>,
    /// Notified when a child ends, stops or goes on: `wait4`.
    child_events: WaitQueue,
    /// The threads that threads of this process trace: see `process::trace`.
    tracees: SpinLock<Vec<Arc<Thread>>>,
    /// The process of the thread that traces the first thread of this one.
    main_tracer: SpinLock<Option<Weak<Process>>>,
    group: SpinLock<Arc<Group>>,
    /// Where the process is in the group's list. Guarded by the lock of that.
    place_in_group: AtomicUsize,
    /// Notified when this process has ended.
    ended: WaitQueue,
    /// The parent, or the tracer in its place, has been told of the end, so that its waits may find it.
    end_is_told: AtomicBool,
    /// The signal the parent gets at the end; 0 for none.
    exit_signal: AtomicI32,
    /// The user id at the start and after each change, which `SIGCHLD` tells when no thread is left.
    uid: AtomicU32,
    /// The process as it counts for its user, when its last thread has ended.
    task: SpinLock<Option<UserTask>>,
    /// Whether it has run `execve` since its fork: the parent can't change its group any more.
    has_executed: AtomicBool,
    /// The signal that `PR_SET_PDEATHSIG` asks for when the parent ends; 0 for none.
    parent_death_signal: AtomicI32,
    /// The thread that made it, which counts as its parent for that signal.
    creator: AtomicI32,
    /// Orphans among the descendants become children of this process.
    is_subreaper: AtomicBool,
    /// One of its ancestors is such a process. Never taken back: it only saves the search.
    has_subreaper: AtomicBool,
}

impl Family {
    pub(super) fn new(
        parent: &Weak<Process>,
        group: Arc<Group>,
        exit_signal: i32,
        uid: u32,
        creator: i32,
    ) -> Self {
        let is_below_subreaper = |parent: Arc<Process>| parent.is_subreaper() || parent.has_subreaper();
        Self {
            parent_pid: AtomicI32::new(parent.upgrade().map_or(0, |parent| parent.pid)),
            has_subreaper: AtomicBool::new(parent.upgrade().is_some_and(is_below_subreaper)),
            parent: SpinLock::new(parent.clone()),
            children: SpinLock::new(Vec::new()),
            child_events: WaitQueue::new(),
            tracees: SpinLock::new(Vec::new()),
            main_tracer: SpinLock::new(None),
            group: SpinLock::new(group),
            place_in_group: AtomicUsize::new(0),
            ended: WaitQueue::new(),
            exit_signal: AtomicI32::new(exit_signal),
            uid: AtomicU32::new(uid),
            task: SpinLock::new(None),
            has_executed: AtomicBool::new(false),
            parent_death_signal: AtomicI32::new(0),
            creator: AtomicI32::new(creator),
            is_subreaper: AtomicBool::new(false),
            end_is_told: AtomicBool::new(false),
        }
    }
}

impl Process {
    /// The parent; `None` for the first process of the kernel.
    #[must_use]
    pub fn parent(&self) -> Option<Arc<Process>> {
        self.family.parent.lock().upgrade()
    }

    /// Gives the process another parent, with the table locked.
    pub(in crate::process) fn set_parent(&self, parent: &Arc<Process>) {
        *self.family.parent.lock() = Arc::downgrade(parent);
        self.family.parent_pid.store(parent.pid, Ordering::Relaxed);
    }

    /// The parent's number, 0 if there is none.
    #[must_use]
    pub fn parent_pid(&self) -> i32 {
        self.family.parent_pid.load(Ordering::Relaxed)
    }

    /// The children. The lock of the table comes before, the signal state of a child after.
    pub fn children(&self) -> SpinGuard<'_, Vec<Arc<Process>>> {
        self.family.children.lock()
    }

    /// The threads that threads of this process trace. The lock of the table comes before, the signal state of a thread
    /// after.
    pub fn tracees(&self) -> SpinGuard<'_, Vec<Arc<Thread>>> {
        self.family.tracees.lock()
    }

    /// The process of the thread that traces the first thread of this one.
    #[must_use]
    pub fn main_tracer(&self) -> Option<Arc<Process>> {
        self.family.main_tracer.lock().as_ref()?.upgrade()
    }

    /// The first thread is traced by a thread of `tracer`. The table is locked.
    pub(in crate::process) fn set_main_tracer(&self, tracer: Option<&Arc<Process>>) {
        *self.family.main_tracer.lock() = tracer.map(Arc::downgrade);
    }

    /// Has a watch told when a child ends, stops or goes on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch_children(&self, watch: &Watch) -> Result<(), Errno> {
        self.family.child_events.watch(watch, Events::all())
    }

    /// A child has ended, stopped or gone on.
    pub fn wake_parent(&self, events: Events) {
        self.family.child_events.wake(events);
    }

    /// Nobody waits any more.
    pub(in crate::process) fn forget_watches(&self) {
        self.family.child_events.clear();
        self.clear_signal_watches();
    }

    /// The process group.
    #[must_use]
    pub fn group(&self) -> Arc<Group> {
        self.family.group.lock().clone()
    }

    /// The number of the process group.
    #[must_use]
    pub fn group_id(&self) -> i32 {
        self.family.group.lock().id
    }

    /// Changes the group, with the table locked; returns the one before.
    #[must_use]
    pub(in crate::process) fn set_group(&self, group: Arc<Group>) -> Arc<Group> {
        core::mem::replace(&mut *self.family.group.lock(), group)
    }

    pub(in crate::process) fn place_in_group(&self) -> usize {
        self.family.place_in_group.load(Ordering::Relaxed)
    }

    pub(in crate::process) fn set_place_in_group(&self, place: usize) {
        self.family.place_in_group.store(place, Ordering::Relaxed);
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> Arc<Session> {
        self.family.group.lock().session.clone()
    }

    /// Whether the process is its session's leader.
    #[must_use]
    pub fn is_session_leader(&self) -> bool {
        self.session().id == self.pid
    }

    /// Has a watch told of the end of the process.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch_end(&self, watch: &Watch, events: Events) -> Result<(), Errno> {
        self.family.ended.watch(watch, events)
    }

    /// The process has ended.
    pub(in crate::process) fn wake_end(&self) {
        self.family.ended.wake(Events::all());
    }

    /// Completes when the process has ended, and says how. For coroutines of the kernel.
    pub async fn wait_for_end(self: &Arc<Self>) -> ExitStatus {
        loop {
            if let Some(status) = self.exit_status() {
                return status;
            }
            // Without memory for a watch, look again when everyone else has had a turn.
            if crate::wait::engine::kernel_until(&self.family.ended, || self.exit_status().is_some())
                .await
                .is_err()
            {
                crate::sched::yield_now().await;
            }
        }
    }

    /// Whether waits may find that the process has ended: the signal about it has been sent before, and one that nobody
    /// wants is gone by then.
    #[must_use]
    pub fn is_end_told(&self) -> bool {
        self.family.end_is_told.load(Ordering::Acquire)
    }

    /// The end was told, or is to be told anew, to another parent.
    pub(in crate::process) fn set_end_told(&self, is_told: bool) {
        self.family.end_is_told.store(is_told, Ordering::Release);
    }

    /// The signal the parent gets at the end.
    #[must_use]
    pub fn exit_signal(&self) -> Option<Signal> {
        Signal::new(self.family.exit_signal.load(Ordering::Relaxed))
    }

    /// The parent is to get `SIGCHLD` at the end, whatever was asked for.
    pub(in crate::process) fn reset_exit_signal(&self) {
        self.family.exit_signal.store(Signal::CHLD.number(), Ordering::Relaxed);
    }

    /// The user id, as `SIGCHLD` tells it when no thread is left.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.family.uid.load(Ordering::Relaxed)
    }

    /// Says how the process counts for its user without a thread; returns how it did.
    pub(in crate::process) fn set_user_task(&self, task: Option<UserTask>) -> Option<UserTask> {
        core::mem::replace(&mut *self.family.task.lock(), task)
    }

    /// A thread of the process acts as this user now.
    pub(in crate::process) fn set_uid(&self, uid: u32) {
        self.family.uid.store(uid, Ordering::Relaxed);
    }

    /// Whether it has run `execve` since its fork.
    #[must_use]
    pub fn has_executed(&self) -> bool {
        self.family.has_executed.load(Ordering::Relaxed)
    }

    /// The process runs a program of its own from now on.
    pub(in crate::process) fn set_executed(&self) {
        self.family.has_executed.store(true, Ordering::Relaxed);
        self.reset_exit_signal();
    }

    /// The signal that `PR_SET_PDEATHSIG` asked for.
    #[must_use]
    pub fn parent_death_signal(&self) -> Option<Signal> {
        Signal::new(self.family.parent_death_signal.load(Ordering::Relaxed))
    }

    /// `PR_SET_PDEATHSIG`.
    pub fn set_parent_death_signal(&self, signal: Option<Signal>) {
        self.family.parent_death_signal.store(signal.map_or(0, Signal::number), Ordering::Relaxed);
    }

    /// The number of the thread that made the process.
    #[must_use]
    pub fn creator(&self) -> i32 {
        self.family.creator.load(Ordering::Relaxed)
    }

    /// Whether orphans among the descendants become children of this process.
    #[must_use]
    pub fn is_subreaper(&self) -> bool {
        self.family.is_subreaper.load(Ordering::Relaxed)
    }

    /// Whether an ancestor may be a subreaper.
    #[must_use]
    pub(in crate::process) fn has_subreaper(&self) -> bool {
        self.family.has_subreaper.load(Ordering::Relaxed)
    }

    /// An ancestor is a subreaper now. Returns whether that is news.
    #[must_use]
    pub(in crate::process) fn set_has_subreaper(&self) -> bool {
        !self.family.has_subreaper.swap(true, Ordering::Relaxed)
    }

    /// `PR_SET_CHILD_SUBREAPER`. The table is locked when it is set, so that descendants are told.
    pub(in crate::process) fn store_subreaper(&self, is_subreaper: bool) {
        self.family.is_subreaper.store(is_subreaper, Ordering::Relaxed);
    }
}
