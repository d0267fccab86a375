//! `spaces`: real programs, and how often a switch between them changes the page table.

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::plan::{Effort, Plan, Sample, both_clocks};
use crate::bench::record::Scale::{Count, Emulated};
use crate::bench::side::{
    HEDDLE, HEDDLE_KEYS, HEDDLE_NONE, HEDDLE_ONE_SLOT, HEDDLE_PRIVATE, HEDDLE_TAGS, HEDDLE_USER, LINUX,
};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "spaces",
    summary: "paper 5 with real programs: switches, page-table changes, flushes and time under each isolation",
    kind: Kind::Machines(plan),
    checked: None,
};

/// The packages that the workloads need.
const PACKAGES: &[&str] = &[
    "bash",
    "coreutils",
    "grep",
    "sed",
    "gcc",
    "libc6-dev",
    "make",
    "python3",
    "redis-server",
    "redis-tools",
    "nodejs",
    "postgresql-15",
    "util-linux",
    "fzf",
];

/// A workload.
struct Load {
    /// Its name, as `spaces.sh` has it.
    name: &'static str,
    /// The figure of its time.
    time: &'static str,
    /// The figure of its share of switches that change the page table. `None` where two that claim one slot talk to
    /// each other: then there is no goal.
    share: Option<&'static str>,
    quick: u32,
    ordinary: u32,
}

macro_rules! load {
    ($name:literal, $quick:literal, $ordinary:literal) => {
        Load {
            name: $name,
            time: concat!("spaces-", $name),
            share: Some(concat!("spaces-", $name, ":percent_changed")),
            quick: $quick,
            ordinary: $ordinary,
        }
    };
    ($name:literal, $quick:literal, $ordinary:literal, one_slot) => {
        Load { share: None, ..load!($name, $quick, $ordinary) }
    };
}

const LOADS: [Load; 13] = [
    load!("pipeline", 500, 5000),
    load!("commands", 20, 200),
    load!("subshells", 20, 200),
    load!("script", 5, 50),
    load!("gcc", 1, 5, one_slot),
    load!("make", 1, 2, one_slot),
    load!("python", 200, 3000),
    load!("pool", 50, 1000, one_slot),
    load!("redis", 200, 3000),
    load!("postgres", 20, 300),
    load!("postgres4", 5, 100, one_slot),
    load!("node", 20, 500, one_slot),
    load!("go", 200, 3000),
];

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let item = |load: &Load| {
        format!("spaces load={} n={}", load.name, effort.choose(load.quick, load.ordinary, load.ordinary))
    };
    let items: Vec<_> = LOADS.iter().map(item).collect();
    let few = [HEDDLE, HEDDLE_TAGS, HEDDLE_PRIVATE, LINUX];
    let all =
        [HEDDLE, HEDDLE_TAGS, HEDDLE_NONE, HEDDLE_USER, HEDDLE_PRIVATE, HEDDLE_KEYS, HEDDLE_ONE_SLOT, LINUX];
    let groups = both_clocks(effort.choose(&few[..], &all[..], &all[..]), &items);
    let goals = LOADS.iter().flat_map(|load| {
        let share = load.share.map(|share| Goal::new(share, Count, Wanted::AtMost(5.0)));
        [Some(Goal::new(load.time, Emulated, Wanted::Ratio(1.5))), share].into_iter().flatten()
    });
    Plan {
        sample: Sample::PerIteration,
        axis: None,
        groups,
        item_limit_s: 300,
        goals: goals.collect(),
        packages: PACKAGES,
    }
}
