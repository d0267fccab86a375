//! A thread as the scheduler sees it.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use heddle_kernel_core::fairness::Account;

use crate::arch::time::now_ns;
use crate::process::executor::{self, ExecutorSlot};
use crate::process::{RunState, Thread};
use crate::sched::{Parameters, Policy, Priority, SchedEntity, TaskRef};
use crate::signal::PendingWork;
use crate::sync::SpinLock;
use crate::wait::node::WaitNode;

/// The most urgent realtime priority.
const REALTIME_MAX: u8 = 99;

/// The rank of a realtime priority, or of 0 for an ordinary thread.
const fn rank_of(realtime: u8) -> u8 {
    if realtime == 0 { Thread::RANK_ORDINARY } else { REALTIME_MAX - realtime }
}

/// Where a thread that is not urgent stands among those who wait for the same ([`WaitNode::set_place`]).
const fn shared_place(parameters: Parameters) -> u8 {
    match parameters.policy {
        Policy::Idle => WaitNode::PLACE_ORDINARY + 19,
        _ => WaitNode::PLACE_ORDINARY.saturating_add_signed(parameters.nice),
    }
}

/// Beside a level: the thread is an executor, so that a look at the level of one that is none needs no other.
const EXECUTOR: u32 = 1 << 16;

pub(super) struct Scheduling {
    task: spin::Once<TaskRef>,
    /// The thread's part in its program's scheduler.
    executor: ExecutorSlot,
    entity: SpinLock<SchedEntity>,
    /// The level, with [`EXECUTOR`], and the end of the time slice from `entity`, for a look without the lock.
    priority: AtomicU32,
    until_ns: AtomicU64,
    /// See [`Thread::rank`].
    rank: AtomicU8,
    /// See [`Thread::rank_by_locks`].
    rank_by_locks: AtomicU8,
    /// ioprio_set(2).
    io_priority: AtomicU32,
    /// `PR_SET_TIMERSLACK`: what is set, and what 0 resets it to.
    timer_slack_ns: AtomicU64,
    usual_timer_slack_ns: AtomicU64,
}

impl Scheduling {
    pub(super) fn new(parameters: Parameters, account: Account) -> Self {
        Self {
            task: spin::Once::new(),
            executor: ExecutorSlot::new(),
            priority: AtomicU32::new(parameters.priority(account.is_exhausted()).to_bits().into()),
            until_ns: AtomicU64::new(0),
            rank: AtomicU8::new(rank_of(parameters.realtime)),
            rank_by_locks: AtomicU8::new(u8::MAX),
            entity: SpinLock::new(SchedEntity::new(parameters, account)),
            io_priority: AtomicU32::new(0),
            timer_slack_ns: AtomicU64::new(Thread::TIMER_SLACK_NS),
            usual_timer_slack_ns: AtomicU64::new(Thread::TIMER_SLACK_NS),
        }
    }
}

impl Thread {
    /// See [`Thread::rank`].
    pub const RANK_ORDINARY: u8 = 120;
    /// The timer slack of the first program: Linux's.
    const TIMER_SLACK_NS: u64 = 50_000;

    /// The thread has got its coroutine.
    pub fn set_task(&self, task: TaskRef) {
        self.scheduling.task.call_once(|| task);
    }

    /// The thread's coroutine.
    #[must_use]
    pub fn task(&self) -> Option<&TaskRef> {
        self.scheduling.task.get()
    }

    /// The thread's part in its program's scheduler.
    #[must_use]
    pub const fn executor(&self) -> &ExecutorSlot {
        &self.scheduling.executor
    }

    /// How the thread is scheduled.
    #[must_use]
    pub fn scheduling(&self) -> Parameters {
        self.scheduling.entity.lock().parameters()
    }

    /// The level of the thread's coroutine.
    #[must_use]
    pub fn priority(&self) -> Priority {
        Priority::from_bits(self.scheduling.priority.load(Ordering::Relaxed) as u16)
    }

    /// The same, unless the thread is an executor.
    #[must_use]
    #[inline(always)]
    pub fn priority_of_no_executor(&self) -> Option<Priority> {
        let word = self.scheduling.priority.load(Ordering::Relaxed);
        if word & EXECUTOR == 0 { Some(Priority::from_bits(word as u16)) } else { None }
    }

    /// The level that the thread has by nice value and budget, whatever its coroutines' are.
    #[must_use]
    pub fn standing_priority(&self) -> Priority {
        self.scheduling.entity.lock().standing_priority()
    }

    /// Looks at the entity, or changes what nothing else follows from.
    pub fn look_at_entity<R>(&self, look: impl FnOnce(&mut SchedEntity) -> R) -> R {
        look(&mut self.scheduling.entity.lock())
    }

