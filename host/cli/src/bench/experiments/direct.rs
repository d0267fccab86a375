//! `direct`: paper 5's next step, calls in place of system calls, beside system calls of the same kernel and of Linux.

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::plan::{Effort, Plan, Sample, both_clocks};
use crate::bench::record::Scale::Emulated;
use crate::bench::side::{HEDDLE, HEDDLE_DIRECT, LINUX};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "direct",
    summary: "paper 5: calls in place of system calls, for a call without work, a pipe's round trip and yielding",
    kind: Kind::Machines(plan),
    checked: None,
};

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let calls = effort.choose(2000, 20_000, 100_000);
    let rounds = effort.choose(500, 5000, 20_000);
    let items = [
        format!("calls n={calls} only=null"),
        format!("calls n={calls} only=read-4k"),
        format!("pair n={rounds} via=pipe with=thread cpus=1"),
        format!("pair n={rounds} via=pipe with=exec cpus=1"),
        format!("yields n={rounds} with=exec"),
    ];
    Plan {
        sample: Sample::PerIteration,
        axis: None,
        groups: both_clocks(&[HEDDLE, HEDDLE_DIRECT, LINUX], &items),
        item_limit_s: 120,
        goals: vec![Goal::new("null", Emulated, Wanted::Everywhere(HEDDLE_DIRECT.name, 1.0, HEDDLE.name))],
        packages: &[],
    }
}
