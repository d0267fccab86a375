//! `pipeline`: experiment B of papers 1 and 2, N in a row joined by pipes.

use super::{Experiment, Kind};
use crate::bench::goal::coroutines_ahead;
use crate::bench::plan::{Effort, Plan, Sample, both_clocks};
use crate::bench::side::{HEDDLE, HEDDLE_COROUTINES, LINUX, LINUX_COROUTINES};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "pipeline",
    summary: "papers 1 and 2, B: N threads or coroutines joined by pipes",
    kind: Kind::Machines(plan),
    checked: Some(repeats),
};

/// With more threads the count hangs on where their turns end, which a longer path of the program moves.
const REPEATING_COUNT: u32 = 10;

fn repeats(item: &str) -> bool {
    let count = item.split_whitespace().find_map(|word| word.strip_prefix("n="));
    count.and_then(|count| count.parse().ok()).is_some_and(|count: u32| count <= REPEATING_COUNT)
}

/// The figures, each a line of the plot.
const FIGURES: [&str; 3] = ["pipeline-1", "pipeline-256", "pipeline-4096"];

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let mut items = Vec::new();
    for bytes in [1, 256, 4096] {
        for count in effort.counts() {
            items.push(format!("pipeline n={count} bytes={bytes}"));
        }
    }
    let groups = both_clocks(&[HEDDLE, HEDDLE_COROUTINES, LINUX, LINUX_COROUTINES], &items);
    let item_limit_s = effort.choose(20, 60, 120);
    Plan {
        sample: Sample::Total,
        axis: Some("threads or coroutines"),
        groups,
        item_limit_s,
        goals: coroutines_ahead(&FIGURES),
        packages: &[],
    }
}
