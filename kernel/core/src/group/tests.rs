//! The rules against machines of some processors with queues as the scheduler's, and threads that do as they like.

extern crate std;

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::fairness::SLICE_NS;

/// A generator of numbers: the same ones for the same seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A thread of the machine: a member of a group, or by itself.
struct Thread {
    group: Option<(usize, Place)>,
    account: Account,
    level: u8,
    cores: u64,
    /// Runs so long between two sleeps of so long; 0: never sleeps.
    runs_ns: u64,
    sleeps_ns: u64,
    left_ns: u64,
    wakes_ns: Option<u64>,
    arrives: bool,
    used_ns: u64,
    last_ns: u64,
}

/// The queues of a CPU: what finds its place, the fresh, the exhausted.
#[derive(Default)]
struct Queues([VecDeque<usize>; 3]);

struct Machine {
    threads: Vec<Thread>,
    groups: Vec<Group<usize>>,
    cpus: Vec<Queues>,
    /// The member that is in its program, by CPU, and what it may still use.
    running: Vec<Option<(usize, u64)>>,
    look: Vec<bool>,
    now_ns: u64,
    turns_out_of_order: u64,
}

const STEP_NS: u64 = 100_000;

impl Machine {
    fn new(cpus: usize, groups: usize) -> Self {
        Self {
            threads: Vec::new(),
            groups: (0..groups).map(|_| Group::new(cpus).unwrap()).collect(),
            cpus: (0..cpus).map(|_| Queues::default()).collect(),
            running: vec![None; cpus],
            look: vec![false; cpus],
            now_ns: 1,
            turns_out_of_order: 0,
        }
    }

    fn add(
        &mut self,
        group: Option<usize>,
        level: u8,
        cores: u64,
        (runs_ns, sleeps_ns): (u64, u64),
    ) -> usize {
        let name = self.threads.len();
        let cpu = cores.trailing_zeros() as usize % self.cpus.len();
        let group = group.map(|group| {
            let members = &mut self.groups[group];
            let place = members.join(name, cpu, cores).unwrap();
            members.set_level(place, level);
            members.ends(place, End::Yields, self.now_ns);
            (group, place)
        });
        self.threads.push(Thread {
            group,
            account: Account::new(Weight::of_nice(0)),
            level,
            cores,
            runs_ns,
            sleeps_ns,
            left_ns: runs_ns,
            wakes_ns: None,
            arrives: false,
            used_ns: 0,
            last_ns: 0,
        });
        self.cpus[cpu].0[1].push_back(name);
        name
    }

    fn disturb(&mut self, cpu: Option<usize>) {
        if let Some(cpu) = cpu {
            self.look[cpu] = true;
        }
    }

    /// The queue for a thread with this account.
    fn queue_of(account: &Account) -> usize {
        if account.is_exhausted() { 2 } else { 1 }
    }

    fn end(&mut self, name: usize, cpu: usize, end: End, front: bool) {
        let now = self.now_ns;
        if let Some((group, place)) = self.threads[name].group {
            let look = self.groups[group].ends(place, end, now);
            self.disturb(look);
        }
        if end == End::Waits {
            return;
        }
        let queue = &mut self.cpus[cpu].0[Self::queue_of(&self.threads[name].account)];
        if front { queue.push_front(name) } else { queue.push_back(name) }
    }

