//! Carries a plan out: round after round, side after side.

use anyhow::Result;

use super::guest::{Boot, Line, Runner};
use super::plan::{Group, Plan, Sample};
use super::progress::Progress;
use super::record::{Figure, Record};
use super::side::{Side, scale};
use super::{Interrupt, record::Scale};
use crate::machine::Clock;

/// How long a machine may take by the host's clock, its boot and all its items.
const MACHINE_LIMIT_S: u64 = 900;

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
        match group.clock {
            Clock::Host => self.emulated,
            Clock::Instructions => self.instructions,
        }
    }

    /// How many machines a plan boots.
    #[must_use]
    pub fn machines(self, plan: &Plan) -> usize {
        plan.groups.iter().map(|group| group.sides.len() * self.of(group)).sum()
    }
}

/// Runs everything into `record`. Sides alternate, and which is first alternates too, so that what disturbs the host
/// for a while disturbs all sides.
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
    for round in 0..rounds.emulated.max(rounds.instructions) {
        for group in plan.groups.iter().filter(|group| round < rounds.of(group)) {
            let mut sides = group.sides.clone();
            sides.rotate_left(round % group.sides.len());
            for side in sides {
                interrupt.check()?;
                progress.show(format!(
                    "{} on {}, {} CPU, round {}",
                    side.name,
                    scale(group.clock).name(),
                    group.processors,
                    round + 1
                ));
                let boot = Boot {
                    side,
                    clock: group.clock,
                    processors: group.processors,
                    items: group.items.clone(),
                    item_limit_s: plan.item_limit_s,
                    limit_s: MACHINE_LIMIT_S,
                };
                for line in runner.run(&boot)? {
                    take(record, plan, group, side, line);
                }
                progress.step();
            }
        }
    }
    Ok(())
}

fn take(record: &mut Record, plan: &Plan, group: &Group, side: Side, line: Line) {
    let scale = scale(group.clock);
    let mut figure = Figure {
        name: String::new(),
        x: None,
        side: side.name.to_owned(),
        scale,
        unit: if scale == Scale::Instructions { "instructions" } else { "ns" }.to_owned(),
        processors: group.processors,
        samples: Vec::new(),
        median: None,
        low: None,
        high: None,
        ratio: None,
        absent: None,
    };
    match line {
        Line::Result { name, iterations, nanoseconds } => {
            match plan.sample {
                Sample::PerIteration => {
                    figure.name = name;
                    figure.samples.push(nanoseconds / iterations.max(1.0));
                }
                Sample::Total => {
                    let (series, x) = name.rsplit_once('-').unwrap_or((&name, ""));
                    figure.name = series.to_owned();
                    figure.x = x.parse().ok();
                    figure.samples.push(nanoseconds);
                }
            }
            record.add(figure);
        }
        Line::Count { name, value } => {
            record.note(format!("{}, {}: {name} {value}", side.name, scale.name()));
        }
        Line::Absent(what, why) => {
            record.note(format!("{}, {}: absent: {what}: {why}", side.name, scale.name()));
        }
        Line::Stopped(what) => {
            let limit = plan.item_limit_s;
            let note =
                format!("{}, {}: {what}: cut off after {limit} s of the guest", side.name, scale.name());
            record.note(note);
        }
    }
}