    /// Half of the thread's budget, for a child.
    #[must_use]
    pub fn split_account(&self) -> Account {
        self.scheduling.entity.lock().split()
    }

    /// Changes the entity, and what follows from it: the end of the time slice and the coroutine's level.
    pub fn with_entity(&self, change: impl FnOnce(&mut SchedEntity)) {
        let own = &self.scheduling;
        let mut entity = own.entity.lock();
        change(&mut entity);
        own.until_ns.store(entity.until_ns, Ordering::Relaxed);
        let (mut priority, mut executor) = (entity.priority, 0);
        if own.executor.is_executor() {
            priority = executor::level(self, entity.is_ordinary()).unwrap_or(priority);
            executor = EXECUTOR;
        }
        let before = own.priority.load(Ordering::Relaxed);
        if before & EXECUTOR != executor {
            own.priority.store(before ^ EXECUTOR, Ordering::Relaxed);
        }
        if before as u16 != priority.to_bits() {
            self.set_priority(priority, executor);
        }
    }

    /// [`Thread::with_entity`] of the calling thread, which is no executor: at the start and the end of each turn.
    #[inline(always)]
    fn with_own_entity<R>(&self, change: impl FnOnce(&mut SchedEntity) -> R) -> R {
        let own = &self.scheduling;
        let mut entity = own.entity.lock();
        let result = change(&mut entity);
        own.until_ns.store(entity.until_ns, Ordering::Relaxed);
        let priority = entity.priority;
        if own.priority.load(Ordering::Relaxed) != priority.to_bits().into() {
            self.set_priority(priority, 0);
        }
        result
    }

    /// Gives the thread's coroutine another level. The entity's lock is held.
    #[inline(never)]
    fn set_priority(&self, priority: Priority, executor: u32) {
        let before = self.priority().to_bits();
        self.scheduling.priority.store(u32::from(priority.to_bits()) | executor, Ordering::Relaxed);
        let Some(task) = self.task() else { return };
        // As in Linux: a task whose priority falls is the first of its new equals, one whose priority rises the last.
        let front = before < priority.to_bits();
        if priority == Priority::ARRIVAL {
            task.set_priority_at_rest(priority, front);
        } else {
            task.set_priority(priority, front);
        }
    }

    /// The thread, which is queued, is given the turn of its user's executors.
    pub(in crate::process) fn call_to_turn(&self) {
        self.scheduling.executor.is_called();
        self.with_entity(|_| {});
    }

    /// A turn starts. `false`: it has no time, and ends at once.
    #[inline(always)]
    pub fn start_turn(&self, now_ns: u64) -> bool {
        self.use_call_places();
        if self.scheduling.executor.is_executor() {
            return executor::turn_starts(self, now_ns);
        }
        self.with_own_entity(|entity| entity.start(now_ns));
        true
    }

    /// A turn ends; whether it ends because the thread waits.
    #[inline(always)]
    pub fn end_turn(&self, now_ns: u64) -> bool {
        if self.scheduling.executor.is_executor() {
            return executor::charge(self, now_ns);
        }
        self.with_own_entity(|entity| {
            entity.end(now_ns);
            entity.is_waiting()
        })
    }

    /// A call of the thread that goes on by itself has used so much time: the thread, or the group that pays for its
    /// turns, has so much less.
    pub fn pays_for_call(&self, ran_ns: u64) {
        self.count_call_ns(ran_ns);
        if !(self.scheduling.executor.is_executor() && executor::group_pays_for_call(self, ran_ns)) {
            self.look_at_entity(|entity| entity.charge_aside(ran_ns));
        }
    }

    /// When the time slice ends, or the thread has to look at its processor time.
    pub fn until_ns(&self) -> u64 {
        self.scheduling.until_ns.load(Ordering::Relaxed)
    }

    /// Makes the thread look at its processor time at `at_ns` if its time slice is not over before.
    pub(in crate::process) fn look_until(&self, at_ns: u64) {
        self.scheduling.until_ns.store(at_ns, Ordering::Relaxed);
    }

    /// The thread has a time slice that it was to leave out; returns when it ends.
    pub fn remaining_slice(&self) -> u64 {
        self.with_entity(|entity| entity.continue_slice(now_ns()));
        self.until_ns()
    }

    /// Changes how the thread is scheduled.
    pub fn set_scheduling(&self, parameters: Parameters) {
        let has_moved = self.scheduling().affinity != parameters.affinity;
        if has_moved {
            self.add_work(PendingWork::AFFINITY);
        }
        // An ordinary thread that becomes a realtime one, or the other way round, must not wait for its next slice.
        let is_running = self.cpu().is_some();
        self.with_entity(|entity| {
            entity.set_parameters(parameters, now_ns(), is_running);
            self.set_rank(rank_of(entity.realtime()), parameters);
        });
        if has_moved {
            executor::affinity_changes(self, parameters.affinity);
        }
        self.kick();
    }

