//! The rules against machines whose threads do as they like.

extern crate std;

use std::vec;
use std::vec::Vec;

use super::machine::{Machine, STEP_NS};
use super::*;
use crate::fairness::{SLICE_NS, Weight};

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
    for seed in 0..200 {
        let mut random = Random(seed);
        let cpus = 1 << random.below(3);
        let groups = 1 + random.below(3) as usize;
        let mut machine = Machine::new(cpus, groups);
        for _ in 0..2 + random.below(12) {
            let group = random.below(groups as u64 + 1) as usize;
            let level = random.below(u64::from(BEHIND) + 1) as u8;
            let cores = any_cores(&mut random, cpus);
            let times = match random.below(3) {
                0 => ALWAYS,
                _ => (STEP_NS * (1 + random.below(100)), STEP_NS * (1 + random.below(200))),
            };
            let nice = if random.below(4) == 0 { random.below(10) as i8 - 5 } else { 0 };
            machine.add_nice((group < groups).then_some(group), level, cores, times, nice);
        }
        let moves = random.below(2) == 0;
        for _ in 0..3_000 {
            let name = random.below(machine.threads.len() as u64) as usize;
            match random.below(50) {
                0 if moves => {
                    let cores = any_cores(&mut random, cpus);
                    machine.move_to(name, cores);
                }
                1..4 => machine.calls(&mut random),
                _ => {}
            }
            machine.step(&mut random);
        }
        assert_eq!(machine.turns_out_of_order, 0, "seed {seed}");
        // Nobody is forgotten: whoever is not behind a more urgent one of its group has had a turn.
        for (name, thread) in machine.threads.iter().enumerate() {
            let is_first = thread.group.is_none()
                || thread.nice != 0
                || thread.level < BEHIND
                    && !machine.threads.iter().enumerate().any(|(other, each)| {
                        other != name
                            && each.group.map(|(group, _)| group) == thread.group.map(|(group, _)| group)
                            && each.level <= thread.level
                    });
            assert!(!is_first || thread.used_ns != 0, "seed {seed}: {name}");
        }
    }
}

fn any_cores(random: &mut Random, cpus: usize) -> u64 {
    match random.below(3) {
        0 => 1 << random.below(cpus as u64),
        _ => (1 << cpus) - 1,
    }
}

/// The reference is a processor that is divided by weight, whatever the members of a group do: by their number and
/// levels, background members among them, in calls and out of them.
#[test]
fn parts_are_those_of_a_divided_processor() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let groups = 1 + random.below(3) as usize;
        let mut machine = Machine::new(1, groups);
        // Name by name: the party that pays.
        let mut parties: Vec<(Vec<usize>, u64)> = Vec::new();
        for group in 0..groups {
            let names = (0..1 + random.below(60)).map(|index| {
                let level = if index == 0 { 10 } else { random.below(u64::from(BEHIND) + 1) as u8 };
                machine.add(Some(group), level, 1, ALWAYS)
            });
            parties.push((names.collect(), 1024));
        }
        for _ in 0..1 + random.below(4) {
            let group = random.below(groups as u64 + 1) as usize;
            let nice = random.below(6) as i8;
            let group = (group < groups && nice != 0).then_some(group);
            let name = machine.add_nice(group, 5, 1, ALWAYS, nice);
            parties.push((vec![name], [1024, 819, 655, 524, 419, 336][nice as usize]));
        }
        let calls = random.below(2) == 0;
        for _ in 0..80_000 {
            if calls && random.below(20) == 0 {
                machine.calls(&mut random);
            }
            machine.step(&mut random);
        }
        let rates: Vec<_> =
            parties.iter().map(|(names, weight)| machine.used(names) as f64 / *weight as f64).collect();
        // Threads in no group divide the rest by weight; a group has as much, and no more. Calls give way to their
        // equals before their slice is over, so with these it may have less.
        let (of_groups, of_others) = rates.split_at(groups);
        let (least, most) = of_others
            .iter()
            .fold((f64::MAX, 0.0_f64), |(least, most), &rate| (least.min(rate), most.max(rate)));
        assert!(least >= 0.85 * most, "seed {seed}: {rates:?}");
        assert!(of_groups.iter().all(|&rate| rate <= 1.15 * least), "seed {seed}: {rates:?}");
        assert!(calls || of_groups.iter().all(|&rate| rate >= 0.85 * most), "seed {seed}: {rates:?}");
    }
}