    /// Picks threads on `cpu` until one enters its program, or none is left.
    fn pick(&mut self, cpu: usize) {
        for _ in 0..1000 {
            let Some(queue) = (0..3).find(|&queue| !self.cpus[cpu].0[queue].is_empty()) else {
                self.steal(cpu);
                return;
            };
            let name = self.cpus[cpu].0[queue].pop_front().unwrap();
            let (now, thread) = (self.now_ns, &mut self.threads[name]);
            let arrives = core::mem::take(&mut thread.arrives);
            let Some((group, place)) = thread.group else {
                if thread.account.skips_turn() && self.cpus[cpu].0.iter().any(|queue| !queue.is_empty()) {
                    self.cpus[cpu].0[2].push_back(name);
                    continue;
                }
                let own = Self::queue_of(&thread.account);
                if (0..own).any(|queue| !self.cpus[cpu].0[queue].is_empty()) {
                    self.cpus[cpu].0[own].push_front(name);
                    continue;
                }
                self.running[cpu] = Some((name, self.threads[name].account.budget_ns()));
                return;
            };
            let account = self.groups[group].starts(place, cpu, thread.cores, arrives, now);
            thread.account = account;
            let own = Self::queue_of(&account);
            let circumstances = Circumstances {
                now_ns: now,
                is_spent: own == 2,
                is_contended: (0..=own).any(|queue| !self.cpus[cpu].0[queue].is_empty()),
                is_alone: self.cpus[cpu].0.iter().all(VecDeque::is_empty),
            };
            match self.groups[group].decide(place, cpu, false, circumstances) {
                Ruling::Enters if (0..own).any(|queue| !self.cpus[cpu].0[queue].is_empty()) => {
                    self.end(name, cpu, End::Keeps, true);
                }
                Ruling::Enters => {
                    self.running[cpu] = Some((name, account.budget_ns()));
                    return;
                }
                Ruling::Waits => self.end(name, cpu, End::Keeps, false),
                Ruling::Calls(other, place) => {
                    self.groups[group].called(place, cpu, true, now);
                    self.end(name, cpu, End::Keeps, false);
                    self.bring(other, cpu);
                }
            }
        }
        panic!("nobody comes to a turn");
    }

    /// Brings a member that is queued to a CPU, before all others.
    fn bring(&mut self, name: usize, cpu: usize) {
        for queues in &mut self.cpus {
            for queue in &mut queues.0 {
                queue.retain(|&each| each != name);
            }
        }
        self.cpus[cpu].0[0].push_back(name);
    }

