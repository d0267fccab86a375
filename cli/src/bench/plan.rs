//! What an experiment runs in machines, by name.

use super::goal::{Goal, Wanted};
use super::record::Scale::{Emulated, Instructions};
use super::side::{HEDDLE, HEDDLE_ONE_LOCK, HEDDLE_PRIVATE, LINUX, Side};
use crate::machine::Clock;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As short as shows anything.
    Quick,
    /// As a rule.
    Normal,
    /// Everything that the papers show.
    Full,
}

impl Effort {
    fn choose<T>(self, quick: T, normal: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Normal => normal,
            Self::Full => full,
        }
    }

    /// How often what varies is measured.
    #[must_use]
    pub fn runs(self) -> usize {
        self.choose(3, 5, 9)
    }

    /// How often what repeats is measured: more than once shows that it does.
    #[must_use]
    pub fn instruction_runs(self) -> usize {
        self.choose(1, 1, 3)
    }
}

/// What the samples of an experiment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// The time of one iteration.
    PerIteration,
    /// The time of all; the end of the figure's name is where on the axis it belongs.
    Total,
}

/// Machines under the same conditions, one for each side, that run the same.
#[derive(Clone, Debug)]
pub struct Group {
    /// The machines' clock.
    pub clock: Clock,
    /// Their processors.
    pub processors: u32,
    /// The sides.
    pub sides: Vec<Side>,
    /// The items of the batch.
    pub items: Vec<String>,
}

/// An experiment in machines.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What its samples are.
    pub sample: Sample,
    /// What the plot's axis is.
    pub axis: Option<&'static str>,
    /// What runs in one round.
    pub groups: Vec<Group>,
    /// How long an item may take by the guest's clock.
    pub item_limit_s: u64,
    /// What is wanted.
    pub goals: Vec<Goal>,
}

/// The plan of an experiment that runs in machines only; `None` for another. `processors` are those of the machines
/// that have more than one.
#[must_use]
pub fn plan(name: &str, effort: Effort, processors: Option<u32>) -> Option<Plan> {
    match name {
        "syscalls" => Some(system_calls(effort, processors.unwrap_or(2))),
        "yield" => Some(yields(effort)),
        "ring" => Some(ring(effort)),
        "pipeline" => Some(pipeline(effort)),
        "memory" => Some(memory(effort, processors.unwrap_or(effort.choose(2, 4, 4)))),
        _ => None,
    }
}

/// The same items by both clocks on one processor.
fn both_clocks(sides: &[Side], items: &[String]) -> Vec<Group> {
    [Clock::Instructions, Clock::Host]
        .map(|clock| Group { clock, processors: 1, sides: sides.to_vec(), items: items.to_vec() })
        .into()
}

fn pairs(rounds: u32, processors: u32) -> Vec<String> {
    let mut items = Vec::new();
    for via in ["pipe", "unix", "futex"] {
        // A word of memory that threads or a fork share is not there after exec.
        let partners: &[&str] =
            if via == "futex" { &["thread", "fork"] } else { &["thread", "fork", "exec"] };
        for with in partners {
            items.push(format!("pair n={rounds} via={via} with={with} cpus={processors}"));
        }
    }
    items
}

