//! How long a thread runs, and at which level.

use core::sync::atomic::{AtomicU64, Ordering};

use heddle_kernel_core::fairness::{Account, Weight};

use crate::arch;
use crate::arch::MAX_CPUS;
use crate::sched::{Parameters, Policy, Priority};

/// The time slice of an ordinary thread at nice 0.
pub const SLICE_NS: u64 = heddle_kernel_core::fairness::SLICE_NS;

/// The time slice of `SCHED_RR`: Linux's, which programs see.
pub const ROUND_ROBIN_NS: u64 = 100_000_000;

/// Realtime threads get so much of each window at their levels; what they want beyond that comes behind the ordinary
/// threads, so that a loop at a realtime priority does not take the machine away.
const REALTIME_WINDOW_NS: u64 = 1_000_000_000;
/// That much: `kernel.sched_rt_runtime_us`, in nanoseconds.
static REALTIME_SHARE_NS: AtomicU64 = AtomicU64::new(950_000_000);

/// Time that realtime threads get of each window, of which the second is the length.
#[must_use]
pub fn realtime_share_ns() -> (u64, u64) {
    (REALTIME_SHARE_NS.load(Ordering::Relaxed), REALTIME_WINDOW_NS)
}

/// Changes that; a whole window and more stand for no limit.
pub fn set_realtime_share_ns(share_ns: u64) {
    REALTIME_SHARE_NS.store(share_ns, Ordering::Relaxed);
}

/// Time that the realtime threads of a CPU have used in the current window.
struct RealtimeWindow {
    start_ns: AtomicU64,
    used_ns: AtomicU64,
}

static WINDOWS: [RealtimeWindow; MAX_CPUS] =
    [const { RealtimeWindow { start_ns: AtomicU64::new(0), used_ns: AtomicU64::new(0) } }; MAX_CPUS];

/// Time that realtime threads may still use on a CPU. Only the CPU itself begins a new window: a charge of its own
/// would be lost in between otherwise.
fn realtime_left_ns(cpu: usize, now_ns: u64) -> u64 {
    let window = &WINDOWS[cpu];
    let share_ns = REALTIME_SHARE_NS.load(Ordering::Relaxed);
    if share_ns >= REALTIME_WINDOW_NS {
        return u64::MAX;
    }
    if now_ns.saturating_sub(window.start_ns.load(Ordering::Relaxed)) >= REALTIME_WINDOW_NS {
        if cpu == arch::cpu::id() {
            window.start_ns.store(now_ns, Ordering::Relaxed);
            window.used_ns.store(0, Ordering::Relaxed);
        }
        return share_ns;
    }
    share_ns.saturating_sub(window.used_ns.load(Ordering::Relaxed))
}

/// Whether what has a realtime level has had its share of the window of the CPU that runs it, or else of this one.
pub fn is_realtime_throttled(cpu: Option<usize>) -> bool {
    realtime_left_ns(cpu.unwrap_or_else(arch::cpu::id), crate::arch::time::now_ns()) == 0
}

/// Counts time that was spent at a realtime level by what is no realtime thread: a coroutine of a program.
pub fn charge_realtime(ran_ns: u64) {
    WINDOWS[arch::cpu::id()].used_ns.fetch_add(ran_ns, Ordering::Relaxed);
}

/// A thread that computes, and whose turns have ended at once for so long, has one that those which mostly sleep do not
/// interrupt. They are fresh whenever they wake, however many they are together.
const STARVED_NS: u64 = 50_000_000;
/// How long that turn is, and how long a turn is that has not ended at once.
const STARVED_TURN_NS: u64 = 1_000_000;
const TURN_MIN_NS: u64 = 50_000;

/// The end of a turn that a thread leaves out.
pub const THROTTLED: u64 = 0;

/// Why a thread's last turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceEnd {
    /// It waits.
    Blocked,
    /// It gave way and is ready.
    Yielded,
    /// Something else goes before it, and it keeps its place among its equals.
    Preempted,
}

/// Whose time a turn uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payer {
    /// The thread's own.
    Own,
    /// The thread's own, behind all ordinary threads: it is an executor that runs what is background.
    OwnBehind,
    /// That of the user's group of executors.
    Group,
}

