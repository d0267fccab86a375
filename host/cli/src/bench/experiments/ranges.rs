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
    kind: Kind::Own(run),
    checked: None,
};

const PACKAGE: &str = "heddle-range-lock-bench";

/// Where the tool's own plots go.
const PLOTS: &str = "plots";
/// The part of a figure's name that marks processor time.
const PROCESSOR: &str = ", processor time";
/// The part of a row's name that marks preempted holders.
const CROWDED: &str = ", more threads than cores";
/// The plainest rival.
const PLAINEST: &str = "mutex+map";
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
    let ratios: Vec<_> = record.figures.iter().map(|figure| ratio(record, figure)).collect();
    for (figure, ratio) in record.figures.iter_mut().zip(ratios) {
        figure.ratio = ratio;
    }
    // The heights of one list have no rivals to compare with.
    for row in rows(&value, "heights")? {
        record.figures.push(rate(row, ", the thesis' list by height")?);
    }
    judge(record);
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
            let name = format!("{}, latency of {share}", host::text(row, "workload")?);
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
        unit: "ns a lock and unlock".to_owned(),
        processors: 1,
        median: value.as_f64(),
        ..Figure::new(Scale::Native)
    })
}

/// Judges against the plainest rival: as good on one thread with few ranges held, by processor time; twice as good from
/// 1,000 held ranges or eight threads on.
fn judge(record: &mut Record) {
    let few = ["W1", "W2", "held 1", "held 10"].map(|workload| (format!("{workload}{PROCESSOR}"), 1, 1.0));
    let many =
        ["held 1000", "held 10000", "held 100000"].map(|workload| (format!("{workload}{PROCESSOR}"), 1, 2.0));
    let crowd = ["W1", "W2", "held 10", "held 1000", "zipf 0.99"]
        .map(|workload| (format!("{workload}{CROWDED}"), 8, 2.0));
    for (name, processors, wanted) in few.into_iter().chain(many).chain(crowd) {
        let of = |side: &str| {
            let is_it = |figure: &&Figure| {
                figure.name == name && figure.processors == processors && figure.side == side
            };
            record.figures.iter().find(is_it)?.median
        };
        let got = of(PLAINEST).zip(of(OURS)).map(|(theirs, ours)| theirs / ours);
        record.goals.push(GoalVerdict {
            figure: format!("{name}, against {PLAINEST}"),
            x: None,
            scale: Scale::Native,
            processors,
            wanted_ratio: Some(wanted),
            wanted: format!("{wanted} times as good"),
            got,
            met: got.is_some_and(|got| got >= wanted),
        });
    }
}

/// How many times our figure is as good as the best rival's; nothing for a rival's.
fn ratio(record: &Record, ours: &Figure) -> Option<f64> {
    let is_rival = |figure: &&Figure| figure.side != ours.side && figure.is_comparable(ours);
    let rivals = record.figures.iter().filter(is_rival).filter_map(|figure| figure.median);
    let ratio = || {
        let best =
            if ours.is_rate { rivals.max_by(f64::total_cmp)? } else { rivals.min_by(f64::total_cmp)? };
        let ours_is_times = best / ours.median.filter(|median| *median != 0.0)?;
        Some(if ours.is_rate { ours_is_times.recip() } else { ours_is_times })
    };
    (ours.side == OURS).then(ratio).flatten()
}
