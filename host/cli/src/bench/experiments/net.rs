//! `net`: TCP, UDP and UNIX sockets within the machine: round trips, connections, streams, idle connections.

use super::{Experiment, Kind};
use crate::bench::goal::{Goal, Wanted};
use crate::bench::plan::{Effort, Plan, Sample, both_clocks};
use crate::bench::record::Scale::{Emulated, Instructions};
use crate::bench::side::{HEDDLE, LINUX};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "net",
    summary: "TCP and UDP over the loopback: round trips, connections, streams, idle connections, nginx, redis",
    kind: Kind::Machines(plan),
    checked: Some(repeats),
};

/// The programs that serve and ask.
const PACKAGES: &[&str] = &["nginx-light", "wrk", "redis-server", "redis-tools"];

/// The goals, as a multiple of Linux.
const GOALS: [(&str, f64); 13] = [
    ("tcp-1", 2.0),
    ("tcp-1024", 2.0),
    ("udp-1", 2.0),
    ("udp-1024", 2.0),
    ("tcp-connect", 2.0),
    ("tcp-stream-1", 1.0),
    ("tcp-stream-16", 1.0),
    ("tcp-beside-10", 1.0),
    ("tcp-beside-1000", 1.0),
    ("tcp-beside-10000", 1.0),
    ("nginx", 1.0),
    ("redis-get", 1.0),
    ("redis-set", 1.0),
];

/// Streams end their turns where the length of a path says, and servers when a timer does.
fn repeats(item: &str) -> bool {
    item.starts_with("net ") && !item.contains("what=stream")
}

fn plan(effort: Effort, _processors: Option<u32>) -> Plan {
    let rounds = effort.choose(300, 2000, 10_000);
    let mut items = Vec::new();
    for via in ["tcp", "udp", "unix"] {
        for bytes in [1, 1024] {
            items.push(format!("net n={rounds} what=echo via={via} bytes={bytes}"));
        }
    }
    items.push(format!("net n={} what=connect", effort.choose(200, 1000, 5000)));
    for connections in [1, 16] {
        let pieces = effort.choose(160, 1600, 8000);
        items.push(format!("net n={pieces} what=stream connections={connections}"));
    }
    for idle in effort.choose(&[10, 1000][..], &[10, 1000, 10_000], &[10, 1000, 10_000]) {
        items.push(format!("net n={rounds} what=idle idle={idle}"));
    }
    items.push(format!("servers n={} what=redis", effort.choose(1000, 5000, 20_000)));
    items.push(format!("servers n={} what=nginx", effort.choose(1, 2, 5)));
    let goals = GOALS.into_iter().flat_map(|(figure, wanted)| {
        [Emulated, Instructions].map(|scale| Goal::new(figure, scale, Wanted::Ratio(wanted)))
    });
    Plan {
        packages: PACKAGES,
        sample: Sample::PerIteration,
        axis: None,
        groups: both_clocks(&[HEDDLE, LINUX], &items),
        item_limit_s: 120,
        goals: goals.collect(),
    }
}
