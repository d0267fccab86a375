//! `priority`: two processes with urgent and background work, and how soon what is urgent runs; and the same of two
//! processes of one user at pairs of levels.

use super::{Experiment, Kind};
use crate::bench::plan::{Effort, Group, Plan, Sample, both_clocks};
use crate::bench::side::{HEDDLE, LINUX, Side};
use crate::machine::Clock;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "priority",
    summary: "from ready to running of what is urgent: coroutines relaxed and strict, SCHED_FIFO threads",
    kind: Kind::Machines(plan),
    checked: None,
};

/// The levels of two processes, the more urgent first: neighbours and others, urgent, ordinary and background.
const PAIRS: [(u32, u32); 7] = [(20, 21), (24, 40), (31, 32), (32, 33), (42, 43), (10, 32), (32, 50)];
const ROOT: u32 = 0;
const NOBODY: u32 = 65534;

const SIDES: [Side; 5] = [
    HEDDLE.with("heddle", "by=coroutine policy=strict"),
    HEDDLE.with("heddle-relaxed", "by=coroutine policy=relaxed"),
    HEDDLE.with("heddle-threads", "by=thread"),
    LINUX.with("linux", "by=thread"),
    LINUX.with("linux-coroutines", "by=coroutine"),
];

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let items = [format!("priority n={}", effort.choose(100, 500, 2000))];
    let mut groups = both_clocks(&SIDES, &items);
    let pair = |(urgent, other), user| {
        format!("order urgent={urgent} other={other} user={user} n={}", effort.choose(50, 200, 1000))
    };
    let pairs = PAIRS.iter().flat_map(|&levels| [ROOT, NOBODY].map(|user| pair(levels, user)));
    // Threads have no such levels, and there is one level on Linux.
    groups.push(Group {
        clock: Clock::Instructions,
        processors: 1,
        sides: SIDES[..2].to_vec(),
        items: pairs.collect(),
        rounds: usize::MAX,
    });
    Plan {
        sample: Sample::PerIteration,
        axis: None,
        groups,
        item_limit_s: 120,
        goals: Vec::new(),
        packages: &[],
    }
}