/// A member that goes from processor to processor finds the group exhausted everywhere.
#[test]
fn a_change_of_processor_brings_no_time() {
    let mut machine = Machine::new(4, 1);
    let hops = machine.add(Some(0), 30, 1, ALWAYS);
    let others: Vec<_> = (0..4).map(|cpu| machine.add(None, 0, 1 << cpu, ALWAYS)).collect();
    let mut random = Random(1);
    for step in 0..40_000u64 {
        if step % 80 == 0 {
            machine.move_to(hops, 1 << (step / 80 % 4));
        }
        machine.step(&mut random);
    }
    let (hopped, other) = (machine.used(&[hops]), machine.used(&others) / 4);
    assert!(hopped <= other, "{hopped} {other}");
}

/// An executor that mostly sleeps is fresh when it wakes, whatever the user's background does.
#[test]
fn background_members_take_nothing_from_the_others() {
    let mut machine = Machine::new(1, 1);
    let hog = machine.add(Some(0), BEHIND, 1, ALWAYS);
    let sleeper = machine.add(Some(0), 20, 1, (STEP_NS * 5, STEP_NS * 495));
    let plain = machine.add(None, 0, 1, ALWAYS);
    run(&mut machine, 50_000);
    assert!(machine.used(&[sleeper]) > 45_000 * STEP_NS / 100, "{}", machine.used(&[sleeper]));
    assert!(!machine.threads[sleeper].shared.is_exhausted());
    assert!(machine.used(&[hog]) < machine.used(&[plain]) / 50);
}

/// A group begins with what its first member has, and pays for one that leaves, which takes the half of the rest along.
#[test]
fn joining_and_leaving_bring_no_time() {
    let start = Start { now_ns: 1, arrives: false, is_alone: false };
    let begin = |account: Account| {
        let mut group = Group::new(1).unwrap();
        group.start_with(account, 1);
        let place = group.join("first", 0, 1).unwrap();
        group.set_level(place, 20, 1);
        (group, place)
    };
    let weight = Weight::of_nice(0);
    let mut spent = Account::new(weight);
    assert!(spent.ran(SLICE_NS, weight));
    let (mut group, place) = begin(spent);
    // The second brings nothing.
    group.start_with(Account::new(weight), 1);
    assert!(matches!(group.starts(place, 0, 1, start), Payer::Group(account) if account.is_exhausted()));
    let left = group.split(0, SLICE_NS / 2);
    assert!(left.is_exhausted());
    let (mut group, place) = begin(Account::new(weight));
    assert_eq!(group.split(0, SLICE_NS / 2).budget_ns(), SLICE_NS / 4);
    assert!(
        matches!(group.starts(place, 0, 1, start), Payer::Group(account) if account.budget_ns() == SLICE_NS / 4)
    );
}

/// One that has left while it was being called leaves nothing to whoever has its place.
#[test]
fn a_call_is_for_one_member() {
    let mut group = Group::new(1).unwrap();
    let gone = group.join("gone", 0, 1).unwrap();
    group.leave(gone, 1);
    let next = group.join("next", 0, 1).unwrap();
    group.set_level(next, 20, 1);
    group.ends(next, End::Yields, 1);
    group.called(gone, 0, false, 1);
    group.starts(next, 0, 1, Start::default());
    assert_eq!(group.decide(next, 0, false, Circumstances::default()), Ruling::Enters);
    group.ends(next, End::Yields, 1);
    assert!(group.members[next.index as usize].cores == 1 && !group.members[next.index as usize].is_called);
}

