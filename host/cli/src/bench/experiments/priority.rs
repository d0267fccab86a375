//! `priority`: two processes with urgent and background work, and how soon what is urgent runs.

use super::{Experiment, Kind};
use crate::bench::plan::{Effort, Plan, Sample, both_clocks};
use crate::bench::side::{HEDDLE, LINUX, Side};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "priority",
    summary: "from ready to running of what is urgent: coroutines relaxed and strict, SCHED_FIFO threads",
    kind: Kind::Machines(plan),
    checked: None,
};

const SIDES: [Side; 5] = [
    HEDDLE.with("heddle", "by=coroutine policy=strict"),
    HEDDLE.with("heddle-relaxed", "by=coroutine policy=relaxed"),
    HEDDLE.with("heddle-threads", "by=thread"),
    LINUX.with("linux", "by=thread"),
    LINUX.with("linux-coroutines", "by=coroutine"),
];

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let items = [format!("priority n={}", effort.choose(100, 500, 2000))];
    let groups = both_clocks(&SIDES, &items);
    Plan {
        sample: Sample::PerIteration,
        axis: None,
        groups,
        item_limit_s: 120,
        goals: Vec::new(),
        packages: &[],
    }
}
