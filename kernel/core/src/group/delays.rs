//! The rules on processors that get on at any speed beside each other: a member is listed before it is queued, it is
//! taken from one queue and not yet in another, and another processor decides at any of these moments. Some members are
//! urgent, so that the machine queues them before all others.

extern crate std;

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::tests::Random;
use super::*;

/// Time that a step takes. A member comes from a call to its turn in some of them.
const STEP_NS: u64 = 500;
/// So many steps after the last event every processor is in a program, if there is one for it.
const STEPS_MAX: usize = 20_000;

/// Where a processor is. Names are those of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Picks,
    Starts(usize),
    /// `true`: it was in its program in this turn.
    Decides(usize, bool),
    /// The first calls the second.
    Calls(usize, usize),
    /// It has got it.
    Brings(usize, usize),
    /// The processor can be interrupted from here on, and looks once more.
    Exposes(usize),
    Runs(usize),
    Ends(usize, End),
    /// The turn has ended, but for the queue.
    Files(usize, End),
}

struct Thread {
    place: Place,
    level: u8,
    cores: u64,
    arrives: bool,
    is_away: bool,
}

/// A queue: those that were called or woken, and the others.
type Queues = [VecDeque<usize>; 2];

struct Machine {
    group: Group<usize>,
    threads: Vec<Thread>,
    doing: Vec<Doing>,
    queues: Vec<Queues>,
    look: Vec<bool>,
    now_ns: u64,
}

impl Machine {
    fn new(random: &mut Random) -> Self {
        let cpus = 2 + random.below(3) as usize;
        let mut machine = Self {
            group: Group::new(cpus).unwrap(),
            threads: Vec::new(),
            doing: vec![Doing::Picks; cpus],
            queues: (0..cpus).map(|_| Queues::default()).collect(),
            look: vec![false; cpus],
            now_ns: 1,
        };
        let levels = 1 + random.below(4);
        for name in 0..2 + random.below(6) as usize {
            let all = (1 << cpus) - 1;
            let cores: u64 = if random.below(4) == 0 { 1 << random.below(cpus as u64) } else { all };
            let cpu = cores.trailing_zeros() as usize;
            let level = match random.below(4) {
                0 => urgent(URGENT_FIRST + random.below(2) as u8),
                _ => 20 + random.below(levels) as u8,
            };
            let place = machine.group.join(name, cpu, cores).unwrap();
            machine.group.set_level(place, level, 0);
            machine.group.ends(place, End::Yields, 0);
            machine.queues[cpu][1].push_back(name);
            machine.threads.push(Thread { place, level, cores, arrives: false, is_away: false });
        }
        machine
    }

    fn may_run(&self, name: usize, cpu: usize) -> bool {
        self.threads[name].cores >> cpu & 1 != 0
    }

    fn tell(&mut self, cpu: Option<usize>) {
        if let Some(cpu) = cpu {
            self.look[cpu] = true;
        }
    }

    /// The place of a member in the machine's order, if it is in that queue; the smaller goes first.
    fn rank(&self, name: usize, queue: usize) -> usize {
        match self.threads[name].level {
            level if level >= URGENT => usize::from(level - URGENT),
            _ => usize::from(URGENT_LEVELS) + queue,
        }
    }

    /// The first on a processor: queue, index and rank.
    fn first(&self, cpu: usize) -> Option<(usize, usize, usize)> {
        let queues = self.queues[cpu].iter().enumerate();
        let all = queues.flat_map(|(queue, names)| {
            names.iter().enumerate().map(move |(index, &name)| (queue, index, self.rank(name, queue)))
        });
        all.min_by_key(|&(_, _, rank)| rank)
    }

    /// Whether something on the processor goes before the member, whoever has the group's turn.
    fn is_preempted(&self, name: usize, cpu: usize) -> bool {
        self.first(cpu).is_some_and(|(_, _, rank)| rank < self.rank(name, 1))
    }

    fn is_urgent(&self, name: usize) -> bool {
        self.threads[name].level >= URGENT
    }

