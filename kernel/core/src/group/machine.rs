//! A machine of some processors with queues as the scheduler's, whose threads do as they like, for tests of the rules.

extern crate std;

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::tests::Random;
use super::*;
use crate::fairness::Weight;

/// A thread of the machine: a member of a group, or by itself.
pub(super) struct Thread {
    pub(super) group: Option<(usize, Place)>,
    pub(super) nice: i8,
    /// Its own, and a copy of its group's.
    pub(super) own: Account,
    pub(super) shared: Account,
    pub(super) level: u8,
    cores: u64,
    /// Runs so long between two sleeps of so long; 0: never sleeps.
    runs_ns: u64,
    sleeps_ns: u64,
    left_ns: u64,
    wakes_ns: Option<u64>,
    arrives: bool,
    /// It is in a call, which nothing but its equals' turns interrupts.
    pub(super) is_in_call: bool,
    pub(super) used_ns: u64,
    last_ns: u64,
}

impl Thread {
    /// Whether the group pays for it.
    pub(super) fn is_shared(&self) -> bool {
        self.group.is_some() && self.nice == 0 && self.level < BEHIND
    }

    pub(super) const fn account(&mut self) -> &mut Account {
        if self.group.is_some() && self.nice == 0 && self.level < BEHIND {
            &mut self.shared
        } else {
            &mut self.own
        }
    }

    pub(super) const fn weight(&self) -> Weight {
        Weight::of_nice(self.nice)
    }
}

/// A turn that goes on.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    name: usize,
    budget_ns: u64,
    left_ns: u64,
    is_in_call: bool,
}

/// The queues of a CPU: those that find their place, the fresh, the exhausted, the background.
#[derive(Default)]
struct Queues([VecDeque<usize>; QUEUES]);

const QUEUES: usize = 4;
const FRESH: usize = 1;
const SPENT: usize = 2;
const BACKGROUND: usize = 3;

pub(super) struct Machine {
    pub(super) threads: Vec<Thread>,
    groups: Vec<Group<usize>>,
    cpus: Vec<Queues>,
    running: Vec<Option<Turn>>,
    pub(super) look: Vec<bool>,
    now_ns: u64,
    pub(super) turns_out_of_order: u64,
    picks: u64,
}

pub(super) const STEP_NS: u64 = 100_000;
/// One pick in so many goes to a less urgent queue.
const PICKS: u64 = 32;
/// So long a call goes on before its equals run.
const CALL_PART_NS: u64 = 500_000;

impl Machine {
    pub(super) fn new(cpus: usize, groups: usize) -> Self {
        Self {
            threads: Vec::new(),
            groups: (0..groups).map(|_| Group::new(cpus).unwrap()).collect(),
            cpus: (0..cpus).map(|_| Queues::default()).collect(),
            running: vec![None; cpus],
            look: vec![false; cpus],
            now_ns: 1,
            turns_out_of_order: 0,
            picks: 0,
        }
    }

    pub(super) fn add(&mut self, group: Option<usize>, level: u8, cores: u64, times: (u64, u64)) -> usize {
        self.add_nice(group, level, cores, times, 0)
    }

    /// A member with a nice value is apart.
    pub(super) fn add_nice(
        &mut self,
        group: Option<usize>,
        level: u8,
        cores: u64,
        (runs_ns, sleeps_ns): (u64, u64),
        nice: i8,
    ) -> usize {
        let name = self.threads.len();
        let cpu = cores.trailing_zeros() as usize % self.cpus.len();
        let group = group.map(|group| {
            let members = &mut self.groups[group];
            let place = members.join(name, cpu, cores).unwrap();
            members.set_level(place, if nice == 0 { level } else { APART }, self.now_ns);
            members.ends(place, End::Yields, self.now_ns);
            (group, place)
        });
        let account = Account::new(Weight::of_nice(nice));
        self.threads.push(Thread {
            group,
            nice,
            own: account,
            shared: account,
            level,
            cores,
            runs_ns,
            sleeps_ns,
            left_ns: runs_ns,
            wakes_ns: None,
            arrives: false,
            is_in_call: false,
            used_ns: 0,
            last_ns: 0,
        });
        let queue = self.queue_of(name);
        self.cpus[cpu].0[queue].push_back(name);
        name
    }

    pub(super) fn disturb(&mut self, cpu: Option<usize>) {
        if let Some(cpu) = cpu {
            self.look[cpu] = true;
        }
    }

    /// The queue that a thread belongs to.
    pub(super) fn queue_of(&mut self, name: usize) -> usize {
        let thread = &mut self.threads[name];
        if thread.group.is_some() && thread.level == BEHIND && thread.nice == 0 {
            return BACKGROUND;
        }
        if thread.account().is_exhausted() { SPENT } else { FRESH }
    }

    pub(super) fn has_before(&self, cpu: usize, queue: usize) -> bool {
        self.cpus[cpu].0[..queue].iter().any(|queue| !queue.is_empty())
    }

    pub(super) fn is_alone(&self, cpu: usize) -> bool {
        !self.has_before(cpu, QUEUES)
    }

