//! `asynccall`: the cost of a system call that the caller does not wait for, beside the synchronous form and io_uring.

use super::{Experiment, Kind};
use crate::bench::plan::{Effort, Plan, Sample, both_clocks};
use crate::bench::side::{HEDDLE, LINUX, Side};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "asynccall",
    summary: "a call that is done at once, one that waits, 32 in a batch; synchronous, asynchronous, by io_uring",
    kind: Kind::Machines(plan),
    checked: None,
};

/// The program's ways on each kernel. On Linux the asynchronous form attempts, and waits with epoll.
const SIDES: [Side; 5] = [
    HEDDLE.with("heddle", "by=async"),
    HEDDLE.with("heddle-sync", "by=sync"),
    LINUX.with("linux", "by=uring"),
    LINUX.with("linux-epoll", "by=async"),
    LINUX.with("linux-sync", "by=sync"),
];

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let items = [format!("asynccall n={}", effort.choose(1000, 10_000, 50_000))];
    let groups = both_clocks(&SIDES, &items);
    Plan {
        sample: Sample::PerIteration,
        axis: None,
        groups,
        item_limit_s: 60,
        goals: Vec::new(),
        packages: &[],
    }
}
