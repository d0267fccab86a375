//! `server`: paper 3's matrix server in four forms, under a load that omits nothing.

mod far;

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::guest::Runner;
use crate::bench::machines::{self, Rounds};
use crate::bench::plan::{Effort, Group, Plan, Sample};
use crate::bench::progress::Progress;
use crate::bench::record::Scale::{Count, Emulated, Instructions};
use crate::bench::record::{Figure, Record};
use crate::bench::side::{HEDDLE, LINUX, Side};
use crate::bench::{Interrupt, Request};
use crate::machine::Clock;

use anyhow::Result;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "server",
    summary: "paper 3's server: coroutines, threads, epoll and tokio against connections, and by priority",
    kind: Kind::Own(run),
    checked: None,
};

const PROGRAM: &str = "heddle-bench-server";
/// Three threads for each of 4,096 connections need more than other experiments.
const MEMORY_BYTES: u64 = 1536 << 20;
const ITEM_LIMIT_S: u64 = 300;
const AXIS: &str = "connections; of 'load' figures: priority, 1 the most urgent";

const SIDES: [Side; 9] = [
    HEDDLE.with("heddle", "form=coroutines strict=1"),
    HEDDLE.with("heddle-relaxed", "form=coroutines"),
    HEDDLE.with("heddle-threads", "form=threads"),
    HEDDLE.with("heddle-epoll", "form=epoll"),
    HEDDLE.with("heddle-tokio", "form=tokio"),
    LINUX.with("linux-threads", "form=threads"),
    LINUX.with("linux-epoll", "form=epoll"),
    LINUX.with("linux-tokio", "form=tokio"),
    LINUX.with("linux-coroutines", "form=coroutines"),
];
/// Whom coroutines are to be ahead of, and how far behind throughput may be where the clients' timers decide it.
const RIVALS: [&str; 2] = ["linux-threads", "linux-tokio"];
const THROUGHPUT: f64 = 0.99;
/// How much slower urgent connections may be beside others than alone.
const KEPT: f64 = 1.2;

/// Figure 5.1 on a machine: `processors` of 0 is one processor that server and generator share.
fn connections(effort: Effort, clock: Clock, processors: u32) -> Group {
    let counts = match (effort, clock) {
        (Effort::Quick, Clock::Instructions) => &[1, 16, 256][..],
        (Effort::Quick, Clock::Host) => &[1, 64],
        (Effort::Normal, Clock::Instructions) => &[1, 4, 16, 64, 256, 1024, 4096],
        (Effort::Normal, Clock::Host) => &[1, 16, 256, 4096],
        (Effort::Full, _) => &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
    };
    // Few connections have few requests in a second.
    let ms = |count: u32| match clock {
        Clock::Instructions => (effort.choose(20_000, 40_000, 100_000) / count).clamp(500, 10_000),
        Clock::Host => effort.choose(1000, 2000, 10_000),
    };
    let item = |rows, count| {
        let cpus = if processors == 0 { String::new() } else { format!(" cpus={processors}") };
        format!("server what=connections rows={rows} n={count} ms={}{cpus}", ms(count))
    };
    let items = [1, 20].into_iter().flat_map(|rows| counts.iter().map(move |&count| item(rows, count)));
    group(effort, clock, processors, items.collect())
}

/// Figure 5.2.
fn priorities(effort: Effort, clock: Clock, processors: u32) -> Group {
    let cpus = if processors == 0 { String::new() } else { format!(" cpus={processors}") };
    let item =
        |count: &u32| format!("server what=priorities n={count} ms={}{cpus}", effort.choose(500, 1000, 5000));
    let counts = effort.choose(&[128][..], &[128, 1024], &[128, 1024]);
    group(effort, clock, processors, counts.iter().map(item).collect())
}

/// Figures that the paper could not show, by instructions, of the forms that can do each.
fn beyond(effort: Effort) -> Vec<Group> {
    let of = |names: &[&str], what: &str| {
        let item = format!("server what={what} ms={}", effort.choose(300, 1000, 3000));
        let sides = SIDES.into_iter().filter(|side| names.is_empty() || names.contains(&side.name)).collect();
        Group { sides, ..group(effort, Clock::Instructions, 0, vec![item]) }
    };
    vec![
        of(&[], "flood"),
        of(&[], "lock"),
        of(&["heddle", "heddle-relaxed", "heddle-threads", "linux-threads", "linux-coroutines"], "raise"),
        of(&["heddle", "heddle-threads", "linux-threads"], "two"),
    ]
}