    /// Before a member is in its program: takes one that has come to where something urgent runs.
    fn pull(&mut self, name: usize, cpu: usize) {
        let is_ordered = !self.is_urgent(name);
        for other in (0..self.doing.len()).filter(|&other| other != cpu && is_ordered) {
            let found = self.queues[other][0].iter().position(|&each| self.may_run(each, cpu));
            if let Doing::Runs(runs) | Doing::Exposes(runs) | Doing::Decides(runs, true) = self.doing[other]
                && let Some(index) = found
                && self.is_urgent(runs)
                && let Some(found) = self.queues[other][0].remove(index)
            {
                return self.queues[cpu][0].push_back(found);
            }
        }
    }

    /// Something urgent runs here: others take what has come.
    fn offers(&mut self, cpu: usize, name: usize) {
        if self.is_urgent(name) && !self.queues[cpu][0].is_empty() {
            self.look.fill(true);
        }
    }

    fn pop(&mut self, cpu: usize) -> Option<usize> {
        if let Some((queue, index, _)) = self.first(cpu) {
            return self.queues[cpu][queue].remove(index);
        }
        let others = (0..self.queues.len()).filter(|&other| other != cpu);
        let mut places = others.flat_map(|other| [(other, 0), (other, 1)]);
        let (other, queue, index) = places.find_map(|(other, queue)| {
            let index = self.queues[other][queue].iter().position(|&name| self.may_run(name, cpu))?;
            Some((other, queue, index))
        })?;
        self.queues[other][queue].remove(index)
    }

    /// Brings a member to a processor if it is in a queue. Whether it was.
    fn fetch(&mut self, name: usize, cpu: usize) -> bool {
        for queue in self.queues.iter_mut().flatten() {
            let before = queue.len();
            queue.retain(|&each| each != name);
            if queue.len() != before {
                self.queues[cpu][0].push_back(name);
                return true;
            }
        }
        false
    }

    /// Whether a more urgent member that may run on the processor is ready, called by another or not.
    fn is_passed_over(&self, name: usize, cpu: usize) -> bool {
        let order = order_of(self.threads[name].level);
        let mut members = self.group.members.iter();
        members.any(|other| {
            let is_ready = matches!(other.state, MemberState::Listed(_)) && other.cores >> cpu & 1 != 0;
            is_ready && order_of(other.level) < order
        })
    }

    fn decide(&mut self, name: usize, cpu: usize, is_in: bool) -> Doing {
        let circumstances = Circumstances {
            now_ns: self.now_ns,
            is_spent: false,
            is_contended: self.queues[cpu].iter().any(|queue| !queue.is_empty()),
            is_alone: false,
        };
        let ruling = self.group.decide(self.threads[name].place, cpu, is_in, circumstances);
        let look = self.group.gives_back(cpu, self.now_ns);
        self.tell(look);
        assert!(ruling != Ruling::Enters || !self.is_passed_over(name, cpu), "{name} enters on {cpu}");
        match ruling {
            Ruling::Enters if is_in => Doing::Runs(name),
            Ruling::Enters => Doing::Exposes(name),
            Ruling::Waits => Doing::Ends(name, End::Keeps),
            Ruling::Calls(other, _) => Doing::Calls(name, other),
        }
    }

    /// A processor gets on by a step.
    fn step(&mut self, cpu: usize) {
        self.now_ns += STEP_NS;
        let now = self.now_ns;
        let doing = self.doing[cpu];
        match doing {
            Doing::Exposes(name) => {
                self.offers(cpu, name);
                self.pull(name, cpu);
            }
            Doing::Runs(name) if self.look[cpu] => self.pull(name, cpu),
            _ => {}
        }
        self.doing[cpu] = match doing {
            Doing::Picks => self.pop(cpu).map_or(Doing::Picks, Doing::Starts),
            Doing::Starts(name) => {
                let thread = &mut self.threads[name];
                let arrives = core::mem::take(&mut thread.arrives);
                let (place, cores) = (thread.place, thread.cores);
                self.group.starts(place, cpu, cores, Start { now_ns: now, arrives, is_alone: false });
                Doing::Decides(name, false)
            }
            Doing::Decides(name, is_in) => self.decide(name, cpu, is_in),
            Doing::Calls(name, other) if self.fetch(other, cpu) => Doing::Brings(name, other),
            Doing::Calls(name, _) => Doing::Ends(name, End::Keeps),
            Doing::Brings(name, other) => {
                self.group.called(self.threads[other].place, cpu, true, now);
                Doing::Ends(name, End::Keeps)
            }
            Doing::Exposes(name) if self.is_preempted(name, cpu) => Doing::Ends(name, End::Keeps),
            Doing::Exposes(name) => {
                self.look[cpu] = false;
                let before = (1 << level_for_programs(self.threads[name].level)) - 1;
                if self.group.ready() & before != 0 { Doing::Decides(name, true) } else { Doing::Runs(name) }
            }
            Doing::Runs(name) if core::mem::take(&mut self.look[cpu]) => {
                if self.is_preempted(name, cpu) {
                    Doing::Ends(name, End::Keeps)
                } else {
                    Doing::Decides(name, true)
                }
            }
            Doing::Runs(name) => Doing::Runs(name),
            Doing::Ends(name, end) => {
                let look = self.group.ends(self.threads[name].place, end, now);
                self.tell(look);
                Doing::Files(name, end)
            }
            Doing::Files(name, end) => {
                match end {
                    End::Waits => self.threads[name].is_away = true,
                    End::Yields | End::Keeps => self.queues[cpu][1].push_back(name),
                }
                Doing::Picks
            }
        };
    }

