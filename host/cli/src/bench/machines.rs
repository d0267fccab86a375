//! Carries a plan out: round after round, side after side.

use anyhow::Result;

use super::Interrupt;
use super::guest::{Boot, Line, Runner};
use super::plan::{Group, Plan, Sample};
use super::progress::{Progress, Step};
use super::record::{Figure, Record, Scale};
use super::side::{Side, scale};
use crate::machine::Clock;

/// How long a machine may take by the host's clock, its boot and all its items.
const MACHINE_LIMIT_S: u64 = 900;
/// The unit of rates.
const PER_SECOND: &str = "per second";

/// How often the groups run.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Those with the host's clock.
    pub emulated: usize,
    /// Those that count instructions.
    pub instructions: usize,
}

impl Rounds {
    fn of(self, group: &Group) -> usize {
        let rounds = match group.clock {
            Clock::Host => self.emulated,
            Clock::Instructions => self.instructions,
        };
        rounds.min(group.rounds)
    }
}

/// The sides of a group by the machine that they share, most often one each.
fn machines(group: &Group) -> Vec<Vec<Side>> {
    let mut machines: Vec<Vec<Side>> = Vec::new();
    for side in &group.sides {
        match machines.iter_mut().find(|sides| sides[0].shares_machine(side)) {
            Some(sides) => sides.push(*side),
            None => machines.push(vec![*side]),
        }
    }
    machines
}

/// The machines of a plan in the order in which they run. Sides alternate, and which is first alternates too, so that
/// what disturbs the host for a while disturbs all sides.
fn schedule(plan: &Plan, rounds: Rounds) -> Vec<(usize, &Group, Vec<Side>)> {
    let mut all = Vec::new();
    for round in 0..rounds.emulated.max(rounds.instructions) {
        for group in plan.groups.iter().filter(|group| round < rounds.of(group)) {
            let mut machines = machines(group);
            let first = round % machines.len();
            machines.rotate_left(first);
            all.extend(machines.into_iter().map(|sides| (round, group, sides)));
        }
    }
    all
}

/// A step for each machine of a plan.
#[must_use]
pub fn steps(plan: &Plan, rounds: Rounds) -> Vec<Step> {
    let step = |(round, group, sides): (usize, &Group, Vec<Side>)| {
        let names: Vec<_> = sides.iter().map(|side| side.name).collect();
        let kind =
            format!("{} by {}, {} CPU", names.join(" and "), scale(group.clock).name(), group.processors);
        Step { label: format!("{kind}, round {}", round + 1), kind }
    };
    schedule(plan, rounds).into_iter().map(step).collect()
}