    /// How urgent the thread is, as Linux counts: 0 for realtime priority 99, 98 for 1, 120 for every ordinary
    /// thread.
    #[must_use]
    #[inline]
    pub fn rank(&self) -> u8 {
        self.scheduling.rank.load(Ordering::Relaxed)
    }

    /// The same without what others have lent it.
    #[must_use]
    pub fn own_rank(&self) -> u8 {
        rank_of(self.scheduling().realtime)
    }

    /// The rank of the most urgent thread that waits for a lock of this thread's; `u8::MAX` for none.
    #[must_use]
    pub fn rank_by_locks(&self) -> u8 {
        self.scheduling.rank_by_locks.load(Ordering::Relaxed)
    }

    /// Says who waits for its locks. The lock of all those is held.
    pub fn set_rank_by_locks(&self, rank: Option<u8>) {
        self.scheduling.rank_by_locks.store(rank.unwrap_or(u8::MAX), Ordering::Relaxed);
    }

    fn set_rank(&self, rank: u8, parameters: Parameters) {
        self.scheduling.rank.store(rank, Ordering::Relaxed);
        self.node().set_urgent(rank < Self::RANK_ORDINARY);
        self.node().set_place(if rank < Self::RANK_ORDINARY { rank } else { shared_place(parameters) });
    }

    /// The thread has just been made: its waits are as urgent as it is.
    pub(super) fn announce_rank(&self) {
        self.set_rank(self.rank(), self.scheduling());
    }

    /// Lends the thread the level of those who wait for it, the most urgent of which has this rank. Returns whether
    /// the thread's own rank has changed.
    #[must_use]
    pub fn lend(&self, rank: Option<u8>) -> bool {
        let before = self.rank();
        let realtime = rank.map_or(0, |rank| REALTIME_MAX.saturating_sub(rank));
        let is_running = self.cpu().is_some();
        self.with_entity(|entity| {
            entity.lend(realtime, now_ns(), is_running);
            self.set_rank(rank_of(entity.realtime()), entity.parameters());
        });
        let has_changed = self.rank() != before;
        if has_changed {
            self.kick();
        }
        has_changed
    }

    /// When its time slice began, or the last one ended.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.scheduling.entity.lock().since_ns()
    }

    /// The word of ioprio_set(2).
    #[must_use]
    pub fn io_priority(&self) -> u32 {
        self.scheduling.io_priority.load(Ordering::Relaxed)
    }

    /// How late timers of the thread may be, `PR_GET_TIMERSLACK`. They are as punctual as they can be anyway.
    #[must_use]
    pub fn timer_slack_ns(&self) -> u64 {
        self.scheduling.timer_slack_ns.load(Ordering::Relaxed)
    }

    /// `PR_SET_TIMERSLACK`; 0 stands for what the thread started with.
    pub fn set_timer_slack_ns(&self, slack_ns: u64) {
        let usual_ns = self.scheduling.usual_timer_slack_ns.load(Ordering::Relaxed);
        let slack_ns = if slack_ns == 0 { usual_ns } else { slack_ns };
        self.scheduling.timer_slack_ns.store(slack_ns, Ordering::Relaxed);
    }

    /// A new thread starts with what its creator has.
    pub fn inherit_timer_slack(&self, creator: &Self) {
        let slack_ns = creator.timer_slack_ns();
        self.scheduling.usual_timer_slack_ns.store(slack_ns, Ordering::Relaxed);
        self.scheduling.timer_slack_ns.store(slack_ns, Ordering::Relaxed);
    }

    /// ioprio_set(2).
    pub fn set_io_priority(&self, word: u32) {
        self.scheduling.io_priority.store(word, Ordering::Relaxed);
    }

    /// Whether the thread is ready, but does not run.
    fn is_queued(&self) -> bool {
        // Without a coroutine it has just been made, and gets one before its first run.
        self.scheduling.task.get().is_none_or(TaskRef::runs_or_is_ready)
    }

    /// The thread's state: running, waiting, stopped, …
    #[must_use]
    pub fn run_state(&self) -> RunState {
        let work = self.work();
        if work.contains(PendingWork::TRACE_STOPPED) {
            RunState::Traced
        } else if work.contains(PendingWork::STOPPED) {
            RunState::Stopped
        } else if self.is_in_detour() {
            RunState::Uninterruptible
        } else if self.cpu().is_some() || self.is_queued() {
            RunState::Running
        } else if self.waits_killably() {
            RunState::Uninterruptible
        } else {
            RunState::Sleeping
        }
    }
}