/// A thread's entity with the scheduler, from turn to turn.
#[derive(Debug)]
pub struct SchedEntity {
    /// How the thread is scheduled.
    parameters: Parameters,
    /// A realtime priority that waiters lend the thread; 0 for none.
    lent: u8,
    account: Account,
    /// In turns that a group pays for: a copy of its account.
    shared: Account,
    /// The part of the parameters, or of the thread's group.
    weight: Weight,
    group_weight: Option<Weight>,
    /// The thread's time when its group was last looked at, in nanoseconds.
    pub looked_ns: u64,
    /// The rest of the time slice of `SCHED_RR`. A thread that is preempted or waits goes on with it.
    round_ns: u64,
    /// Its priority was raised during the turn: it has become the last of its equals, and does not go back before them.
    is_last: bool,
    ended_as: SliceEnd,
    /// Whose time the turn uses, or the last one did.
    payer: Payer,
    /// In such a turn: the time until which what ran at a realtime priority was counted.
    counted_ns: u64,
    started_ns: u64,
    ended_ns: u64,
    /// When the thread was held back before it had done anything in its turn: first of the turns in a row in which it
    /// was, and last; 0 for never.
    held_back_since_ns: u64,
    held_back_ns: u64,
    /// When `until_ns` and `priority` were worked out.
    planned_ns: u64,
    /// When the turn is over; `u64::MAX` for never.
    pub until_ns: u64,
    /// The level that the thread has now.
    pub priority: Priority,
}

impl SchedEntity {
    /// The entity of a new thread.
    #[must_use]
    pub const fn new(parameters: Parameters, account: Account) -> Self {
        Self {
            parameters,
            lent: 0,
            account,
            shared: account,
            weight: parameters.weight(),
            group_weight: None,
            looked_ns: 0,
            round_ns: ROUND_ROBIN_NS,
            is_last: false,
            ended_as: SliceEnd::Yielded,
            payer: Payer::Own,
            counted_ns: 0,
            started_ns: 0,
            ended_ns: 0,
            held_back_since_ns: 0,
            held_back_ns: 0,
            planned_ns: 0,
            until_ns: account.budget_ns(),
            priority: parameters.priority(account.is_exhausted()),
        }
    }

    /// The account of a child: half of the parent's budget.
    #[must_use]
    pub const fn split(&mut self) -> Account {
        self.account.split()
    }

    /// How the thread is scheduled.
    #[must_use]
    pub const fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// The part of the thread in the processors, by its group, from the next turn on; none to have that of its nice
    /// value.
    pub fn set_group_weight(&mut self, weight: Option<Weight>) {
        self.group_weight = weight;
        self.weight = weight.unwrap_or(self.parameters.weight());
    }

    /// Whether it has a part by its group.
    #[must_use]
    pub const fn has_group_weight(&self) -> bool {
        self.group_weight.is_some()
    }

    /// Changes how the thread is scheduled; `is_running`: in the midst of a turn.
    pub fn set_parameters(&mut self, parameters: Parameters, now_ns: u64, is_running: bool) {
        if is_running {
            self.settle(now_ns);
        }
        let before = self.parameters;
        self.parameters = parameters;
        self.weight = self.group_weight.unwrap_or(parameters.weight());
        // Whoever is queued finds its place by the change of its priority.
        let is_other = before.policy != parameters.policy || before.realtime != parameters.realtime;
        self.is_last = is_running && is_other && parameters.realtime >= before.realtime;
        self.plan_seldom(now_ns);
    }

    /// The realtime priority that the thread runs with, its own or lent; 0 for an ordinary thread.
    #[must_use]
    pub const fn realtime(&self) -> u8 {
        if self.lent > self.parameters.realtime { self.lent } else { self.parameters.realtime }
    }

    /// The thread is preempted: whether it goes behind its equals and not, as usual, before them.
    pub const fn preempted(&mut self) -> bool {
        self.ended_as = SliceEnd::Preempted;
        core::mem::replace(&mut self.is_last, false)
    }

    /// In the midst of a turn, before its priority changes: counts the time until now. A group pays for the whole turn
    /// when it ends.
    fn settle(&mut self, now_ns: u64) {
        if self.payer == Payer::Group { self.count_realtime(now_ns) } else { self.end_seldom(now_ns) }
    }

    /// The thread joins a group in the midst of its turn. Returns its part of what it has, for a group that has nothing
    /// yet.
    pub fn join(&mut self, now_ns: u64) -> Account {
        self.settle(now_ns);
        self.account.split()
    }

