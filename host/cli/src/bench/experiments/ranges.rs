//! `ranges`: heddle-range-lock beside other range locks, measured by its own tool on this host.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Experiment, Kind, host};
use crate::bench::goal::{Goal, GoalVerdict};
use crate::bench::record::{Figure, Record, Scale};
use crate::bench::{Interrupt, OURS, RESULTS, Request};
use crate::paths;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ranges",
    summary: "heddle-range-lock beside other range locks, on this host",
    kind: Kind::Judged(run, judge),
    checked: None,
};

const PACKAGE: &str = "heddle-range-lock-bench";

/// Where the tool's own plots go.
const PLOTS: &str = "plots";
/// The part of a figure's name that marks processor time.
const PROCESSOR: &str = ", processor time";
/// The part of a row's name that marks preempted holders.
const CROWDED: &str = ", more threads than cores";
/// The part of a figure's name that marks a wait.
const LATENCY: &str = ", latency of ";
/// Locks with a bit for each key of segments that are laid out beforehand: rivals where keys are such, as in the
/// engine.
const BITMAPS: [&str; 2] = ["bitmap", "LeanStore"];
const WITHOUT_BITMAPS: &str = " for any keys";
/// The workloads of a storage engine, whose keys are pages of one area.
const ENGINE: &str = "engine";
/// The workloads with so many ranges held that the lock is to be ahead of all others.
const LARGE: [&str; 3] = ["held 1000", "held 10000", "held 100000"];
/// The unit of rows about pairs.
const PAIR: &str = "ns a lock and unlock";
/// The shares of acquisitions that a latency is given for, by the tool's names.
const SHARES: [(&str, &str); 4] =
    [("p50_ns", "half"), ("p99_ns", "99 of 100"), ("p999_ns", "999 of 1000"), ("max_ns", "all")];

/// A row a workload and number of threads; rates become times, so that less is better everywhere.
fn run(request: &Request, _runs: usize, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let flag = request.effort.choose(Some("--quick"), None, Some("--full"));
    let mut arguments: Vec<String> = flag.into_iter().map(str::to_owned).collect();
    let plots = paths::repository()?.join(RESULTS).join(EXPERIMENT.name).join(PLOTS);
    arguments.extend(["--svg".to_owned(), plots.display().to_string()]);
    let value = host::run((PACKAGE, ""), PACKAGE, &arguments, interrupt)?;
    record.reference = "best rival".to_owned();
    for parameter in value["parameters"].as_array().into_iter().flatten() {
        if let (Some(name), Some(value)) = (parameter[0].as_str(), parameter[1].as_str()) {
            record.note(format!("{name}: {value}"));
        }
    }
    rates(&value, record)?;
    latencies(&value, record)?;
    memory(&value, record)?;
    lines(&value, record)?;
    let ratios: Vec<_> = record.figures.iter().map(|figure| ratio(record, figure, |_| true)).collect();
    for (figure, ratio) in record.figures.iter_mut().zip(ratios) {
        figure.ratio = ratio;
    }
    // The heights of one list have no rivals to compare with.
    for row in rows(&value, "heights")? {
        record.figures.push(rate(row, ", the thesis' list by height")?);
    }
    Ok(Vec::new())
}

fn rates(value: &Value, record: &mut Record) -> Result<()> {
    for row in rows(value, "figures")? {
        record.figures.push(rate(row, "")?);
        let processor = rate(row, PROCESSOR)?;
        record.figures.push(Figure {
            median: row["cpu_ns_each"].as_f64(),
            low: None,
            high: None,
            ..processor
        });
        for count in row["counts"].as_array().into_iter().flatten() {
            let event = count[0].as_str().context("no name of a count")?;
            let workload = host::text(row, "workload")?;
            record.figures.push(Figure {
                scale: Scale::Count,
                unit: "a blob".to_owned(),
                processors: threads(row)?,
                ..plain(row, format!("{workload}, {event}"), &count[1])?
            });
        }
    }
    Ok(())
}

/// Lines of cache, and what the tool's model makes of them.
fn lines(value: &Value, record: &mut Record) -> Result<()> {
    for row in rows(value, "lines")? {
        let workload = host::text(row, "workload")?;
        for (key, name) in [
            ("written", "lines of cache written"),
            ("transferred", "lines of cache from other cores"),
            ("hottest", "handovers of one line"),
        ] {
            record.figures.push(Figure {
                scale: Scale::Count,
                unit: "a lock and unlock".to_owned(),
                ..plain(row, format!("{workload}, {name}"), &row["cost"][key])?
            });
        }
        for point in row["model"].as_array().into_iter().flatten() {
            let cores = point[0].as_u64().context("no cores")?;
            record.figures.push(Figure {
                scale: Scale::Count,
                unit: "pairs a second, by a model and not measured".to_owned(),
                is_rate: true,
                processors: u32::try_from(cores)?,
                ..plain(row, format!("{workload}, model"), &point[1])?
            });
        }
    }
    Ok(())
}

