//! `yield`: paper 5's table.

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::plan::{Effort, Plan, Sample, both_clocks};
use crate::bench::record::Scale::{Emulated, Instructions};
use crate::bench::side::{HEDDLE, HEDDLE_PRIVATE, LINUX};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "yield",
    summary: "paper 5: two processes that yield to each other",
    kind: Kind::Machines(plan),
    checked: Some(|_| true),
};

/// What is wanted wherever it was measured.
const GOALS: [&str; 3] = ["yield-exec-10000", "yield-exec-100000", "yield-exec-1000000"];

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let counts: &[u32] =
        effort.choose(&[10_000, 100_000][..], &[100_000, 1_000_000][..], &[100_000, 1_000_000][..]);
    let item = |count| ["exec", "fork"].map(|with| format!("yields n={count} with={with}"));
    let items: Vec<_> = counts.iter().flat_map(item).collect();
    let groups = both_clocks(&[HEDDLE, HEDDLE_PRIVATE, LINUX], &items);
    let goals = GOALS.into_iter().flat_map(|figure| {
        [Goal::new(figure, Emulated, Wanted::Ratio(5.0)), Goal::new(figure, Instructions, Wanted::Ratio(2.0))]
    });
    Plan { sample: Sample::PerIteration, axis: None, groups, item_limit_s: 120, goals: goals.collect() }
}
