//! The executor threads of one user: an exact order among them, and one part in each processor for all of them.
//!
//! Threads that run coroutines of ordinary levels are *members* of their user's group. Where they are queued is left to
//! the scheduler, among the threads of everybody; this module decides, when a member has come to its turn on a CPU,
//! whether it has the turn, another member has it, or nobody.
//!
//! - **The turn is the group's.** It is given to the most urgent member that is ready and may run there, wherever
//!   that is queued; among equals, to the one that has waited longest. A member that enters its program therefore finds
//!   nobody more urgent ready, and the CPU that runs the least urgent member is told when one becomes ready.
//! - **The time is the group's.** For each CPU it has one [`Account`], which the members that run there use up in turn.
//!   A turn among the exhausted is followed by as many places of members as were queued when it ended: these
//!   are left out, so that a round of the queue brings the group one slice, however many members it has.
//! - **No member waits anywhere else** than in the scheduler's queues, so none can be forgotten: at worst one comes to
//!   its turn later.
//! - **A call is the caller's.** A member that another has given way to and that was brought is the calling CPU's for
//!   [`CALL_NS`] or more: two that took it from each other might do so for ever. Other CPUs take the next one, or wait
//!   until it has its turn, since it may yet give way to a third.

use alloc::vec::Vec;

use crate::fairness::{Account, Weight};
use crate::fallible::{AllocError, push_reserved};

#[cfg(test)]
mod delays;
mod lists;
#[cfg(test)]
mod tests;

use lists::Lists;

/// Levels of members that are ordered.
pub const ORDERED: u8 = 44;
/// The level of a member that is behind all of these, at a level of the whole machine.
pub const BEHIND: u8 = ORDERED;
/// The level of a member that has nothing to do with the others: it is a realtime thread.
pub const APART: u8 = BEHIND + 1;
/// The first of the levels of members that run what is urgent in the whole machine. They go before all ordered ones,
/// need no turn of the group's, and give way only to each other.
const URGENT: u8 = APART + 1;
/// How many urgent levels there are.
pub const URGENT_LEVELS: u8 = 16;
/// The first of them, as programs and the machine count.
pub const URGENT_FIRST: u8 = 4;

/// The level of a member that runs what has this level in the whole machine, [`URGENT_FIRST`] or one of the next.
#[must_use]
pub const fn urgent(level: u8) -> u8 {
    let above = level.saturating_sub(URGENT_FIRST);
    URGENT + if above < URGENT_LEVELS { above } else { URGENT_LEVELS - 1 }
}

/// The level of a member as programs see it in [`Group::ready`]: the inverse of [`urgent`].
#[must_use]
pub const fn level_for_programs(level: u8) -> u8 {
    if level >= URGENT { level - URGENT + URGENT_FIRST } else { level }
}

/// The place of a level in the order: the smaller goes first.
const fn order_of(level: u8) -> u8 {
    if level >= URGENT { level - URGENT } else { level + URGENT_LEVELS }
}

/// So long a member is left to the CPU that has called it. It comes to its turn there in a fraction of that, unless the
/// CPU has something more urgent to run, or is slow: each further call before a turn doubles it.
pub const CALL_NS: u64 = 100_000;
/// The most doublings.
const DOUBLINGS_MAX: u8 = 7;

/// A member's place in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The member waits, and is in no queue.
    Waits,
    /// It goes behind its equals.
    Yields,
    /// It keeps its place among its equals.
    Keeps,
}

/// The decision over a member that has come to its turn.
#[derive(Debug, PartialEq, Eq)]
pub enum Ruling<T> {
    /// It runs its program.
    Enters,
    /// It gives way: the group has no turn.
    Waits,
    /// It gives way to this member, which is to be brought to the CPU: [`Group::called`].
    Calls(T, Place),
}

/// The circumstances of a decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// The time.
    pub now_ns: u64,
    /// The group's account is exhausted, so its turns come by rounds.
    pub is_spent: bool,
    /// Something is queued on the CPU that is no less urgent, in the order of the machine.
    pub is_contended: bool,
    /// Nothing else is queued on the CPU.
    pub is_alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for something.
    Away,
    /// In a turn on this CPU, in the kernel or its program.
    On(u8),
    /// Queued; it had its last turn on this CPU.
    Listed(u8),
}