fn system_calls(effort: Effort, processors: u32) -> Plan {
    let (calls, rounds, processes) =
        (effort.choose(1000, 5000, 20_000), effort.choose(300, 2000, 10_000), effort.choose(20, 100, 500));
    let mut items = vec![format!("calls n={calls}")];
    items.extend(pairs(rounds, 1));
    items.push(format!("processes n={processes}"));
    let sides = [HEDDLE, LINUX];
    let mut groups = both_clocks(&sides, &items);
    if processors > 1 {
        let items = pairs(rounds, 2);
        groups.push(Group { clock: Clock::Host, processors, sides: sides.to_vec(), items });
    }
    let mut goals = Vec::new();
    for (figure, emulated, instructions) in [
        ("null", 1.0, 1.0),
        ("read-4k", 1.0, 1.0),
        ("write-4k", 1.0, 1.0),
        ("page-fault", 1.0, 1.0),
        ("pipe-exec-1", 4.0, 2.0),
        ("futex-thread-1", 3.0, 3.0),
        ("futex-fork-1", 3.0, 3.0),
        ("fork-exec", 2.0, 2.0),
        ("fork-exit", 2.0, 2.0),
        ("thread-create-join", 3.0, 3.0),
    ] {
        goals.push(Goal::new(figure, Emulated, Wanted::Ratio(emulated)));
        goals.push(Goal::new(figure, Instructions, Wanted::Ratio(instructions)));
    }
    Plan { sample: Sample::PerIteration, axis: None, groups, item_limit_s: 120, goals }
}

fn yields(effort: Effort) -> Plan {
    let counts: &[u32] =
        effort.choose(&[10_000, 100_000][..], &[100_000, 1_000_000][..], &[100_000, 1_000_000][..]);
    let items: Vec<_> = counts
        .iter()
        .flat_map(|count| ["exec", "fork"].map(|with| format!("yields n={count} with={with}")))
        .collect();
    let groups = both_clocks(&[HEDDLE, HEDDLE_PRIVATE, LINUX], &items);
    let goals = ["yield-exec-10000", "yield-exec-100000", "yield-exec-1000000"]
        .into_iter()
        .flat_map(|figure| {
            [
                Goal::new(figure, Emulated, Wanted::Ratio(5.0)),
                Goal::new(figure, Instructions, Wanted::Ratio(2.0)),
            ]
        })
        .collect();
    Plan { sample: Sample::PerIteration, axis: None, groups, item_limit_s: 120, goals }
}

fn counts(effort: Effort) -> Vec<u32> {
    let mut counts = vec![1, 2, 10, 50, 200];
    match effort {
        Effort::Quick => counts.extend([800]),
        Effort::Normal => counts.extend([400, 800, 1200, 2000, 4000]),
        Effort::Full => counts.extend((2..=20).map(|hundreds| hundreds * 200)),
    }
    counts
}

fn ring(effort: Effort) -> Plan {
    let mut items = Vec::new();
    for by in ["yield", "futex"] {
        for order in ["created", "shuffled"] {
            for count in counts(effort) {
                items.push(format!("ring n={count} by={by} order={order}"));
            }
        }
    }
    let groups = both_clocks(&[HEDDLE, LINUX], &items);
    let item_limit_s = effort.choose(5, 20, 60);
    Plan { sample: Sample::Total, axis: Some("threads"), groups, item_limit_s, goals: Vec::new() }
}

fn pipeline(effort: Effort) -> Plan {
    let mut items = Vec::new();
    for bytes in [1, 256, 4096] {
        for count in counts(effort) {
            items.push(format!("pipeline n={count} bytes={bytes}"));
        }
    }
    let groups = both_clocks(&[HEDDLE, LINUX], &items);
    let item_limit_s = effort.choose(20, 60, 120);
    Plan { sample: Sample::Total, axis: Some("threads"), groups, item_limit_s, goals: Vec::new() }
}

fn memory(effort: Effort, processors: u32) -> Plan {
    let rounds = effort.choose(300, 2000, 10_000);
    let items = |sides| {
        ["threads", "processes"].map(|with| format!("memory n={rounds} sides={sides} with={with}")).to_vec()
    };
    let sides = [HEDDLE, HEDDLE_ONE_LOCK, LINUX];
    let mut groups = both_clocks(&sides, &items(1));
    for processors in 2..=processors {
        groups.push(Group {
            clock: Clock::Host,
            processors,
            sides: sides.to_vec(),
            items: items(processors),
        });
    }
    Plan { sample: Sample::PerIteration, axis: None, groups, item_limit_s: 120, goals: Vec::new() }
}