/// An emulated item is a distribution of thousands of requests, so that the normal form measures each once.
fn group(effort: Effort, clock: Clock, processors: u32, items: Vec<String>) -> Group {
    let rounds = match (effort, clock) {
        (Effort::Normal, Clock::Host) => 1,
        _ => usize::MAX,
    };
    Group { clock, processors: processors + 1, sides: SIDES.to_vec(), items, rounds }
}

fn goals() -> Vec<Goal> {
    let mut goals = Vec::new();
    for (scale, processors) in [(Instructions, 1), (Emulated, 2), (Emulated, 3)] {
        for rival in RIVALS {
            for figure in [
                "matrix1-throughput",
                "matrix1-median",
                "matrix1-p99",
                "matrix1-p99.9",
                "matrix20-throughput",
                "matrix20-median",
                "matrix20-p99",
                "matrix20-p99.9",
            ] {
                let least = if figure.ends_with("throughput") { THROUGHPUT } else { 1.0 };
                let wanted = Wanted::Everywhere("heddle", least, rival);
                goals.push(Goal { processors, ..Goal::new(figure, scale, wanted) });
            }
        }
    }
    goals.extend(BESIDE.map(|(name, ..)| Goal::new(name, Count, Wanted::AtMost(KEPT))));
    goals
}

/// Pairs of figures: urgent connections beside others, and alone. How many times the second the first is.
const BESIDE: [(&str, &str, &str); 6] = [
    ("p99 of the most urgent at 150 %, times alone, of 128", "of128-load150-p99", "of128-load150-alone-p99"),
    (
        "p99 of the most urgent at 150 %, times alone, of 1024",
        "of1024-load150-p99",
        "of1024-load150-alone-p99",
    ),
    ("p99 of urgent beside a flood, times alone", "flood-beside-p99", "flood-alone-p99"),
    ("p99 of urgent that share a lock, times alone", "lock-beside-p99", "lock-alone-p99"),
    ("p99 of urgent in the strict process, times alone", "two-strict-beside-p99", "two-strict-alone-p99"),
    ("p99 of urgent in the relaxed process, times alone", "two-relaxed-beside-p99", "two-relaxed-alone-p99"),
];

/// How much slower the most urgent connections are beside all others, by instructions.
fn compare_with_alone(record: &mut Record) {
    let of = |side: &str, name: &str| {
        let is_meant = |figure: &&Figure| {
            figure.side == side
                && figure.name == name
                && figure.scale == Instructions
                && figure.x == Some(1.0)
        };
        record.figures.iter().find(is_meant).map(|figure| figure.samples.clone())
    };
    let mut all = Vec::new();
    for side in SIDES {
        for (name, beside, alone) in BESIDE {
            if let (Some(beside), Some(alone)) = (of(side.name, beside), of(side.name, alone)) {
                let samples = beside.iter().zip(&alone).map(|(beside, alone)| beside / alone).collect();
                let (name, side) = (name.to_owned(), side.name.to_owned());
                all.push(Figure { name, side, samples, ..Figure::new(Count) });
            }
        }
    }
    all.into_iter().for_each(|figure| record.add(figure));
}

/// Groups that are measured by time come first: instructions are the same on a host that is used again.
fn plan(effort: Effort, processors: Option<u32>) -> Plan {
    let others =
        processors.map_or_else(|| effort.choose(vec![1], vec![1, 2], vec![1, 2, 4]), |one| vec![one]);
    let mut groups = Vec::new();
    for processors in others {
        groups.push(connections(effort, Clock::Host, processors));
        groups.push(priorities(effort, Clock::Host, processors));
    }
    groups.push(connections(effort, Clock::Instructions, 0));
    groups.push(priorities(effort, Clock::Instructions, 0));
    groups.extend(beyond(effort));
    Plan {
        sample: Sample::Total,
        axis: Some(AXIS),
        groups,
        item_limit_s: ITEM_LIMIT_S,
        goals: goals(),
        packages: &[],
    }
}

fn run(request: &Request, runs: usize, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let plan = plan(request.effort, request.processors);
    record.axis = plan.axis.map(str::to_owned);
    record.reference = RIVALS[0].to_owned();
    let rounds = Rounds { emulated: runs, instructions: request.effort.instruction_runs() };
    let runner = Runner::of(PROGRAM, plan.packages, MEMORY_BYTES, interrupt)?;
    let progress = Progress::new(machines::steps(&plan, rounds))?;
    far::run(request.effort, record, interrupt)?;
    machines::run(&plan, rounds, &runner, record, &progress, interrupt)?;
    compare_with_alone(record);
    Ok(plan.goals)
}
