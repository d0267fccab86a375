//! `ranges`: heddle-range-lock beside other range locks, measured by its own tool on this host.

use anyhow::{Context, Result};

use super::{Experiment, Kind, host};
use crate::bench::goal::Goal;
use crate::bench::record::{Figure, Record, Scale};
use crate::bench::{Interrupt, OURS, Request};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ranges",
    summary: "heddle-range-lock beside other range locks, on this host",
    kind: Kind::Own(run),
    is_checked: false,
};

const PACKAGE: &str = "heddle-range-lock-bench";

/// A row a workload and number of threads; rates become times, so that less is better everywhere.
fn run(request: &Request, _runs: usize, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let flag = request.effort.choose(Some("--quick"), None, Some("--full"));
    let arguments: Vec<String> = flag.into_iter().map(str::to_owned).collect();
    let value = host::run(PACKAGE, PACKAGE, &arguments, interrupt)?;
    record.reference = "best rival".to_owned();
    for parameter in value["parameters"].as_array().into_iter().flatten() {
        if let (Some(name), Some(value)) = (parameter[0].as_str(), parameter[1].as_str()) {
            record.note(format!("{name}: {value}"));
        }
    }
    for row in value["figures"].as_array().context("no figures")? {
        let time = |key: &str| row[key].as_f64().filter(|rate| *rate > 0.0).map(|rate| 1e9 / rate);
        let is_preempted = row["preempted"].as_bool().unwrap_or(false);
        let mark = if is_preempted { ", more threads than cores" } else { "" };
        record.figures.push(Figure {
            name: format!("{}{mark}", host::text(row, "workload")?),
            side: host::text(row, "side")?.to_owned(),
            unit: "ns a lock and unlock".to_owned(),
            processors: u32::try_from(row["threads"].as_u64().context("no threads")?)?,
            median: time("median_per_second"),
            low: time("max_per_second"),
            high: time("min_per_second"),
            ..Figure::new(Scale::Native)
        });
    }
    let ratios: Vec<_> = record.figures.iter().map(|figure| ratio(record, figure)).collect();
    for (figure, ratio) in record.figures.iter_mut().zip(ratios) {
        figure.ratio = ratio;
    }
    Ok(Vec::new())
}

/// How many times our figure is as good as the best rival's; nothing for a rival's.
fn ratio(record: &Record, ours: &Figure) -> Option<f64> {
    let is_rival = |figure: &&Figure| figure.side != ours.side && figure.is_comparable(ours);
    let rivals = record.figures.iter().filter(is_rival).filter_map(|figure| figure.median);
    (ours.side == OURS).then(|| Some(rivals.min_by(f64::total_cmp)? / ours.median?)).flatten()
}