    /// In a turn that a group pays for: time at a realtime priority, a lent one too, counts for the window as well.
    fn count_realtime(&mut self, now_ns: u64) {
        if self.realtime() != 0 {
            charge_realtime(now_ns.saturating_sub(self.counted_ns));
        }
        self.counted_ns = now_ns;
    }

    /// Lends the thread a realtime priority, 0 for none; `is_running`: in the midst of a turn.
    pub fn lend(&mut self, realtime: u8, now_ns: u64, is_running: bool) {
        if is_running {
            self.settle(now_ns);
        }
        self.lent = realtime;
        self.plan_seldom(now_ns);
    }

    /// A turn starts.
    #[inline(always)]
    pub fn start(&mut self, now_ns: u64) {
        self.started_ns = now_ns;
        self.payer = Payer::Own;
        if self.ended_as != SliceEnd::Blocked && self.realtime() == 0 {
            // Nothing has changed but the time.
            self.until_ns = self.until_ns.saturating_add(now_ns.saturating_sub(self.planned_ns));
            self.planned_ns = now_ns;
        } else {
            if self.ended_as == SliceEnd::Blocked {
                self.account.slept(now_ns.saturating_sub(self.ended_ns), self.weight);
            }
            self.plan(now_ns);
        }
        self.ended_as = SliceEnd::Blocked;
        // A realtime thread owes nothing that counts now.
        if self.account.skips_turn() && self.realtime() == 0 {
            self.until_ns = THROTTLED;
        }
    }

    /// Something more urgent goes before the thread. Whether it has been held back for so long that it has a turn all
    /// the same, at the level of threads that have just woken.
    pub fn is_starved(&mut self, now_ns: u64) -> bool {
        let had_turn = self.ended_ns.saturating_sub(self.held_back_ns) >= TURN_MIN_NS
            || now_ns.saturating_sub(self.started_ns) >= TURN_MIN_NS;
        if had_turn || self.held_back_ns == 0 {
            self.held_back_since_ns = now_ns;
        }
        self.held_back_ns = now_ns;
        let is_late = now_ns.saturating_sub(self.held_back_since_ns) > STARVED_NS;
        let computes = self.priority == Priority::SPENT && self.realtime() == 0;
        let is_starved = is_late && computes && self.parameters.policy != Policy::Idle;
        if is_starved {
            self.held_back_since_ns = now_ns;
            self.priority = Priority::NORMAL;
            self.until_ns = self.until_ns.min(now_ns + STARVED_TURN_NS);
        }
        is_starved
    }

    /// Whether the thread may use the time of a group: it is an ordinary one. The members of a group are equals but for
    /// its order, so one with a nice value is none.
    #[must_use]
    pub fn is_ordinary(&self) -> bool {
        self.parameters.policy == Policy::Other && self.parameters.nice == 0 && self.realtime() == 0
    }