#[derive(Debug)]
struct GroupMember<T> {
    /// `None`: the place is free.
    who: Option<T>,
    state: State,
    level: u8,
    /// CPUs that it may use, a bit each.
    cores: u64,
    /// It was given the group's turn, and has not had it yet.
    is_called: bool,
    /// Until when it is left to the CPU that called it last, and that CPU.
    called_until_ns: u64,
    called_to: u8,
    /// Calls since its last turn.
    calls: u8,
    /// It comes from a wait, and has not been queued among others.
    has_arrived: bool,
    /// When it got behind its equals.
    since: u64,
    next: u32,
    prev: u32,
}

#[derive(Debug)]
struct Cpu {
    account: Account,
    lists: Lists,
    /// Members in a turn here: more than one if turns were put aside.
    turns: u32,
    /// 1 more than the place of the member that is in its program, or would be but for a call; 0 for none.
    running: u32,
    /// The last turn has used its time up.
    is_over: bool,
    /// The group's turn is not over, though a member that had it is queued.
    goes_on: bool,
    /// Places of members that are to be left out before the group's next turn.
    left_out: u32,
    /// Rounds of the queue that the last turn has used: more than one for light weights.
    rounds: u32,
    /// Members may have been called to here, and not have had their turn.
    has_called: bool,
    /// Since when no member has been ready here.
    idle_since_ns: u64,
}

/// See the module. `T` is a name of a member.
#[derive(Debug)]
pub struct Group<T> {
    members: Vec<GroupMember<T>>,
    cpus: Vec<Cpu>,
    count: u32,
    clock: u64,
}

impl<T: Clone> Group<T> {
    /// A group without members on a machine with so many CPUs.
    ///
    /// # Errors
    /// No memory.
    pub fn new(cpus: usize) -> Result<Self, AllocError> {
        let mut list = crate::fallible::try_with_capacity(cpus)?;
        for _ in 0..cpus {
            push_reserved(
                &mut list,
                Cpu {
                    account: Account::new(Weight::of_nice(0)),
                    lists: Lists::new(),
                    turns: 0,
                    running: 0,
                    is_over: false,
                    goes_on: false,
                    left_out: 0,
                    rounds: 1,
                    has_called: false,
                    idle_since_ns: 0,
                },
            );
        }
        Ok(Self { members: Vec::new(), cpus: list, count: 0, clock: 0 })
    }

    /// How many members there are.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The member that is the only one.
    #[must_use]
    pub fn only(&self) -> Option<T> {
        if self.count == 1 { self.members.iter().find_map(|member| member.who.clone()) } else { None }
    }

    /// Levels of members that are queued, a bit each. Urgent ones count as programs count them.
    #[must_use]
    pub fn ready(&self) -> u64 {
        self.cpus.iter().fold(0, |bits, cpu| bits | cpu.lists.bits())
    }

    /// Adds a member that is in a turn on `cpu`.
    ///
    /// # Errors
    /// No memory.
    pub fn join(&mut self, who: T, cpu: usize, cores: u64) -> Result<Place, AllocError> {
        let member = GroupMember {
            who: Some(who),
            state: State::On(cpu as u8),
            level: 0,
            cores,
            is_called: false,
            called_until_ns: 0,
            called_to: 0,
            calls: 0,
            has_arrived: false,
            since: self.tick(),
            next: 0,
            prev: 0,
        };
        let free = self.members.iter().position(|each| each.who.is_none());
        let index = match free {
            Some(index) => {
                self.members[index] = member;
                index
            }
            None => {
                crate::fallible::try_push(&mut self.members, member)?;
                self.members.len() - 1
            }
        };
        self.cpus[cpu].turns += 1;
        self.count += 1;
        Ok(Place(index as u32))
    }

    /// Takes a member out. Returns its name.
    pub fn leave(&mut self, place: Place, now_ns: u64) -> Option<T> {
        self.withdraw(place, now_ns);
        self.count -= 1;
        self.members[place.0 as usize].who.take()
    }

