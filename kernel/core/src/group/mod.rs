//! The executor threads of one user: an exact order among them, and one part in each processor for all of them.
//!
//! Threads that run coroutines of ordinary levels are *members* of their user's group. Where they are queued is left to
//! the scheduler, among the threads of everybody; this module decides, when a member has come to its turn on a CPU,
//! whether it has the turn, another member has it, or nobody.
//!
//! - **The turn is the group's.** It is given to the most urgent member that is ready and may run there, wherever
//!   that is queued; among equals, to the one that has waited longest. A member that enters its program therefore finds
//!   nobody more urgent ready, and the CPU that runs the least urgent member is told when one becomes ready.
//! - **The time is the group's.** It has one [`Account`], which the members use up wherever they run, and once that is
//!   exhausted a slice on each CPU. A turn among the exhausted is followed by as many places of members as were queued
//!   when it ended: these are left out, so that a round of the queue brings the group one slice, however many members
//!   it has, and whether they are in their programs or in calls.
//! - **Background members have their own time**, and so does whoever is [`APART`].
//! - **No member waits anywhere else** than in the scheduler's queues, so none can be forgotten: at worst one comes to
//!   its turn later.
//! - **A call is the caller's.** A member that another has given way to and that was brought is the calling CPU's for
//!   [`CALL_NS`] or more: two that took it from each other might do so for ever. Other CPUs take the next one, or wait
//!   until it has its turn, since it may yet give way to a third.

use alloc::vec::Vec;

use crate::fairness::Account;
use crate::fallible::{AllocError, push_reserved};

#[cfg(test)]
mod delays;
mod levels;
mod lists;
#[cfg(test)]
mod machine;
mod share;
#[cfg(test)]
mod tests;

use levels::{URGENT, order_of, uses_group};
use lists::Lists;
use share::{Freshness, Rounds, WEIGHT};

pub use levels::{APART, BEHIND, ORDERED, URGENT_FIRST, URGENT_LEVELS, level_for_programs, urgent};

/// So long a member is left to the CPU that has called it. It comes to its turn there in a fraction of that, unless the
/// CPU has something more urgent to run, or is slow: each further call before a turn doubles it.
pub const CALL_NS: u64 = 100_000;
/// The most doublings.
const DOUBLINGS_MAX: u8 = 7;

/// The most members of a group. Nothing that is done under its lock looks at one more than once for each CPU.
pub const MEMBERS_MAX: u32 = 256;
/// A member is left out at the start of its turn at most so often in a row: it may be in the midst of a call, and hold
/// what others wait for. That is more than one round of the queue needs but after turns that were too long.
const SKIPS_MAX: u8 = 16;

/// A member's place in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    index: u32,
    /// Different for each member that had the place.
    name: u64,
}

/// The circumstances of a turn's start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start {
    /// The time.
    pub now_ns: u64,
    /// The member has waited, and comes before others that are queued, only to find its place.
    pub arrives: bool,
    /// Nothing else is queued on the CPU.
    pub is_alone: bool,
}

/// Whose time a turn uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payer {
    /// The thread's own.
    Thread,
    /// The group's, which has this.
    Group(Account),
    /// The group's, which has none for it now: the turn is over before it begins.
    Nobody(Account),
}

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
    /// Something is queued on the CPU that is no less urgent, in the order of the machine; for a background member:
    /// something that is not background.
    pub is_contended: bool,
    /// Nothing else is queued on the CPU.
    pub is_alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
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
    state: MemberState,
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
    /// How often it was left out since it last got on.
    skips: u8,
    /// It comes from a wait, and has not been queued among others.
    has_arrived: bool,
    /// When it got behind its equals.
    since: u64,
    /// See [`Place`].
    name: u64,
    next: u32,
    prev: u32,
}

#[derive(Debug)]
struct Cpu {
    rounds: Rounds,
    lists: Lists,
    /// Members in a turn here: more than one if turns were put aside.
    turns: u32,
    /// 1 more than the place of the member that is in its program, or would be but for a call; 0 for none.
    running: u32,
    /// The group's turn is not over, though a member that had it is queued.
    goes_on: bool,
    /// Members may have been called to here, and not have had their turn.
    has_called: bool,
}