    pub(super) fn end(&mut self, name: usize, cpu: usize, end: End, front: bool) {
        let now = self.now_ns;
        if let Some((group, place)) = self.threads[name].group {
            let look = self.groups[group].ends(place, end, now);
            self.disturb(look);
        }
        if end == End::Waits {
            return;
        }
        let queue = self.queue_of(name);
        // It goes where it may run.
        let cores = self.threads[name].cores;
        let cpu = if cores >> cpu & 1 != 0 { cpu } else { cores.trailing_zeros() as usize };
        let queue = &mut self.cpus[cpu].0[queue];
        if front { queue.push_front(name) } else { queue.push_back(name) }
    }

    /// Picks threads on `cpu` until one enters its program or goes on with its call, or none is left.
    pub(super) fn pick(&mut self, cpu: usize) {
        for _ in 0..1000 {
            self.picks += 1;
            let mut queues = (0..QUEUES).filter(|&queue| !self.cpus[cpu].0[queue].is_empty());
            let Some(first) = queues.next() else { return self.steal(cpu) };
            // The scheduler looks at less urgent ones now and then.
            let queue = queues.next().filter(|_| self.picks % PICKS == 0).unwrap_or(first);
            let name = self.cpus[cpu].0[queue].pop_front().unwrap();
            let start = Start {
                now_ns: self.now_ns,
                arrives: core::mem::take(&mut self.threads[name].arrives),
                is_alone: self.is_alone(cpu),
            };
            let cores = self.threads[name].cores;
            if let Some((group, place)) = self.threads[name].group {
                match self.groups[group].starts(place, cpu, cores, start) {
                    Payer::Group(account) => self.threads[name].shared = account,
                    Payer::Nobody(account) => {
                        self.threads[name].shared = account;
                        self.end(name, cpu, End::Keeps, false);
                        continue;
                    }
                    Payer::Thread => {}
                }
            }
            if cores >> cpu & 1 == 0 || self.is_left_out(name, cpu) {
                self.end(name, cpu, End::Keeps, false);
                continue;
            }
            if self.goes_on(name, cpu) {
                let thread = &mut self.threads[name];
                let is_in_call = thread.is_in_call;
                let budget_ns = match thread.account().budget_ns() {
                    budget_ns if is_in_call => budget_ns.min(CALL_PART_NS),
                    budget_ns => budget_ns,
                };
                self.running[cpu] = Some(Turn { name, budget_ns, left_ns: budget_ns, is_in_call });
                return;
            }
        }
        panic!("nobody comes to a turn");
    }

    /// Whether a thread that uses its own time has taken this round's before.
    pub(super) fn is_left_out(&mut self, name: usize, cpu: usize) -> bool {
        let is_alone = self.is_alone(cpu);
        let thread = &mut self.threads[name];
        !thread.is_shared() && thread.own.skips_turn() && !is_alone
    }

    /// Whether a thread that has come to its turn runs.
    pub(super) fn goes_on(&mut self, name: usize, cpu: usize) -> bool {
        if self.threads[name].is_in_call {
            return true;
        }
        let own = self.queue_of(name);
        let upto = if own == BACKGROUND { BACKGROUND } else { own + 1 };
        let circumstances = Circumstances {
            now_ns: self.now_ns,
            is_spent: own == SPENT,
            is_contended: self.has_before(cpu, upto),
            is_alone: self.is_alone(cpu),
        };
        let ruling = match self.threads[name].group {
            Some((group, place)) if self.threads[name].nice == 0 => {
                self.groups[group].decide(place, cpu, false, circumstances)
            }
            _ => Ruling::Enters,
        };
        match ruling {
            Ruling::Enters if self.has_before(cpu, own) => self.end(name, cpu, End::Keeps, true),
            Ruling::Enters => return true,
            Ruling::Waits => self.end(name, cpu, End::Keeps, false),
            Ruling::Calls(other, place) => {
                if let Some((group, _)) = self.threads[name].group {
                    self.groups[group].called(place, cpu, true, self.now_ns);
                }
                self.end(name, cpu, End::Keeps, false);
                self.bring(other, cpu);
            }
        }
        false
    }

    /// Brings a member that is queued to a CPU, before all others.
    pub(super) fn bring(&mut self, name: usize, cpu: usize) {
        for queues in &mut self.cpus {
            for queue in &mut queues.0 {
                queue.retain(|&each| each != name);
            }
        }
        self.cpus[cpu].0[0].push_back(name);
    }

    pub(super) fn steal(&mut self, cpu: usize) {
        for other in 0..self.cpus.len() {
            for queue in 0..QUEUES {
                let threads = &self.threads;
                let able = |name: &usize| threads[*name].cores >> cpu & 1 != 0;
                if let Some(index) = self.cpus[other].0[queue].iter().position(able) {
                    let name = self.cpus[other].0[queue].remove(index).unwrap();
                    self.cpus[cpu].0[queue].push_back(name);
                    return self.pick(cpu);
                }
            }
        }
    }