    /// The member waits, or is to be elsewhere.
    fn withdraw(&mut self, place: Place, now_ns: u64) {
        let index = place.0 as usize;
        let number = match self.members[index].state {
            State::Away => return,
            State::On(cpu) => {
                let cpu = &mut self.cpus[usize::from(cpu)];
                cpu.turns -= 1;
                if cpu.running == place.0 + 1 {
                    cpu.running = 0;
                }
                cpu
            }
            State::Listed(cpu) => {
                let cpu = &mut self.cpus[usize::from(cpu)];
                cpu.lists.unlink(&mut self.members, place.0);
                cpu
            }
        };
        if number.turns == 0 && number.lists.is_empty() {
            number.idle_since_ns = now_ns;
            number.goes_on = false;
        }
        self.members[index].state = State::Away;
    }

    /// A turn of the member starts on `cpu`. `arrives`: it has waited, and comes before others that are queued, only to
    /// find its place. Returns the account that it uses.
    pub fn starts(&mut self, place: Place, cpu: usize, cores: u64, arrives: bool, now_ns: u64) -> Account {
        let index = place.0 as usize;
        let was_away = self.members[index].state == State::Away;
        self.withdraw(place, now_ns);
        let since = if was_away { self.tick() } else { self.members[index].since };
        let member = &mut self.members[index];
        member.since = since;
        member.has_arrived = was_away && arrives;
        (member.called_until_ns, member.calls) = (0, 0);
        member.cores = cores;
        member.state = State::On(cpu as u8);
        let here = &mut self.cpus[cpu];
        if here.turns == 0 && here.lists.is_empty() {
            here.account.slept(now_ns.saturating_sub(here.idle_since_ns), Weight::of_nice(0));
            here.left_out = here.left_out.min(here.rounds - 1);
        }
        here.turns += 1;
        here.account
    }

    /// A turn of a member on `cpu` ends, and has used time of the group. Returns the account then.
    pub fn charge(&mut self, cpu: usize, ran_ns: u64, weight: Weight) -> Account {
        let here = &mut self.cpus[cpu];
        here.is_over = here.account.ran(ran_ns, weight);
        if here.is_over {
            here.rounds = u32::from(here.account.take_owed()) + 1;
            here.left_out = here.rounds.saturating_mul(here.lists.ordered() + 1) - 1;
            here.goes_on = false;
        }
        here.account
    }

    /// A member leaves in the midst of its turn on `cpu`, for which the group pays. Returns the part of what is left that
    /// it takes along: the half, as a child's, so that leaving and joining gains no time.
    pub fn split(&mut self, cpu: usize, ran_ns: u64, weight: Weight) -> Account {
        self.charge(cpu, ran_ns, weight);
        self.cpus[cpu].is_over = false;
        self.cpus[cpu].account.split()
    }

    /// The first member brings its account along, for each CPU.
    pub fn start_with(&mut self, account: Account) {
        if self.count == 0 {
            self.cpus.iter_mut().for_each(|cpu| cpu.account = account);
        }
    }

    /// The turn of the member ends. Returns a CPU that runs a less urgent one and has to look.
    pub fn ends(&mut self, place: Place, end: End, now_ns: u64) -> Option<usize> {
        self.unlist(place);
        let State::On(number) = self.members[place.0 as usize].state else { return None };
        let cpu = &mut self.cpus[usize::from(number)];
        let had_it = cpu.running == place.0 + 1 && self.members[place.0 as usize].level < URGENT;
        let is_over = core::mem::take(&mut cpu.is_over);
        let end = if is_over && end == End::Keeps { End::Yields } else { end };
        if end != End::Keeps && had_it {
            cpu.goes_on = false;
        }
        self.withdraw(place, now_ns);
        let since = if end == End::Yields { self.tick() } else { self.members[place.0 as usize].since };
        let member = &mut self.members[place.0 as usize];
        member.since = since;
        if end == End::Waits {
            member.is_called = false;
            return self.passed(now_ns);
        }
        member.state = State::Listed(number);
        let here = &mut self.cpus[usize::from(number)];
        // The withdrawal has left the group's turn as it was.
        here.goes_on |= end == End::Keeps && had_it && here.left_out == 0;
        here.lists.link(&mut self.members, place.0);
        self.least_urgent_before(place).or_else(|| self.passed(now_ns))
    }

