//! `copies`: bytes from one program to another, by channel and size of a piece.

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::plan::{Effort, Group, Plan, Sample, both_clocks};
use crate::bench::record::Scale::{Emulated, Instructions};
use crate::bench::side::{HEDDLE, LINUX};
use crate::machine::Clock;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "copies",
    summary: "bytes from one program to another through pipes, unix and TCP sockets, by size of a piece",
    kind: Kind::Machines(plan),
    checked: None,
};

/// The channels.
const CHANNELS: [&str; 3] = ["pipe", "unix", "tcp"];

fn items(effort: Effort, processors: u32) -> Vec<String> {
    let sizes = effort.choose(
        &[64, 4096, 65_536][..],
        &[64, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576],
        &[64, 256, 1024, 4096, 16_384, 32_768, 65_536, 131_072, 262_144, 1_048_576],
    );
    let bytes: u32 = effort.choose(1 << 20, 16 << 20, 64 << 20);
    let item = |via: &str, size: u32| {
        let pieces = (bytes / size).clamp(16, 20_000);
        format!("copies n={pieces} bytes={size} via={via} cpus={processors}")
    };
    CHANNELS.iter().flat_map(|via| sizes.iter().map(move |&size| item(via, size))).collect()
}

fn plan(effort: Effort, processors: Option<u32>) -> Plan {
    let processors = processors.unwrap_or(2);
    let sides = [HEDDLE, LINUX];
    let mut groups = both_clocks(&sides, &items(effort, 1));
    if processors > 1 {
        groups.push(Group {
            clock: Clock::Host,
            processors,
            sides: sides.to_vec(),
            items: items(effort, 2),
            rounds: usize::MAX,
        });
    }
    let figures = ["pipe-4096-1", "pipe-65536-1", "unix-65536-1", "tcp-65536-1"];
    let goals = figures.into_iter().flat_map(|figure| {
        [Instructions, Emulated].map(|scale| Goal::new(figure, scale, Wanted::Ratio(1.0)))
    });
    Plan {
        sample: Sample::PerIteration,
        axis: None,
        groups,
        item_limit_s: 120,
        goals: goals.collect(),
        packages: &[],
    }
}