    /// Whether a group pays for the turn that goes on, or paid for the last one.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.payer == Payer::Group
    }

    /// A turn starts that uses the time of the user's group, whose account is this.
    pub fn start_shared(&mut self, now_ns: u64, account: Account) {
        self.ended_as = SliceEnd::Blocked;
        self.go_on_shared(now_ns, account);
    }

    /// The turn, or the rest of it, uses the time of the user's group, whose account is this.
    pub fn go_on_shared(&mut self, now_ns: u64, account: Account) {
        (self.started_ns, self.counted_ns) = (now_ns, now_ns);
        (self.payer, self.shared) = (Payer::Group, account);
        self.plan_seldom(now_ns);
    }

    /// The turn that starts, or the rest of it, uses the thread's own time for what is background.
    pub fn go_on_behind(&mut self, now_ns: u64) {
        (self.payer, self.started_ns) = (Payer::OwnBehind, now_ns);
        let is_left_out = self.until_ns == THROTTLED;
        self.plan_seldom(now_ns);
        if is_left_out {
            self.until_ns = THROTTLED;
        }
    }

    /// The turn ends, or another pays from here on; `charge` has the group pay for it, if it is the group's, and
    /// returns its account.
    pub fn end_shared(&mut self, now_ns: u64, charge: impl FnOnce(u64) -> Account) {
        if self.payer != Payer::Group {
            return self.end_seldom(now_ns);
        }
        self.count_realtime(now_ns);
        self.shared = charge(now_ns.saturating_sub(self.started_ns));
        (self.started_ns, self.ended_ns) = (now_ns, now_ns);
        self.plan_seldom(now_ns);
    }

    /// The thread leaves its group in the midst of a turn: `leave` has the group pay for it so far, and returns the
    /// thread's part of what is left.
    pub fn leave_shared(&mut self, now_ns: u64, leave: impl FnOnce(u64) -> Account) {
        if self.payer == Payer::Group {
            self.count_realtime(now_ns);
            self.account = leave(now_ns.saturating_sub(self.started_ns));
            (self.payer, self.started_ns) = (Payer::Own, now_ns);
            self.plan_seldom(now_ns);
        }
    }

    /// The level of what is done for the thread beside its turns. A group's account says nothing about one of its
    /// members: its calls would wait for the end of another's slice, and the order with them.
    #[must_use]
    pub fn standing_priority(&self) -> Priority {
        if self.payer == Payer::Group && self.realtime() == 0 {
            return self.parameters.priority(self.account.is_exhausted());
        }
        self.priority
    }

    /// How the turn ends.
    #[must_use]
    pub const fn ending(&self) -> SliceEnd {
        self.ended_as
    }

    /// The thread was to stand back, but nobody else wants the processor: it has its turn.
    pub fn continue_slice(&mut self, now_ns: u64) {
        self.account.is_alone();
        self.plan_seldom(now_ns);
    }

    /// The turn ends.
    #[inline(always)]
    pub fn end(&mut self, now_ns: u64) {
        let ran_ns = now_ns.saturating_sub(self.started_ns);
        if self.realtime() != 0 {
            WINDOWS[arch::cpu::id()].used_ns.fetch_add(ran_ns, Ordering::Relaxed);
            let left_ns = self.round_ns.saturating_sub(ran_ns);
            self.round_ns = if left_ns == 0 { ROUND_ROBIN_NS } else { left_ns };
        } else {
            self.account.ran(ran_ns, self.weight);
        }
        (self.started_ns, self.ended_ns) = (now_ns, now_ns);
        self.plan(now_ns);
    }

    /// Time was used for the thread beside its turns. It counts from the next plan on.
    pub fn charge_aside(&mut self, ran_ns: u64) {
        if self.realtime() != 0 {
            charge_realtime(ran_ns);
        } else {
            self.account.ran(ran_ns, self.weight);
        }
    }

    /// [`SchedEntity::start`] out of the ordinary path, which has its copy in line.
    #[inline(never)]
    pub fn start_seldom(&mut self, now_ns: u64) {
        self.start(now_ns);
    }

    /// [`SchedEntity::end`], likewise.
    #[inline(never)]
    pub fn end_seldom(&mut self, now_ns: u64) {
        self.end(now_ns);
    }

    /// Likewise.
    #[inline(never)]
    fn plan_seldom(&mut self, now_ns: u64) {
        self.plan(now_ns);
    }

    /// Whether the turn that is going on, or was the last, ends because the thread waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.ended_as == SliceEnd::Blocked
    }

    /// When the turn that goes on began, or the last one ended.
    #[must_use]
    pub const fn since_ns(&self) -> u64 {
        self.started_ns
    }

    /// The thread gives way though it has more to do.
    pub const fn give_way(&mut self) {
        self.ended_as = SliceEnd::Yielded;
    }

    #[inline(always)]
    fn plan(&mut self, now_ns: u64) {
        let parameters = &self.parameters;
        self.planned_ns = now_ns;
        let (until_ns, priority) = if self.realtime() != 0 {
            let left_ns = realtime_left_ns(arch::cpu::id(), now_ns);
            let slice_ns = if parameters.policy == Policy::RoundRobin { self.round_ns } else { u64::MAX };
            match left_ns {
                0 => (now_ns + SLICE_NS, Priority::SPENT),
                left_ns => {
                    (now_ns.saturating_add(left_ns.min(slice_ns)), Priority::realtime(self.realtime()))
                }
            }
        } else if self.payer == Payer::Group {
            // The group has paid for nothing of the turn yet, whatever the thread has become meanwhile.
            (self.started_ns + self.shared.budget_ns(), parameters.priority(self.shared.is_exhausted()))
        } else {
            let is_late = self.account.is_exhausted() || self.payer == Payer::OwnBehind;
            (now_ns + self.account.budget_ns(), parameters.priority(is_late))
        };
        (self.until_ns, self.priority) = (until_ns, priority);
    }
}