    /// The member that is in its program on `cpu`, as far as the group knows.
    #[must_use]
    pub fn running(&self, cpu: usize) -> Option<T> {
        let index = (self.cpus.get(cpu)?.running as usize).checked_sub(1)?;
        self.members.get(index)?.who.clone()
    }

    /// A CPU that runs a member less urgent than one that is queued and may run there. A turn that ends may have been
    /// the one that was to make room.
    #[must_use]
    pub fn passed(&self, now_ns: u64) -> Option<usize> {
        let is_passed = |number: usize, level: u8| {
            let may_run =
                |member: &GroupMember<T>| member.cores >> number & 1 != 0 && member.called_until_ns <= now_ns;
            let bound = order_of(level);
            self.cpus.iter().any(|cpu| cpu.lists.first(&self.members, bound, may_run).is_some())
        };
        let running = self.cpus.iter().enumerate().filter_map(|(number, cpu)| {
            let level = self.members.get((cpu.running as usize).checked_sub(1)?)?.level;
            (level != APART && is_passed(number, level)).then_some((number, order_of(level)))
        });
        running.max_by_key(|&(_, order)| order).map(|(number, _)| number)
    }

    /// The member, whose turn is about to end, counts as ready already: another CPU may call it.
    fn list(&mut self, place: Place) {
        let member = &mut self.members[place.0 as usize];
        let State::On(number) = member.state else { return };
        member.state = State::Listed(number);
        let cpu = &mut self.cpus[usize::from(number)];
        cpu.turns -= 1;
        cpu.lists.link(&mut self.members, place.0);
    }

    /// Takes that back.
    fn unlist(&mut self, place: Place) {
        let member = &mut self.members[place.0 as usize];
        let State::Listed(number) = member.state else { return };
        member.state = State::On(number);
        let cpu = &mut self.cpus[usize::from(number)];
        cpu.turns += 1;
        cpu.lists.unlink(&mut self.members, place.0);
    }

    /// The member that a call named has been brought to that CPU, or can't be: then it has the turn where it is. One
    /// that was found in motion is not called.
    pub fn called(&mut self, place: Place, cpu: usize, is_here: bool, now_ns: u64) {
        let member = &mut self.members[place.0 as usize];
        if !matches!(member.state, State::Listed(_)) {
            return;
        }
        member.is_called = true;
        if is_here {
            let lease_ns = CALL_NS << member.calls.min(DOUBLINGS_MAX);
            member.calls = member.calls.saturating_add(1);
            (member.called_until_ns, member.called_to) = (now_ns + lease_ns, cpu as u8);
            self.cpus[cpu].has_called = true;
        } else {
            member.cores &= !(1 << cpu);
        }
    }

    /// A CPU that has called members and runs what is urgent instead leaves them to others. Returns one that has to
    /// look.
    pub fn gives_back(&mut self, cpu: usize, now_ns: u64) -> Option<usize> {
        let here = &mut self.cpus[cpu];
        let running = (here.running as usize).checked_sub(1).filter(|_| here.has_called)?;
        if self.members[running].level < URGENT {
            return None;
        }
        here.has_called = false;
        for member in &mut self.members {
            if usize::from(member.called_to) == cpu {
                member.called_until_ns = 0;
            }
        }
        self.passed(now_ns)
    }

    /// The member runs something of `level` from now on, or will. Returns a CPU that has to look.
    pub fn set_level(&mut self, place: Place, level: u8) -> Option<usize> {
        let index = place.0 as usize;
        let before = self.members[index].level;
        if before == level {
            return None;
        }
        let State::Listed(cpu) = self.members[index].state else {
            self.members[index].level = level;
            return None;
        };
        let cpu = usize::from(cpu);
        self.cpus[cpu].lists.unlink(&mut self.members, place.0);
        self.members[index].level = level;
        self.cpus[cpu].lists.link(&mut self.members, place.0);
        if order_of(level) < order_of(before) { self.least_urgent_before(place) } else { None }
    }