    /// A member wakes, sleeps or has used its slice up.
    fn event(&mut self, random: &mut Random) {
        let cpu = random.below(self.doing.len() as u64) as usize;
        if let Doing::Runs(name) = self.doing[cpu] {
            // An urgent one that wakes is the machine's to place.
            let sleeps = self.threads[name].level < URGENT && random.below(2) == 0;
            let end = if sleeps { End::Waits } else { End::Yields };
            self.doing[cpu] = Doing::Ends(name, end);
        }
        let name = random.below(self.threads.len() as u64) as usize;
        if self.threads[name].is_away {
            let able: Vec<_> = (0..self.doing.len()).filter(|&cpu| self.may_run(name, cpu)).collect();
            let cpu = able[random.below(able.len() as u64) as usize];
            (self.threads[name].is_away, self.threads[name].arrives) = (false, true);
            self.queues[cpu][0].push_back(name);
            self.look[cpu] = true;
            if let Doing::Runs(runs) | Doing::Exposes(runs) = self.doing[cpu] {
                self.offers(cpu, runs);
            }
        }
    }

    fn is_at_rest(&self) -> bool {
        let queued: Vec<_> = self.queues.iter().flatten().flatten().copied().collect();
        let rests = |cpu: usize| match self.doing[cpu] {
            Doing::Runs(_) => !self.look[cpu],
            Doing::Picks => !queued.iter().any(|&name| self.may_run(name, cpu)),
            _ => false,
        };
        (0..self.doing.len()).all(rests)
    }

    /// No processor runs a member while one that is more urgent and may run there waits.
    fn is_in_order(&self) -> bool {
        (0..self.doing.len()).all(|cpu| {
            let Doing::Runs(name) = self.doing[cpu] else { return true };
            !self.queues.iter().flatten().flatten().any(|&other| {
                order_of(self.threads[other].level) < order_of(self.threads[name].level)
                    && self.may_run(other, cpu)
            })
        })
    }
}

/// After each burst of events the processors come to rest with the most urgent members, at whatever speed.
#[test]
fn processors_of_any_speed_come_to_rest_in_order() {
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let mut machine = Machine::new(&mut random);
        for _ in 0..20 {
            for _ in 0..random.below(8) {
                machine.event(&mut random);
                for _ in 0..random.below(12) {
                    let cpu = random.below(machine.doing.len() as u64) as usize;
                    machine.step(cpu);
                }
            }
            settle(&mut machine, &mut random, seed);
        }
    }
}

/// Lets the processors get on until nothing changes: all together, or one more often than another.
fn settle(machine: &mut Machine, random: &mut Random, seed: u64) {
    let cpus = machine.doing.len() as u64;
    let (is_even, favoured) = (random.below(2) == 0, random.below(cpus) as usize);
    for step in 0..STEPS_MAX {
        if machine.is_at_rest() {
            assert!(
                machine.is_in_order(),
                "seed {seed}: {:?} {:?} {:?}",
                machine.doing,
                machine.queues,
                machine.threads.iter().map(|each| (each.level, each.cores)).collect::<Vec<_>>()
            );
            return;
        }
        let cpu = match is_even {
            true => step % cpus as usize,
            false if random.below(3) != 0 => favoured,
            false => random.below(cpus) as usize,
        };
        machine.step(cpu);
    }
    panic!("seed {seed}: no rest, {:?}", machine.doing);
}
