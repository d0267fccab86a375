//! `executors`: heddle-coroutine beside other executors, measured by its own tool on this host.

use anyhow::{Context, Result};

use super::{Experiment, Kind, host};
use crate::bench::goal::{Goal, GoalVerdict};
use crate::bench::record::{Figure, Record, Scale};
use crate::bench::{Interrupt, OURS, Request};

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "executors",
    summary: "heddle-coroutine beside other executors, on this host",
    kind: Kind::Judged(run, judge),
    checked: None,
};

/// A row a quantity and number of threads, the best rival as the reference.
fn run(request: &Request, _runs: usize, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let rounds = request.runs.unwrap_or(request.effort.choose(5, 15, 45));
    let arguments = ["--rounds".to_owned(), rounds.to_string()];
    let value = host::run(("heddle-coroutine-bench", "thread-per-core"), "executors", &arguments, interrupt)?;
    record.reference = "best rival".to_owned();
    for row in value["rows"].as_array().context("no rows")? {
        let (name, unit) = (host::text(row, "row")?, host::text(row, "unit")?);
        let threads = u32::try_from(row["threads"].as_u64().context("no threads")?)?;
        let ratio = row["ratio"].as_f64();
        let scale = if unit == "B" { Scale::Size } else { Scale::Native };
        for (index, side) in row["sides"].as_array().context("no sides")?.iter().enumerate() {
            record.figures.push(Figure {
                name: name.to_owned(),
                side: host::text(side, "side")?.to_owned(),
                unit: unit.to_owned(),
                processors: threads,
                median: side["median"].as_f64(),
                low: side["low"].as_f64(),
                high: side["high"].as_f64(),
                ratio: if index == 0 { ratio } else { None },
                ..Figure::new(scale)
            });
        }
    }
    Ok(Vec::new())
}

/// Judges each row: three times the best rival on one thread, twice on two, and as few bytes.
fn judge(record: &mut Record) {
    let ours = record.figures.iter().filter(|figure| figure.side.starts_with(OURS));
    record.goals = ours
        .map(|figure| {
            let wanted = match (figure.scale, figure.processors) {
                (Scale::Size, _) => 1.0,
                (_, 1) => 3.0,
                _ => 2.0,
            };
            GoalVerdict {
                figure: figure.name.clone(),
                x: None,
                scale: figure.scale,
                processors: figure.processors,
                wanted_ratio: Some(wanted),
                wanted: format!("{wanted} times the best rival"),
                got: figure.ratio,
                met: figure.ratio.is_some_and(|ratio| ratio >= wanted),
            }
        })
        .collect();
}