    /// The CPU with the least urgent of the running members that are less urgent than this one, which may run there.
    fn least_urgent_before(&self, place: Place) -> Option<usize> {
        let member = &self.members[place.0 as usize];
        let running = self
            .cpus
            .iter()
            .enumerate()
            .filter(|(number, cpu)| cpu.running != 0 && member.cores >> number & 1 != 0);
        let level = |cpu: &Cpu| self.members[cpu.running as usize - 1].level;
        let ordered = running.filter(|(_, cpu)| level(cpu) != APART);
        let (number, order) =
            ordered.map(|(number, cpu)| (number, order_of(level(cpu)))).max_by_key(|&(_, order)| order)?;
        (order > order_of(member.level)).then_some(number)
    }

    /// The member is about to run its program on `cpu`, where its turn goes on; `is_in`: it did so before in this turn.
    pub fn decide(
        &mut self,
        place: Place,
        cpu: usize,
        is_in: bool,
        circumstances: Circumstances,
    ) -> Ruling<T> {
        let index = place.0 as usize;
        let here = &mut self.cpus[cpu];
        let member = &mut self.members[index];
        // The machine decides about turns of levels that are its own.
        let is_ordered = member.level < ORDERED;
        let has_turn = !is_ordered || is_in || member.is_called || here.goes_on;
        let has_arrived = core::mem::take(&mut member.has_arrived);
        if !has_turn && has_arrived && circumstances.is_contended {
            self.list(place);
            return Ruling::Waits;
        }
        if !has_turn && circumstances.is_spent && !circumstances.is_alone {
            here.left_out = here.left_out.min(here.rounds.saturating_mul(here.lists.ordered() + 1) - 1);
            if here.left_out != 0 {
                here.left_out -= 1;
                self.list(place);
                return Ruling::Waits;
            }
        }
        // Whoever was called was the first, and does not give way to its equals.
        let since = if is_in || member.is_called { 0 } else { member.since };
        let level = member.level;
        (member.is_called, member.called_until_ns) = (false, 0);
        let first = self.first_for(cpu, (level, since), Some(circumstances.now_ns));
        // One that is another CPU's may not get its turn there after all: until it has it, or the call is over, nobody
        // who is less urgent has one.
        if first.or_else(|| self.first_for(cpu, (level, 0), None)).is_some() {
            let here = &mut self.cpus[cpu];
            if here.running == place.0 + 1 {
                here.running = 0;
            }
            self.list(place);
            let who = first.and_then(|first| self.members[first as usize].who.clone());
            return match (first, who) {
                (Some(first), Some(who)) => Ruling::Calls(who, Place(first)),
                _ => Ruling::Waits,
            };
        }
        let here = &mut self.cpus[cpu];
        here.running = place.0 + 1;
        if is_ordered {
            here.goes_on = true;
            here.left_out = 0;
        }
        Ruling::Enters
    }

    /// The member that goes on `cpu` before one of that level that waits since then. Equals count wherever they are:
    /// one behind a more urgent member of another CPU would wait as long as that runs. At a time: without those that
    /// another CPU has called.
    fn first_for(&self, cpu: usize, (level, since): (u8, u64), now_ns: Option<u64>) -> Option<u32> {
        let may_run = |member: &GroupMember<T>| {
            let is_others = |now_ns| member.called_until_ns > now_ns && usize::from(member.called_to) != cpu;
            member.cores >> cpu & 1 != 0 && !now_ns.is_some_and(is_others)
        };
        let (mut best, mut first) = ((order_of(level), since), None);
        // An urgent one is queued before all that are ordered: if it gave way to one of these, it would be next again.
        let last = if level >= URGENT { URGENT_LEVELS } else { order_of(BEHIND) };
        for other in &self.cpus {
            let bound = (best.0 + 1).min(last);
            if let Some(index) = other.lists.first(&self.members, bound, may_run) {
                let member = &self.members[index as usize];
                let found = (order_of(member.level), member.since);
                if found < best {
                    (best, first) = (found, Some(index));
                }
            }
        }
        first
    }

    const fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}