    fn steal(&mut self, cpu: usize) {
        for other in 0..self.cpus.len() {
            for queue in 0..3 {
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

    fn step(&mut self, random: &mut Random) {
        self.now_ns += STEP_NS;
        let now = self.now_ns;
        for name in 0..self.threads.len() {
            if self.threads[name].wakes_ns.is_some_and(|wakes_ns| wakes_ns <= now) {
                let thread = &mut self.threads[name];
                (thread.wakes_ns, thread.left_ns) = (None, thread.runs_ns);
                let able: Vec<_> = (0..self.cpus.len()).filter(|cpu| thread.cores >> cpu & 1 != 0).collect();
                let cpu = able[random.below(able.len() as u64) as usize];
                let queue = if thread.group.is_some() {
                    thread.arrives = true;
                    0
                } else {
                    thread.account.slept(thread.sleeps_ns, Weight::of_nice(0));
                    Self::queue_of(&thread.account)
                };
                self.cpus[cpu].0[queue].push_back(name);
                self.look[cpu] |= queue == 0;
            }
        }
        for cpu in 0..self.cpus.len() {
            self.run(cpu);
        }
        for _ in 0..64 {
            for cpu in 0..self.cpus.len() {
                if core::mem::take(&mut self.look[cpu]) || self.running[cpu].is_none() {
                    self.stop(cpu, false);
                    self.pick(cpu);
                }
            }
        }
        self.check();
    }

    /// The thread of a CPU goes on for a step.
    fn run(&mut self, cpu: usize) {
        let Some((name, left)) = &mut self.running[cpu] else { return };
        let thread = &mut self.threads[*name];
        thread.used_ns += STEP_NS;
        thread.last_ns = self.now_ns;
        *left = left.saturating_sub(STEP_NS);
        let sleeps = thread.sleeps_ns != 0 && thread.left_ns <= STEP_NS;
        thread.left_ns = thread.left_ns.saturating_sub(STEP_NS);
        let is_over = *left == 0;
        if sleeps || is_over {
            if sleeps {
                thread.wakes_ns = Some(self.now_ns + thread.sleeps_ns);
            }
            self.stop(cpu, sleeps);
        }
    }

    /// The turn of the thread that runs on a CPU ends.
    fn stop(&mut self, cpu: usize, sleeps: bool) {
        let Some((name, left)) = self.running[cpu].take() else { return };
        let thread = &mut self.threads[name];
        let ran = thread.account.budget_ns() - left;
        thread.account = match thread.group {
            Some((group, _)) => self.groups[group].charge(cpu, ran, Weight::of_nice(0)),
            None => {
                thread.account.ran(ran, Weight::of_nice(0));
                thread.account
            }
        };
        let end = if sleeps {
            End::Waits
        } else if left == 0 {
            End::Yields
        } else {
            End::Keeps
        };
        self.end(name, cpu, end, end == End::Keeps);
    }

    /// No member runs while a more urgent one of its group is queued that may run there.
    fn check(&mut self) {
        for cpu in 0..self.cpus.len() {
            let Some((name, _)) = self.running[cpu] else { continue };
            let runs = &self.threads[name];
            let Some((group, _)) = runs.group else { continue };
            let queued = self.cpus.iter().flat_map(|queues| queues.0[1..].iter().flatten());
            let is_passed = |&other: &usize| {
                let other = &self.threads[other];
                other.group.is_some_and(|(of, _)| of == group)
                    && other.level < runs.level
                    && other.cores >> cpu & 1 != 0
            };
            if queued.copied().any(|other| is_passed(&other)) {
                self.turns_out_of_order += 1;
            }
        }
    }

    fn used(&self, names: &[usize]) -> u64 {
        names.iter().map(|&name| self.threads[name].used_ns).sum()
    }
}

const ALWAYS: (u64, u64) = (0, 0);

fn run(machine: &mut Machine, steps: u64) {
    let mut random = Random(7);
    for _ in 0..steps {
        machine.step(&mut random);
    }
}

#[test]
fn the_most_urgent_has_the_processor() {
    let mut machine = Machine::new(1, 1);
    let less = machine.add(Some(0), 30, 1, ALWAYS);
    run(&mut machine, 300);
    let more = machine.add(Some(0), 20, 1, ALWAYS);
    let before = machine.used(&[less]);
    machine.look[0] = true;
    run(&mut machine, 1000);
    assert!(machine.used(&[less]) - before <= STEP_NS);
    assert!(machine.used(&[more]) >= 999 * STEP_NS);
    assert_eq!(machine.turns_out_of_order, 0);
}

#[test]
fn equals_share_a_part() {
    for count in [2, 3, 7] {
        let mut machine = Machine::new(1, 1);
        let names: Vec<_> = (0..count).map(|_| machine.add(Some(0), 32, 1, ALWAYS)).collect();
        let other = machine.add(None, 0, 1, ALWAYS);
        run(&mut machine, 40_000);
        let each: Vec<_> = names.iter().map(|&name| machine.used(&[name])).collect();
        let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
        assert!(most - least <= 3 * SLICE_NS, "{each:?}");
        let ratio = machine.used(&names) as f64 / machine.used(&[other]) as f64;
        assert!((0.9..1.1).contains(&ratio), "{count}: {ratio}");
    }
}

#[test]
fn more_executors_gain_nothing() {
    for (count, levels) in [(1, 1), (2, 2), (5, 5), (50, 1), (50, 44), (50, 3)] {
        let mut machine = Machine::new(1, 2);
        let many: Vec<_> = (0..count).map(|n| machine.add(Some(0), (n % levels) as u8, 1, ALWAYS)).collect();
        let one = machine.add(Some(1), 43, 1, ALWAYS);
        let plain = machine.add(None, 0, 1, ALWAYS);
        run(&mut machine, 60_000);
        let used = [machine.used(&many), machine.used(&[one]), machine.used(&[plain])];
        let most = *used.iter().max().unwrap() as f64;
        assert!(used.iter().all(|&each| each as f64 > most * 0.9), "{count} {levels}: {used:?}");
    }
}

#[test]
fn any_threads_on_any_processors() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let cpus = 1 << random.below(3);
        let groups = 1 + random.below(3) as usize;
        let mut machine = Machine::new(cpus, groups);
        for _ in 0..2 + random.below(12) {
            let group = random.below(groups as u64 + 1) as usize;
            let level = random.below(u64::from(ORDERED)) as u8;
            let cores = match random.below(3) {
                0 => 1 << random.below(cpus as u64),
                _ => (1 << cpus) - 1,
            };
            let times = match random.below(3) {
                0 => ALWAYS,
                _ => (STEP_NS * (1 + random.below(100)), STEP_NS * (1 + random.below(200))),
            };
            machine.add((group < groups).then_some(group), level, cores, times);
        }
        for _ in 0..3_000 {
            machine.step(&mut random);
        }
        assert_eq!(machine.turns_out_of_order, 0, "seed {seed}");
        // Nobody is forgotten: whoever is not behind a more urgent one of its group has had a turn.
        for (name, thread) in machine.threads.iter().enumerate() {
            let is_first = thread.group.is_none()
                || !machine.threads.iter().enumerate().any(|(other, each)| {
                    other != name
                        && each.group.map(|(group, _)| group) == thread.group.map(|(group, _)| group)
                        && each.level <= thread.level
                });
            assert!(!is_first || thread.used_ns != 0, "seed {seed}: {name}");
        }
    }
}

/// A group begins with what its first member has, and pays for one that leaves, which takes the half of the rest along.
#[test]
fn joining_and_leaving_bring_no_time() {
    let weight = Weight::of_nice(0);
    let mut spent = Account::new(weight);
    assert!(spent.ran(SLICE_NS, weight));
    let mut group = Group::new(1).unwrap();
    group.start_with(spent);
    let place = group.join("first", 0, 1).unwrap();
    group.start_with(Account::new(weight));
    assert!(group.starts(place, 0, 1, false, 1).is_exhausted());
    let left = group.split(0, SLICE_NS / 2, weight);
    assert!(left.is_exhausted());
    let mut group = Group::new(1).unwrap();
    let place = group.join("first", 0, 1).unwrap();
    assert_eq!(group.split(0, SLICE_NS / 2, weight).budget_ns(), SLICE_NS / 4);
    assert_eq!(group.starts(place, 0, 1, false, 1).budget_ns(), SLICE_NS / 4);
}

#[test]
fn urgent_members_go_before_all_others() {
    let mut group = Group::new(2).unwrap();
    let [first, second, third] = ["first", "second", "third"].map(|who| group.join(who, 0, 3).unwrap());
    let busy = Circumstances { now_ns: 1, is_spent: true, is_contended: true, is_alone: false };
    group.set_level(first, urgent(10));
    group.set_level(second, 5);
    group.set_level(third, urgent(12));
    assert_eq!(group.ends(second, End::Yields, 1), None);
    group.starts(second, 1, 3, false, 1);
    assert_eq!(group.decide(second, 1, false, Circumstances::default()), Ruling::Enters);
    // Whoever is not urgent is interrupted for it, and gives way.
    assert_eq!(group.ends(first, End::Yields, 1), Some(1));
    assert_eq!(group.ready(), 1 << 10);
    assert_eq!(group.decide(second, 1, true, busy), Ruling::Calls("first", first));
    group.called(first, 1, true, 1);
    group.ends(second, End::Keeps, 1);
    assert_eq!(group.ready(), 1 << 10 | 1 << 5);
    // The urgent one needs no turn of the group's, and one that counts as ordinary does not go before it.
    group.set_level(second, 0);
    group.starts(first, 1, 3, false, 1);
    assert_eq!(group.decide(first, 1, false, busy), Ruling::Enters);
    // Among themselves they have their order.
    group.ends(first, End::Keeps, 1);
    assert_eq!(group.decide(third, 0, false, busy), Ruling::Calls("first", first));
}
