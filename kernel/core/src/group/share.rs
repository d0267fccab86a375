//! A group's part in the processors.
//!
//! Whether it is fresh is one for all CPUs: a member that goes from CPU to CPU finds the same account everywhere, and
//! it is refilled by time in which no member is ready anywhere. Exhausted, the group has rounds on each CPU.

use crate::fairness::{Account, Weight};

use super::levels::{ORDERED, uses_group};
use super::{Group, Payer, SKIPS_MAX};

/// Groups are alike: the nice values of members don't count.
pub(super) const WEIGHT: Weight = Weight::of_nice(0);

/// Whether the group is fresh.
#[derive(Debug)]
pub(super) struct Freshness {
    pub(super) account: Account,
    /// Members that use the group's time and are ready or in a turn.
    ready: u32,
    /// Since when there has been none.
    idle_since_ns: u64,
}

impl Freshness {
    pub(super) const fn new(account: Account, now_ns: u64) -> Self {
        Self { account, ready: 0, idle_since_ns: now_ns }
    }

    /// A member becomes ready.
    pub(super) fn comes(&mut self, now_ns: u64) {
        if self.ready == 0 {
            self.account.slept(now_ns.saturating_sub(self.idle_since_ns), WEIGHT);
        }
        self.ready += 1;
    }

    /// A member waits, or has gone.
    pub(super) fn goes(&mut self, now_ns: u64) {
        self.ready = self.ready.saturating_sub(1);
        if self.ready == 0 {
            self.idle_since_ns = now_ns;
        }
    }
}

/// The turns of an exhausted group on a CPU.
#[derive(Debug)]
pub(super) struct Rounds {
    /// An exhausted account: the rest of the slice.
    pub(super) slice: Account,
    /// The last turn has used its time up.
    pub(super) is_over: bool,
    /// Places of members that are to be left out before the group's next turn.
    left_out: u32,
    /// Rounds of the queue that the last turn has used: more than one if it was too long.
    rounds: u32,
}

impl Rounds {
    /// Of a group that is not exhausted yet.
    pub(super) fn new() -> Self {
        let mut slice = Account::new(WEIGHT);
        slice.ran(slice.budget_ns(), WEIGHT);
        Self { slice, is_over: false, left_out: 0, rounds: 1 }
    }

    /// Of a group that begins with an exhausted account.
    pub(super) fn with(mut account: Account) -> Self {
        let rounds = u32::from(account.take_owed()) + 1;
        Self { slice: account, is_over: false, left_out: rounds - 1, rounds }
    }

    /// A turn has ended that used so much of the group's time, while so many ordered members are queued here. Whether
    /// it has used up the slice, or all that the group had.
    pub(super) fn ran(&mut self, freshness: &mut Freshness, ran_ns: u64, queued: u32) -> bool {
        let was_fresh = !freshness.account.is_exhausted();
        let is_exhausted = freshness.account.ran(ran_ns, WEIGHT);
        self.is_over = if was_fresh { is_exhausted } else { self.slice.ran(ran_ns, WEIGHT) };
        if self.is_over {
            if was_fresh {
                self.slice = freshness.account;
            }
            self.rounds = u32::from(self.slice.take_owed()) + 1;
            self.left_out = self.most(queued);
        }
        self.is_over
    }

    /// The places to be left out after a turn.
    const fn most(&self, queued: u32) -> u32 {
        self.rounds.saturating_mul(queued + 1) - 1
    }

    /// A member has come to its turn, while so many others are queued here. Whether its place is left out.
    pub(super) fn leaves_out(&mut self, queued: u32) -> bool {
        self.left_out = self.left_out.min(self.most(queued));
        let is_left_out = self.left_out != 0;
        self.left_out = self.left_out.saturating_sub(1);
        is_left_out
    }

    /// Whether the group's next turn is still to come.
    pub(super) const fn owes(&self) -> bool {
        self.left_out != 0
    }

    /// The group has its turn.
    pub(super) const fn begins(&mut self) {
        self.left_out = 0;
    }

    /// The account for turns on this CPU.
    pub(super) const fn account(&self, freshness: &Freshness) -> Account {
        if freshness.account.is_exhausted() { self.slice } else { freshness.account }
    }
}

impl<T> Group<T> {
    /// Whose time a turn uses that starts.
    pub(super) fn payer(&mut self, index: usize, cpu: usize, is_alone: bool) -> Payer {
        let (here, member) = (&mut self.cpus[cpu], &mut self.members[index]);
        if !uses_group(member.level) {
            return Payer::Thread;
        }
        let account = here.rounds.account(&self.freshness);
        // Those that come to find their place are asked when they have found it.
        let is_asked = member.level < ORDERED
            && account.is_exhausted()
            && !(is_alone || member.has_arrived || member.is_called || here.goes_on);
        if is_asked && member.skips < SKIPS_MAX && here.rounds.leaves_out(here.lists.ordered()) {
            member.skips += 1;
            return Payer::Nobody(account);
        }
        member.skips = 0;
        Payer::Group(account)
    }

    /// The member, whose turn goes on, uses the group's time from here on. Returns the account.
    #[must_use]
    pub fn account(&self, cpu: usize) -> Account {
        self.cpus[cpu].rounds.account(&self.freshness)
    }

    /// A turn of a member on `cpu`, or a part of it, ends, and has used time of the group. Returns the account then.
    pub fn charge(&mut self, cpu: usize, ran_ns: u64) -> Account {
        let here = &mut self.cpus[cpu];
        if here.rounds.ran(&mut self.freshness, ran_ns, here.lists.ordered()) {
            here.goes_on = false;
        }
        here.rounds.account(&self.freshness)
    }

    /// A member leaves in the midst of its turn on `cpu`, for which the group pays. Returns the part of what is left
    /// that it takes along: the half, as a child's, so that leaving and joining gains no time.
    pub fn split(&mut self, cpu: usize, ran_ns: u64) -> Account {
        let account = self.charge(cpu, ran_ns);
        self.cpus[cpu].rounds.is_over = false;
        if account.is_exhausted() { account } else { self.freshness.account.split() }
    }

    /// The first member brings its account along.
    pub fn start_with(&mut self, account: Account, now_ns: u64) {
        if self.count == 0 {
            self.freshness = Freshness::new(account, now_ns);
            for cpu in &mut self.cpus {
                cpu.rounds = if account.is_exhausted() { Rounds::with(account) } else { Rounds::new() };
            }
        }
    }
}