fn latencies(value: &Value, record: &mut Record) -> Result<()> {
    for row in rows(value, "latencies")? {
        for (key, share) in SHARES {
            let name = format!("{}{LATENCY}{share}", host::text(row, "workload")?);
            record.figures.push(Figure { processors: threads(row)?, ..plain(row, name, &row[key])? });
        }
    }
    Ok(())
}

fn memory(value: &Value, record: &mut Record) -> Result<()> {
    for row in rows(value, "memory")? {
        for (name, key, unit) in
            [("held", "bytes_per_range", "B a range"), ("after their release", "bytes_after", "B")]
        {
            record.figures.push(Figure {
                scale: Scale::Size,
                unit: unit.to_owned(),
                x: row["ranges"].as_f64(),
                ..plain(row, name.to_owned(), &row[key])?
            });
        }
    }
    Ok(())
}

fn rows<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key].as_array().with_context(|| format!("no {key}"))
}

fn threads(row: &Value) -> Result<u32> {
    Ok(u32::try_from(row["threads"].as_u64().context("no threads")?)?)
}

/// The time that a row's rate comes to.
fn rate(row: &Value, suffix: &str) -> Result<Figure> {
    let time = |key: &str| row[key].as_f64().filter(|rate| *rate > 0.0).map(|rate| 1e9 / rate);
    let mark = if row["preempted"].as_bool().unwrap_or(false) { CROWDED } else { "" };
    let name = format!("{}{suffix}{mark}", host::text(row, "workload")?);
    Ok(Figure {
        processors: threads(row)?,
        median: time("median_per_second"),
        low: time("max_per_second"),
        high: time("min_per_second"),
        ..plain(row, name, &Value::Null)?
    })
}

/// A figure with one value, in nanoseconds on one thread until told otherwise.
fn plain(row: &Value, name: String, value: &Value) -> Result<Figure> {
    Ok(Figure {
        name,
        side: host::text(row, "side")?.to_owned(),
        unit: PAIR.to_owned(),
        processors: 1,
        median: value.as_f64(),
        ..Figure::new(Scale::Native)
    })
}

/// Judges each row of pairs against the best rival that can stand in for a range lock: as good on one and two threads,
/// twice as good from 1,000 held ranges or eight threads on. Processor time counts where each thread has a processor,
/// the rate where not.
fn judge(record: &mut Record) {
    let is_judged = |figure: &&Figure| {
        let is_pair = figure.scale == Scale::Native && figure.unit == PAIR && !figure.name.contains(LATENCY);
        let is_time = figure.name.ends_with(PROCESSOR);
        figure.side == OURS
            && is_pair
            && (is_time || figure.name.ends_with(CROWDED) && !figure.name.contains(PROCESSOR))
    };
    let verdict = |figure: &Figure| {
        let is_large = LARGE
            .iter()
            .any(|workload| figure.name.strip_prefix(workload).is_some_and(|rest| rest.starts_with(',')));
        let wanted = if is_large || figure.processors >= 8 { 2.0 } else { 1.0 };
        let is_engine = figure.name.starts_with(ENGINE);
        let got = ratio(record, figure, |side| is_engine || !BITMAPS.contains(&side));
        GoalVerdict {
            figure: figure.name.clone(),
            x: figure.x,
            scale: Scale::Native,
            processors: figure.processors,
            wanted_ratio: Some(wanted),
            wanted: format!("{wanted} times the best rival{}", if is_engine { "" } else { WITHOUT_BITMAPS }),
            got,
            met: got.is_some_and(|ratio| ratio >= wanted),
        }
    };
    record.goals = record.figures.iter().filter(is_judged).map(verdict).collect();
}

/// How many times our figure is as good as that of the best rival that `counts`; nothing for a rival's.
fn ratio(record: &Record, ours: &Figure, counts: impl Fn(&str) -> bool) -> Option<f64> {
    let is_rival =
        |figure: &&Figure| figure.side != ours.side && counts(&figure.side) && figure.is_comparable(ours);
    let rivals = record.figures.iter().filter(is_rival).filter_map(|figure| figure.median);
    let ratio = || {
        let best =
            if ours.is_rate { rivals.max_by(f64::total_cmp)? } else { rivals.min_by(f64::total_cmp)? };
        let ours_is_times = best / ours.median.filter(|median| *median != 0.0)?;
        Some(if ours.is_rate { ours_is_times.recip() } else { ours_is_times })
    };
    (ours.side == OURS).then(ratio).flatten()
}