/// One that is called to a CPU to which it can't be brought has no turn before the group's next on its own.
#[test]
fn a_call_does_not_lift_what_the_group_owes() {
    let weight = Weight::of_nice(0);
    let mut spent = Account::new(weight);
    assert!(spent.ran(SLICE_NS, weight));
    let mut group = Group::new(2).unwrap();
    group.start_with(spent, 1);
    let [caller, called, third] = ["caller", "called", "third"].map(|who| group.join(who, 1, 3).unwrap());
    for (place, level) in [(caller, 30), (called, 20), (third, 25)] {
        group.set_level(place, level, 1);
    }
    assert_eq!(group.ends(called, End::Yields, 1), None);
    // The third uses a slice up on the second CPU, where the called one is queued.
    let busy = Circumstances { now_ns: 1, is_spent: true, is_contended: true, is_alone: false };
    group.charge(1, SLICE_NS);
    group.ends(third, End::Yields, 1);
    group.starts(caller, 0, 3, Start { is_alone: true, ..Start::default() });
    assert_eq!(group.decide(caller, 0, false, busy), Ruling::Calls("called", called));
    group.called(called, 0, false, 1);
    assert!(matches!(group.starts(called, 1, 3, Start::default()), Payer::Nobody(_)));
}

#[test]
fn urgent_members_go_before_all_others() {
    let mut group = Group::new(2).unwrap();
    let [first, second, third] = ["first", "second", "third"].map(|who| group.join(who, 0, 3).unwrap());
    let busy = Circumstances { now_ns: 1, is_spent: true, is_contended: true, is_alone: false };
    group.set_level(first, urgent(10), 1);
    group.set_level(second, 5, 1);
    group.set_level(third, urgent(12), 1);
    assert_eq!(group.ends(second, End::Yields, 1), None);
    group.starts(second, 1, 3, Start::default());
    assert_eq!(group.decide(second, 1, false, Circumstances::default()), Ruling::Enters);
    // Whoever is not urgent is interrupted for it, and gives way.
    assert_eq!(group.ends(first, End::Yields, 1), Some(1));
    assert_eq!(group.ready(), 1 << 10);
    assert_eq!(group.decide(second, 1, true, busy), Ruling::Calls("first", first));
    group.called(first, 1, true, 1);
    group.ends(second, End::Keeps, 1);
    assert_eq!(group.ready(), 1 << 10 | 1 << 5);
    // The urgent one needs no turn of the group's, and one that counts as ordinary does not go before it.
    group.set_level(second, 0, 1);
    group.starts(first, 1, 3, Start::default());
    assert_eq!(group.decide(first, 1, false, busy), Ruling::Enters);
    // Among themselves they have their order.
    group.ends(first, End::Keeps, 1);
    assert_eq!(group.decide(third, 0, false, busy), Ruling::Calls("first", first));
}

/// A member that another processor has called and not yet got is ready all the same: nobody less urgent enters before
/// it, and its equal does.
#[test]
fn nobody_less_urgent_enters_before_one_that_is_called_elsewhere() {
    for (level, ruling) in [(30, Ruling::Waits), (10, Ruling::Enters)] {
        let mut group = Group::new(2).unwrap();
        let caller = group.join("caller", 1, 2).unwrap();
        let [called, other] = ["called", "other"].map(|who| group.join(who, 0, 3).unwrap());
        for (place, level) in [(caller, 20), (called, 10), (other, level)] {
            group.set_level(place, level, 1);
        }
        group.ends(called, End::Yields, 1);
        group.starts(caller, 1, 2, Start::default());
        let busy = Circumstances { now_ns: 1, is_contended: true, ..Circumstances::default() };
        assert_eq!(group.decide(caller, 1, false, busy), Ruling::Calls("called", called));
        group.called(called, 1, true, 1);
        group.ends(caller, End::Keeps, 1);
        group.starts(other, 0, 3, Start::default());
        assert_eq!(group.decide(other, 0, false, busy), ruling);
    }
}
