//! `ring`: experiment A of papers 1 and 2, N that take turns by a shared word.

use super::{Experiment, Kind};
use crate::bench::goal::coroutines_ahead;
use crate::bench::plan::{Effort, Plan, Sample, both_clocks};
use crate::bench::side::{HEDDLE, HEDDLE_COROUTINES, LINUX, LINUX_COROUTINES};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ring",
    summary: "papers 1 and 2, A: N threads or coroutines that take turns",
    kind: Kind::Machines(plan),
    checked: None,
};

/// The figures, each a line of the plot.
const FIGURES: [&str; 4] =
    ["ring-yield-created", "ring-yield-shuffled", "ring-key-created", "ring-key-shuffled"];

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let mut items = Vec::new();
    for by in ["yield", "key"] {
        for order in ["created", "shuffled"] {
            for count in effort.counts() {
                items.push(format!("ring n={count} by={by} order={order}"));
            }
        }
    }
    let groups = both_clocks(&[HEDDLE, HEDDLE_COROUTINES, LINUX, LINUX_COROUTINES], &items);
    // Turns by yielding are quadratic where the next thread of the ring is not the next to yield.
    let item_limit_s = effort.choose(2, 5, 60);
    Plan {
        sample: Sample::Total,
        axis: Some("threads or coroutines"),
        groups,
        item_limit_s,
        goals: coroutines_ahead(&FIGURES),
        packages: &[],
    }
}