/// Runs everything into `record`.
///
/// # Errors
/// If the user interrupted, or a machine can't be started.
pub fn run(
    plan: &Plan,
    rounds: Rounds,
    runner: &Runner,
    record: &mut Record,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<()> {
    for (round, group, sides) in schedule(plan, rounds) {
        interrupt.check()?;
        progress.begin();
        // Sides of one machine alternate from item to item.
        let both = |words: &String| sides.iter().map(|side| (*side, side.item(words))).collect::<Vec<_>>();
        let items: Vec<(Side, String)> = group.items.iter().flat_map(both).collect();
        let boot = Boot {
            side: sides[0],
            clock: group.clock,
            seed: round + 1,
            processors: group.processors,
            items: items.iter().map(|(_, words)| words.clone()).collect(),
            item_limit_s: plan.item_limit_s,
            limit_s: MACHINE_LIMIT_S,
        };
        for (item, line) in runner.run(&boot, progress)? {
            take(record, plan, group, items[item].0, line);
        }
        progress.end();
    }
    Ok(())
}

/// A figure's name, and where on the axis its end says that it belongs.
fn place_on_axis(name: &str) -> (String, Option<f64>) {
    let (series, x) = name.rsplit_once('-').unwrap_or((name, ""));
    (series.to_owned(), x.parse().ok())
}

/// Takes what a program has printed that ran by the host's clock, its results on an axis, under names that begin with
/// `way`.
pub fn take_from(record: &mut Record, way: &str, side: Side, line: Line) {
    let (name, sample, is_rate) = match line {
        Line::Result { name, nanoseconds, .. } => (name, nanoseconds, false),
        Line::Rate { name, per_second } => (name, per_second, true),
        _ => return,
    };
    let (name, x) = place_on_axis(&name);
    let figure = Figure::new(Scale::Emulated);
    let unit = if is_rate { PER_SECOND.to_owned() } else { figure.unit.clone() };
    let (name, side, samples) = (format!("{way}-{name}"), side.name.to_owned(), vec![sample]);
    record.add(Figure { name, x, side, samples, unit, is_rate, ..figure });
}

fn take(record: &mut Record, plan: &Plan, group: &Group, side: Side, line: Line) {
    let scale = scale(group.clock);
    let mut figure =
        Figure { side: side.name.to_owned(), processors: group.processors, ..Figure::new(scale) };
    let place = format!("{}, {}, {} CPU", side.name, scale.name(), group.processors);
    match line {
        Line::Result { name, iterations, nanoseconds } => {
            match plan.sample {
                Sample::PerIteration => {
                    figure.name = name;
                    figure.samples.push(nanoseconds / iterations.max(1.0));
                }
                Sample::Total => {
                    (figure.name, figure.x) = place_on_axis(&name);
                    figure.samples.push(nanoseconds);
                }
            }
            record.add(figure);
        }
        Line::Rate { name, per_second } => {
            (figure.name, figure.x) = match plan.sample {
                Sample::PerIteration => (name, None),
                Sample::Total => place_on_axis(&name),
            };
            let (unit, samples) = (PER_SECOND.to_owned(), vec![per_second]);
            record.add(Figure { unit, samples, is_rate: true, ..figure });
        }
        // By whatever clock the machine ran, sizes and counts are the same figures; they are taken where they repeat.
        Line::Size { .. } | Line::Count { .. } if group.clock == Clock::Host => {}
        Line::Size { name, value } => {
            record.add(Figure { name, samples: vec![value], side: figure.side, ..Figure::new(Scale::Size) });
        }
        Line::Count { name, value } => {
            record.add(Figure { name, samples: vec![value], side: figure.side, ..Figure::new(Scale::Count) });
        }
        Line::Absent(what, why) => record.note(format!("{place}: absent: {what}: {why}")),
        Line::Stopped(what) => {
            let limit = plan.item_limit_s;
            record.note(format!("{place}: {what}: cut off after {limit} s of the guest"));
        }
        Line::Skipped(what) => {
            record.note(format!("{place}: {what}: not tried, a smaller one was cut off"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::both_clocks;
    use crate::bench::side::{HEDDLE, HEDDLE_COROUTINES, HEDDLE_PRIVATE, LINUX, LINUX_COROUTINES};

    #[test]
    fn sides_that_differ_in_words_share_a_machine_and_machines_take_turns() {
        let sides = [HEDDLE, HEDDLE_PRIVATE, HEDDLE_COROUTINES, LINUX, LINUX_COROUTINES];
        let plan = Plan {
            sample: Sample::Total,
            axis: None,
            groups: both_clocks(&sides, &["ring".to_owned()]),
            item_limit_s: 1,
            goals: Vec::new(),
            packages: &[],
        };
        let order: Vec<Vec<&str>> = schedule(&plan, Rounds { emulated: 2, instructions: 0 })
            .into_iter()
            .map(|(_, _, sides)| sides.iter().map(|side| side.name).collect())
            .collect();
        let (ours, private) = (vec!["heddle", "heddle-coroutines"], vec!["heddle-private"]);
        let linux = vec!["linux", "linux-coroutines"];
        let again = [private.clone(), linux.clone(), ours.clone()];
        assert_eq!(order, [&[ours, private, linux][..], &again].concat());
    }
}