/// See the module. `T` is a name of a member.
#[derive(Debug)]
pub struct Group<T> {
    members: Vec<GroupMember<T>>,
    cpus: Vec<Cpu>,
    freshness: Freshness,
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
                    rounds: Rounds::new(),
                    lists: Lists::new(),
                    turns: 0,
                    running: 0,
                    goes_on: false,
                    has_called: false,
                },
            );
        }
        let freshness = Freshness::new(Account::new(WEIGHT), 0);
        Ok(Self { members: Vec::new(), cpus: list, freshness, count: 0, clock: 0 })
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

    /// Adds a member that is in a turn on `cpu`, whose time is not the group's. There is room for [`MEMBERS_MAX`].
    ///
    /// # Errors
    /// No memory.
    pub fn join(&mut self, who: T, cpu: usize, cores: u64) -> Result<Place, AllocError> {
        let name = self.tick();
        let member = GroupMember {
            who: Some(who),
            state: MemberState::Away,
            level: APART,
            cores,
            is_called: false,
            called_until_ns: 0,
            called_to: 0,
            calls: 0,
            skips: 0,
            has_arrived: false,
            since: name,
            name,
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
        self.set_state(index, MemberState::On(cpu as u8), 0);
        self.cpus[cpu].turns += 1;
        self.count += 1;
        Ok(Place { index: index as u32, name })
    }

    /// Takes a member out. Returns its name.
    pub fn leave(&mut self, place: Place, now_ns: u64) -> Option<T> {
        self.withdraw(place, now_ns);
        self.count -= 1;
        self.members[place.index as usize].who.take()
    }

    /// The member may run on these CPUs from now on. Returns a CPU that has to look.
    pub fn set_cores(&mut self, place: Place, cores: u64, now_ns: u64) -> Option<usize> {
        let member = &mut self.members[place.index as usize];
        member.cores = cores;
        if matches!(member.state, MemberState::Listed(_)) { self.passed(now_ns) } else { None }
    }

    /// Members that are ready or in a turn keep the group from getting fresh again if they use its time.
    fn set_state(&mut self, index: usize, state: MemberState, now_ns: u64) {
        let member = &mut self.members[index];
        let before = core::mem::replace(&mut member.state, state);
        if uses_group(member.level) {
            match (before, state) {
                (MemberState::Away, MemberState::Away) => {}
                (MemberState::Away, _) => self.freshness.comes(now_ns),
                (_, MemberState::Away) => self.freshness.goes(now_ns),
                _ => {}
            }
        }
    }

    /// The member waits, or is to be elsewhere.
    fn withdraw(&mut self, place: Place, now_ns: u64) {
        let index = place.index as usize;
        let cpu = match self.members[index].state {
            MemberState::Away => return,
            MemberState::On(cpu) => {
                let cpu = &mut self.cpus[usize::from(cpu)];
                cpu.turns -= 1;
                if cpu.running == place.index + 1 {
                    cpu.running = 0;
                }
                cpu
            }
            MemberState::Listed(cpu) => {
                let cpu = &mut self.cpus[usize::from(cpu)];
                cpu.lists.unlink(&mut self.members, place.index);
                cpu
            }
        };
        if cpu.turns == 0 && cpu.lists.is_empty() {
            cpu.goes_on = false;
        }
        self.set_state(index, MemberState::Away, now_ns);
    }

    /// A turn of the member starts on `cpu`. Returns whose time it uses.
    pub fn starts(&mut self, place: Place, cpu: usize, cores: u64, start: Start) -> Payer {
        let index = place.index as usize;
        let was_away = self.members[index].state == MemberState::Away;
        self.withdraw(place, start.now_ns);
        let since = if was_away { self.tick() } else { self.members[index].since };
        let member = &mut self.members[index];
        member.since = since;
        member.has_arrived = was_away && start.arrives;
        (member.called_until_ns, member.calls) = (0, 0);
        member.cores = cores;
        self.set_state(index, MemberState::On(cpu as u8), start.now_ns);
        self.cpus[cpu].turns += 1;
        self.payer(index, cpu, start.is_alone)
    }

    /// The turn of the member ends. Returns a CPU that runs a less urgent one and has to look.
    pub fn ends(&mut self, place: Place, end: End, now_ns: u64) -> Option<usize> {
        self.unlist(place);
        let MemberState::On(number) = self.members[place.index as usize].state else { return None };
        let cpu = &mut self.cpus[usize::from(number)];
        let had_it = cpu.running == place.index + 1 && self.members[place.index as usize].level < ORDERED;
        let is_over = core::mem::take(&mut cpu.rounds.is_over);
        let end = if is_over && end == End::Keeps { End::Yields } else { end };
        if end != End::Keeps && had_it {
            cpu.goes_on = false;
        }
        self.withdraw(place, now_ns);
        let since = if end == End::Yields { self.tick() } else { self.members[place.index as usize].since };
        let member = &mut self.members[place.index as usize];
        member.since = since;
        if end == End::Waits {
            member.is_called = false;
            return self.passed(now_ns);
        }
        self.set_state(place.index as usize, MemberState::Listed(number), now_ns);
        let here = &mut self.cpus[usize::from(number)];
        // The withdrawal has left the group's turn as it was.
        here.goes_on |= end == End::Keeps && had_it && !here.rounds.owes();
        here.lists.link(&mut self.members, place.index);
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
        let member = &mut self.members[place.index as usize];
        let MemberState::On(number) = member.state else { return };
        member.state = MemberState::Listed(number);
        let cpu = &mut self.cpus[usize::from(number)];
        cpu.turns -= 1;
        cpu.lists.link(&mut self.members, place.index);
    }

    /// Takes that back.
    fn unlist(&mut self, place: Place) {
        let member = &mut self.members[place.index as usize];
        let MemberState::Listed(number) = member.state else { return };
        member.state = MemberState::On(number);
        let cpu = &mut self.cpus[usize::from(number)];
        cpu.turns += 1;
        cpu.lists.unlink(&mut self.members, place.index);
    }

    /// The member that a call named has been brought to that CPU, or can't be: then it has the turn where it is, unless
    /// the group has had more than its part there. One that was found in motion is not called.
    pub fn called(&mut self, place: Place, cpu: usize, is_here: bool, now_ns: u64) {
        let member = &mut self.members[place.index as usize];
        // It may have left meanwhile, and another have its place.
        let MemberState::Listed(number) = member.state else { return };
        if member.name != place.name {
            return;
        }
        member.is_called = is_here || !self.cpus[usize::from(number)].rounds.owes();
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

    /// The member runs something of `level` from now on, or will. One that is queued gets behind its new equals.
    /// Returns a CPU that has to look.
    pub fn set_level(&mut self, place: Place, level: u8, now_ns: u64) -> Option<usize> {
        let index = place.index as usize;
        let (before, state) = (self.members[index].level, self.members[index].state);
        if before == level {
            return None;
        }
        if state != MemberState::Away && uses_group(before) != uses_group(level) {
            if uses_group(level) { self.freshness.comes(now_ns) } else { self.freshness.goes(now_ns) }
        }
        let MemberState::Listed(cpu) = state else {
            self.members[index].level = level;
            return None;
        };
        let cpu = usize::from(cpu);
        self.cpus[cpu].lists.unlink(&mut self.members, place.index);
        self.members[index].level = level;
        self.members[index].since = self.tick();
        self.cpus[cpu].lists.link(&mut self.members, place.index);
        if order_of(level) < order_of(before) { self.least_urgent_before(place) } else { None }
    }

    /// The CPU with the least urgent of the running members that are less urgent than this one, which may run there.
    fn least_urgent_before(&self, place: Place) -> Option<usize> {
        let member = &self.members[place.index as usize];
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
        let index = place.index as usize;
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
        let may_be_left_out = !has_turn && circumstances.is_spent && !circumstances.is_alone;
        if may_be_left_out && here.rounds.leaves_out(here.lists.ordered()) {
            self.list(place);
            return Ruling::Waits;
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
            if here.running == place.index + 1 {
                here.running = 0;
            }
            self.list(place);
            // A background member comes after all else that is queued here, and is no way for an ordered one to more
            // than the group's part.
            let first = first.filter(|_| level != BEHIND || !circumstances.is_contended);
            let who = first.and_then(|first| self.members[first as usize].who.clone());
            return match (first, who) {
                (Some(index), Some(who)) => {
                    Ruling::Calls(who, Place { index, name: self.members[index as usize].name })
                }
                _ => Ruling::Waits,
            };
        }
        let here = &mut self.cpus[cpu];
        here.running = place.index + 1;
        if is_ordered {
            here.goes_on = true;
            here.rounds.begins();
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
