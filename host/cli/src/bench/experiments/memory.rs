//! `memory`: mapping, touching and unmapping disjoint memory from several CPUs at once; and what idle
//! processes cost in memory.

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::plan::{Effort, Group, Plan, Sample, both_clocks};
use crate::bench::record::Scale;
use crate::bench::side::{HEDDLE, HEDDLE_ONE_LOCK, HEDDLE_PRIVATE, LINUX};
use crate::machine::Clock;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "memory",
    summary: "mapping, touching and unmapping disjoint memory on 1 to 4 CPUs; 1,000 idle processes",
    kind: Kind::Machines(plan),
    checked: None,
};

fn plan(effort: Effort, processors: Option<u32>) -> Plan {
    let rounds = effort.choose(300, 2000, 10_000);
    let items = |sides| {
        ["threads", "processes"].map(|with| format!("memory n={rounds} sides={sides} with={with}")).to_vec()
    };
    let sides = [HEDDLE, HEDDLE_ONE_LOCK, LINUX];
    // The cost of idle processes is a size, which needs no second clock.
    let idle_processes = effort.choose(100, 1000, 1000);
    let idle = |with| format!("idle n={idle_processes} with={with}");
    let mut groups = both_clocks(&sides, &items(1));
    groups[0].sides.insert(1, HEDDLE_PRIVATE);
    groups[0].items.extend(["exec", "fork"].map(idle));
    let most = processors.unwrap_or(effort.choose(2, 4, 4));
    let is_shown = |processors: &u32| effort != Effort::Normal || *processors != 3 || most == 3;
    for processors in (2..=most).filter(is_shown) {
        groups.push(Group {
            clock: Clock::Host,
            processors,
            sides: sides.to_vec(),
            items: items(processors),
            rounds: usize::MAX,
        });
    }
    let goals = ["idle-exec-beyond-pages", "idle-fork-beyond-pages"]
        .map(|figure| Goal::new(figure, Scale::Size, Wanted::AtMost(65_536.0)));
    Plan {
        sample: Sample::PerIteration,
        axis: None,
        groups,
        item_limit_s: 120,
        goals: goals.to_vec(),
        packages: &[],
    }
}
