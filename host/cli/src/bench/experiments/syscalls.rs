//! `syscalls`: calls of one side, calls of two sides between threads, forked and exec'ed processes, making and ending
//! threads and processes.

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::plan::{Effort, Group, Plan, Sample, both_clocks};
use crate::bench::record::Scale::{Emulated, Instructions};
use crate::bench::side::{HEDDLE, LINUX};
use crate::machine::Clock;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "syscalls",
    summary: "system calls, pairs of threads and processes, making and ending them",
    kind: Kind::Machines(plan),
    checked: Some(|_| true),
};

/// The means by which two sides exchange messages.
const CHANNELS: [&str; 6] = ["pipe", "unix", "epoll", "eventfd", "futex", "signal"];
/// Where the other side is.
const PARTNERS: [&str; 3] = ["thread", "fork", "exec"];

/// The goals by time and by instructions, as a multiple of Linux.
const GOALS: [(&str, f64, f64); 10] = [
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
];

fn pairs(rounds: u32, processors: u32) -> Vec<String> {
    let item = |via, with| format!("pair n={rounds} via={via} with={with} cpus={processors}");
    CHANNELS.iter().flat_map(|via| PARTNERS.map(|with| item(via, with))).collect()
}

fn plan(effort: Effort, processors: Option<u32>) -> Plan {
    let processors = processors.unwrap_or(2);
    let calls = effort.choose(1000, 5000, 20_000);
    let rounds = effort.choose(300, 2000, 10_000);
    let processes = effort.choose(20, 100, 500);
    let mut items = vec![format!("calls n={calls}")];
    items.extend(pairs(rounds, 1));
    items.push(format!("processes n={processes}"));
    let sides = [HEDDLE, LINUX];
    let mut groups = both_clocks(&sides, &items);
    if processors > 1 {
        groups.push(Group {
            clock: Clock::Host,
            processors,
            sides: sides.to_vec(),
            items: pairs(rounds, 2),
            rounds: usize::MAX,
        });
    }
    let goals = GOALS.into_iter().flat_map(|(figure, emulated, instructions)| {
        [
            Goal::new(figure, Emulated, Wanted::Ratio(emulated)),
            Goal::new(figure, Instructions, Wanted::Ratio(instructions)),
        ]
    });
    Plan {
        sample: Sample::PerIteration,
        axis: None,
        groups,
        item_limit_s: 120,
        goals: goals.collect(),
        packages: &[],
    }
}
