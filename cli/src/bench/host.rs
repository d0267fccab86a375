//! Experiments that need no machine: tools of the crates themselves, whose results are put into the common form.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::goal::{Goal, Verdict};
use super::guest::cargo_build;
use super::record::{Figure, Record, Scale};
use super::{Effort, Interrupt, Request};
use crate::paths;

/// Our side of the crates' own experiments.
const EXECUTORS_PACKAGE: &str = "heddle-coroutine-bench";
const RANGES_PACKAGE: &str = "heddle-range-lock-bench";

/// Runs the tool of an experiment.
///
/// # Errors
/// If it is not there, or fails.
pub fn run(request: &Request, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let repository = paths::repository()?;
    let (package, binary) = match request.name.as_str() {
        "executors" => (EXECUTORS_PACKAGE, "executors"),
        _ => (RANGES_PACKAGE, RANGES_PACKAGE),
    };
    cargo_build(&repository, &["--release", "--package", package])?;
    interrupt.check()?;
    let scratch = std::env::temp_dir().join(format!("heddle-bench-{}.json", std::process::id()));
    let mut command = Command::new(repository.join("target/release").join(binary));
    command.arg("--json").arg(&scratch);
    arguments(&mut command, request);
    let status = command.status().with_context(|| binary.to_owned())?;
    interrupt.check()?;
    if !status.success() {
        bail!("{binary} failed: {status}");
    }
    let text = std::fs::read_to_string(&scratch).with_context(|| scratch.display().to_string())?;
    std::fs::remove_file(&scratch).with_context(|| scratch.display().to_string())?;
    let value: Value = serde_json::from_str(&text).with_context(|| format!("what {binary} wrote"))?;
    match request.name.as_str() {
        "executors" => executors(&value, record)?,
        _ => ranges(&value, record)?,
    }
    Ok(Vec::new())
}

fn arguments(command: &mut Command, request: &Request) {
    if request.name == "ranges" {
        match request.effort {
            Effort::Quick => drop(command.arg("--quick")),
            Effort::Normal => {}
            Effort::Full => drop(command.arg("--full")),
        }
    } else {
        let rounds = request.runs.unwrap_or(match request.effort {
            Effort::Quick => 5,
            Effort::Normal => 15,
            Effort::Full => 45,
        });
        command.arg("--rounds").arg(rounds.to_string());
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("no text '{key}'"))
}

/// A row a quantity and number of threads, the best rival as the reference.
fn executors(value: &Value, record: &mut Record) -> Result<()> {
    record.reference = "best rival".to_owned();
    for row in value["rows"].as_array().context("no rows")? {
        let (name, unit) = (text(row, "row")?, text(row, "unit")?);
        let threads = u32::try_from(row["threads"].as_u64().context("no threads")?)?;
        let ratio = row["ratio"].as_f64();
        for (index, side) in row["sides"].as_array().context("no sides")?.iter().enumerate() {
            record.figures.push(Figure {
                name: name.to_owned(),
                x: None,
                side: text(side, "side")?.to_owned(),
                scale: if unit == "B" { Scale::Size } else { Scale::Native },
                unit: unit.to_owned(),
                processors: threads,
                samples: Vec::new(),
                median: side["median"].as_f64(),
                low: side["low"].as_f64(),
                high: side["high"].as_f64(),
                ratio: if index == 0 { ratio } else { None },
                absent: None,
            });
        }
        let wanted = if unit == "B" || threads > 1 { 1.0 } else { 2.0 };
        record.goals.push(Verdict {
            figure: format!("{name}, {threads} threads"),
            x: None,
            scale: if unit == "B" { Scale::Size } else { Scale::Native },
            wanted: format!("{wanted} times the best rival"),
            got: ratio,
            met: ratio.is_some_and(|ratio| ratio >= wanted),
        });
    }
    Ok(())
}

/// A row a workload and number of threads; rates become times, so that less is better everywhere.
fn ranges(value: &Value, record: &mut Record) -> Result<()> {
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
            name: format!("{}{mark}", text(row, "workload")?),
            x: None,
            side: text(row, "side")?.to_owned(),
            scale: Scale::Native,
            unit: "ns a lock and unlock".to_owned(),
            processors: u32::try_from(row["threads"].as_u64().context("no threads")?)?,
            samples: Vec::new(),
            median: time("median_per_second"),
            low: time("max_per_second"),
            high: time("min_per_second"),
            ratio: None,
            absent: None,
        });
    }
    let best_rival = |ours: &Figure| {
        let rivals =
            record.figures.iter().filter(|figure| figure.side != ours.side && figure.is_comparable(ours));
        rivals.filter_map(|figure| figure.median).min_by(f64::total_cmp)
    };
    let ratio = |figure: &Figure| {
        (figure.side == super::OURS).then(|| Some(best_rival(figure)? / figure.median?)).flatten()
    };
    let ratios: Vec<_> = record.figures.iter().map(ratio).collect();
    for (figure, ratio) in record.figures.iter_mut().zip(ratios) {
        figure.ratio = ratio;
    }
    Ok(())
}
