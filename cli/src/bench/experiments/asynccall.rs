//! `asynccall`: what a system call costs that the caller does not wait for, beside the synchronous form and io_uring.

use super::{Experiment, Kind};
use crate::bench::plan::{Effort, Plan, Sample, both_clocks};
use crate::bench::side::{HEDDLE, LINUX, Side};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "asynccall",
    summary: "a call that is done at once, one that waits, 32 in a batch; synchronous, asynchronous, by io_uring",
    kind: Kind::Machines(plan),
    is_checked: false,
};

/// The program's ways on each kernel. On Linux the asynchronous form attempts, and waits with epoll.
const SIDES: [Side; 5] = [
    Side { name: "heddle", words: "by=async", ..HEDDLE },
    Side { name: "heddle-sync", words: "by=sync", ..HEDDLE },
    Side { name: "linux", words: "by=uring", ..LINUX },
    Side { name: "linux-epoll", words: "by=async", ..LINUX },
    Side { name: "linux-sync", words: "by=sync", ..LINUX },
];

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let items = [format!("asynccall n={}", effort.choose(1000, 10_000, 50_000))];
    let groups = both_clocks(&SIDES, &items);
    Plan { sample: Sample::PerIteration, axis: None, groups, item_limit_s: 60, goals: Vec::new() }
}
