//! `yield`: paper 5's table.

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::plan::{Effort, Group, Plan, Sample, both_clocks};
use crate::bench::record::Scale::{Emulated, Instructions};
use crate::bench::side::{HEDDLE, HEDDLE_PRIVATE, HEDDLE_TAGS, LINUX};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "yield",
    summary: "paper 5: two processes that yield to each other",
    kind: Kind::Machines(plan),
    checked: Some(|_| true),
};

/// The figures with a goal, on every clock that measured them.
const GOALS: [&str; 3] = ["yield-exec-10000", "yield-exec-100000", "yield-exec-1000000"];

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let items = |count| ["exec", "fork"].map(|with| format!("yields n={count} with={with}"));
    let both = |counts: &[u32]| {
        let items: Vec<_> = counts.iter().copied().flat_map(items).collect();
        both_clocks(&[HEDDLE, HEDDLE_TAGS, HEDDLE_PRIVATE, LINUX], &items)
    };
    let groups = match effort {
        Effort::Quick => both(&[10_000, 100_000]),
        Effort::Full => both(&[100_000, 1_000_000]),
        Effort::Normal => {
            // A million take a minute a machine, and differ little from run to run.
            let once = both(&[1_000_000]).into_iter().map(|group| Group { rounds: 1, ..group });
            both(&[100_000]).into_iter().chain(once).collect()
        }
    };
    let goals = GOALS.into_iter().flat_map(|figure| {
        [Goal::new(figure, Emulated, Wanted::Ratio(5.0)), Goal::new(figure, Instructions, Wanted::Ratio(2.0))]
    });
    Plan {
        sample: Sample::PerIteration,
        axis: None,
        groups,
        item_limit_s: 240,
        goals: goals.collect(),
        packages: &[],
    }
}