    pub(super) fn step(&mut self, random: &mut Random) {
        self.now_ns += STEP_NS;
        let now = self.now_ns;
        for name in 0..self.threads.len() {
            if self.threads[name].wakes_ns.is_some_and(|wakes_ns| wakes_ns <= now) {
                self.wake(name, random);
            }
        }
        for cpu in 0..self.cpus.len() {
            self.run(cpu);
        }
        for _ in 0..64 {
            for cpu in 0..self.cpus.len() {
                if core::mem::take(&mut self.look[cpu]) || self.running[cpu].is_none() {
                    // A call goes on until it has had its part.
                    if self.running[cpu].is_none_or(|turn| !turn.is_in_call) {
                        self.stop(cpu, false);
                        self.pick(cpu);
                    }
                }
            }
        }
        self.check();
    }

    pub(super) fn wake(&mut self, name: usize, random: &mut Random) {
        let thread = &mut self.threads[name];
        (thread.wakes_ns, thread.left_ns) = (None, thread.runs_ns);
        let able: Vec<_> = (0..self.cpus.len()).filter(|cpu| thread.cores >> cpu & 1 != 0).collect();
        let cpu = able[random.below(able.len() as u64) as usize];
        let queue = if thread.is_shared() && !thread.is_in_call {
            thread.arrives = true;
            0
        } else {
            let (slept_ns, weight) = (thread.sleeps_ns, thread.weight());
            thread.own.slept(slept_ns, weight);
            self.queue_of(name)
        };
        self.cpus[cpu].0[queue].push_back(name);
        self.look[cpu] |= queue == 0;
    }

    /// The thread of a CPU goes on for a step.
    pub(super) fn run(&mut self, cpu: usize) {
        let Some(turn) = &mut self.running[cpu] else { return };
        let thread = &mut self.threads[turn.name];
        thread.used_ns += STEP_NS;
        thread.last_ns = self.now_ns;
        turn.left_ns = turn.left_ns.saturating_sub(STEP_NS);
        let sleeps = thread.sleeps_ns != 0 && thread.left_ns <= STEP_NS;
        thread.left_ns = thread.left_ns.saturating_sub(STEP_NS);
        let is_over = turn.left_ns == 0;
        if sleeps || is_over {
            if sleeps {
                thread.wakes_ns = Some(self.now_ns + thread.sleeps_ns);
            }
            self.stop(cpu, sleeps);
        }
    }

    /// The turn of the thread that runs on a CPU ends.
    pub(super) fn stop(&mut self, cpu: usize, sleeps: bool) {
        let Some(turn) = self.running[cpu].take() else { return };
        let thread = &mut self.threads[turn.name];
        let ran = turn.budget_ns - turn.left_ns;
        if let Some((group, _)) = thread.group.filter(|_| thread.is_shared()) {
            thread.shared = self.groups[group].charge(cpu, ran);
        } else {
            let weight = thread.weight();
            thread.own.ran(ran, weight);
        }
        let end = if sleeps {
            End::Waits
        } else if turn.left_ns == 0 && !turn.is_in_call {
            End::Yields
        } else {
            End::Keeps
        };
        self.end(turn.name, cpu, end, end == End::Keeps && !turn.is_in_call);
    }

    /// A thread may run elsewhere from now on.
    pub(super) fn move_to(&mut self, name: usize, cores: u64) {
        self.threads[name].cores = cores;
        if let Some((group, place)) = self.threads[name].group {
            let look = self.groups[group].set_cores(place, cores, self.now_ns);
            self.disturb(look);
        }
        for cpu in 0..self.cpus.len() {
            self.look[cpu] |= self.running[cpu].is_some_and(|turn| turn.name == name);
        }
    }

    /// Some CPU's thread begins a call, or ends it.
    pub(super) fn calls(&mut self, random: &mut Random) {
        if let Some(turn) = self.running[random.below(self.running.len() as u64) as usize] {
            let thread = &mut self.threads[turn.name];
            thread.is_in_call = !thread.is_in_call && thread.is_shared();
        }
    }

    /// No member runs its program while a more urgent one of its group is queued that may run there. One that was woken
    /// in a call is in no order until it has had a turn.
    pub(super) fn check(&mut self) {
        let is_ordered = |thread: &Thread| thread.nice == 0;
        for cpu in 0..self.cpus.len() {
            let Some(turn) = self.running[cpu].filter(|turn| !turn.is_in_call) else { continue };
            let runs = &self.threads[turn.name];
            let Some((group, _)) = runs.group.filter(|_| is_ordered(runs)) else { continue };
            let queued = self.cpus.iter().flat_map(|queues| queues.0[1..].iter().flatten());
            let is_passed = |&other: &usize| {
                let other = &self.threads[other];
                other.group.is_some_and(|(of, _)| of == group)
                    && is_ordered(other)
                    && !other.is_in_call
                    && other.level < runs.level
                    && other.cores >> cpu & 1 != 0
            };
            if queued.copied().any(|other| is_passed(&other)) {
                self.turns_out_of_order += 1;
            }
        }
    }

    pub(super) fn used(&self, names: &[usize]) -> u64 {
        names.iter().map(|&name| self.threads[name].used_ns).sum()
    }
}
