//! Medians, ratios, the table and the JSON.

use serde::Serialize;

use crate::counters;
use crate::lines::LineCost;
use crate::plan::{Entrant, Row};
use crate::workload::Sample;

/// One side in one row.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The workload.
    pub workload: String,
    /// Threads.
    pub threads: usize,
    /// More threads than cores: the row measures preempted holders.
    pub preempted: bool,
    /// Other programs had a part of the processors meanwhile.
    pub busy: bool,
    /// The side.
    pub side: &'static str,
    /// Shared requests were served as exclusive ones.
    pub exclusive_only: bool,
    /// Acquisitions with their releases a second, median over the rounds.
    pub median_per_second: f64,
    /// The slowest round.
    pub min_per_second: f64,
    /// The fastest round.
    pub max_per_second: f64,
    /// This project's median over this one.
    pub heddle_ratio: f64,
    /// Nanoseconds of processor time for each, median over the rounds.
    pub cpu_ns_each: f64,
    /// Hardware counters for each, by the names in [`counters`], medians over the rounds; only the engine's rows.
    pub counts: Vec<(&'static str, f64)>,
}

/// Latencies of one side in one row, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// The workload.
    pub workload: String,
    /// Threads.
    pub threads: usize,
    /// The side.
    pub side: &'static str,
    /// Half are faster.
    pub p50_ns: u32,
    /// 99 of 100 are faster.
    pub p99_ns: u32,
    /// 999 of 1000 are faster.
    pub p999_ns: u32,
    /// The slowest.
    pub max_ns: u32,
}

/// Memory of one side.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// The side.
    pub side: &'static str,
    /// Ranges held.
    pub ranges: u64,
    /// Resident bytes for each of them.
    pub bytes_per_range: f64,
    /// Resident bytes that stay when all are released.
    pub bytes_after: usize,
}

/// LineCosts of cache of one side in one row.
#[derive(Clone, Debug, Serialize)]
pub struct LineCosts {
    /// The workload.
    pub workload: String,
    /// The side.
    pub side: &'static str,
    /// The lines of a pair.
    pub cost: LineCost,
    /// Pairs a second by numbers of cores, as a model has it.
    pub model: Vec<(u32, f64)>,
}

/// Everything one run found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The machine and the tuning.
    pub parameters: Vec<(String, String)>,
    /// Throughput.
    pub figures: Vec<Figure>,
    /// Throughput of the thesis' skip list by its height, relative to `heights[0]`.
    pub heights: Vec<Figure>,
    /// Latency.
    pub latencies: Vec<Latency>,
    /// Memory.
    pub memory: Vec<Memory>,
    /// LineCosts of cache.
    pub lines: Vec<LineCosts>,
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The figures of one row; ratios are against the first side.
pub fn figures(
    row: Row,
    sides: &[Entrant],
    samples: &[Vec<Sample>],
    cores: usize,
    busy: bool,
) -> Vec<Figure> {
    let mut first = None;
    let figure = |(side, samples): (&Entrant, &Vec<Sample>)| {
        let mut rates: Vec<f64> = samples.iter().map(|sample| sample.rate).collect();
        let median = median(&mut rates);
        let ours = *first.get_or_insert(median);
        Figure {
            workload: row.kind.name(),
            threads: row.threads,
            preempted: row.threads > cores,
            busy,
            side: side.name,
            exclusive_only: !side.shares && matches!(row.kind, crate::workload::Kind::Mix(_)),
            median_per_second: median,
            min_per_second: rates[0],
            max_per_second: rates[rates.len() - 1],
            heddle_ratio: ours / median,
            cpu_ns_each: {
                let mut each: Vec<f64> = samples.iter().map(|sample| sample.cpu_ns).collect();
                self::median(&mut each)
            },
            counts: counts(samples),
        }
    };
    sides.iter().zip(samples).map(figure).collect()
}

/// Medians of what was counted in every round.
fn counts(samples: &[Sample]) -> Vec<(&'static str, f64)> {
    let of_event = |(at, name): (usize, &'static str)| {
        let each: Option<Vec<f64>> = samples.iter().map(|sample| sample.counts[at]).collect();
        Some((name, median(&mut each?)))
    };
    counters::NAMES.into_iter().enumerate().filter_map(of_event).collect()
}

/// The latencies of one row.
pub fn latencies(row: Row, sides: &[Entrant], samples: &[Vec<Sample>]) -> Vec<Latency> {
    let latency = |(side, samples): (&Entrant, &Vec<Sample>)| {
        let mut all: Vec<u32> = samples.iter().flat_map(|sample| &sample.latencies_ns).copied().collect();
        all.sort_unstable();
        let at = |share: f64| all.get(((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1)));
        let pick = |share| at(share).copied().unwrap_or_default();
        Latency {
            workload: row.kind.name(),
            threads: row.threads,
            side: side.name,
            p50_ns: pick(0.5),
            p99_ns: pick(0.99),
            p999_ns: pick(0.999),
            max_ns: pick(1.0),
        }
    };
    sides.iter().zip(samples).map(latency).collect()
}

/// The marks of a row.
fn marks(figure: &Figure) -> String {
    let preempted = if figure.preempted { "*" } else { "" };
    format!("{:<2}", format!("{preempted}{}", if figure.busy { "!" } else { "" }))
}

/// Prints one row: rates in millions a second, the spread of the rounds, and this project's advantage.
pub fn print_row(figures: &[Figure]) {
    let Some(first) = figures.first() else { return };
    print!("{:<14}{:>3}{}", first.workload, first.threads, marks(first));
    for figure in figures {
        let spread = (figure.max_per_second - figure.min_per_second) / figure.median_per_second * 50.0;
        let shared = if figure.exclusive_only { "x" } else { "" };
        let cell = if figure.side == first.side {
            format!("{} ±{spread:.0}%", millions(figure.median_per_second))
        } else {
            let rate = millions(figure.median_per_second);
            format!("{rate} ±{spread:.0}% {:.2}{shared}", figure.heddle_ratio)
        };
        print!("{cell:>22}");
    }
    println!();
}

/// A rate in millions a second, with digits enough for the slow ones.
fn millions(rate: f64) -> String {
    let millions = rate / 1e6;
    if millions < 0.1 { format!("{millions:.5}") } else { format!("{millions:.3}") }
}

/// Prints the heading of the throughput table.
pub fn print_head(sides: &[Entrant]) {
    print!("{:<14}{:>3}  ", "workload", "thr");
    sides.iter().for_each(|side| print!("{:>22}", side.name));
    println!();
}

/// Prints processor time by row and side, in nanoseconds: on a machine that is busy with other things, the table to
/// look at.
pub fn print_cpu(figures: &[Figure], sides: &[Entrant]) {
    println!("\nNanoseconds of processor time for one lock+unlock pair, and its ratio to heddle's");
    print_head(sides);
    for row in figures.chunk_by(|a, b| a.workload == b.workload && a.threads == b.threads) {
        let Some(first) = row.first() else { continue };
        print!("{:<14}{:>3}{}", first.workload, first.threads, marks(first));
        for figure in row {
            let cell = if figure.side == first.side {
                format!("{:.1}", figure.cpu_ns_each)
            } else {
                format!("{:.1} {:.2}", figure.cpu_ns_each, figure.cpu_ns_each / first.cpu_ns_each)
            };
            print!("{cell:>22}");
        }
        println!();
    }
}

/// Prints hardware counters of the rows that have them, for one operation.
pub fn print_counts(figures: &[Figure], sides: &[Entrant]) {
    if figures.iter().all(|figure| figure.counts.is_empty()) {
        println!("\nNo hardware counters here, or no engine among the rows.");
        return;
    }
    for name in counters::NAMES {
        println!("\nThousands of {name} for one blob, and their ratio to heddle's");
        print_head(sides);
        for row in figures.chunk_by(|a, b| a.workload == b.workload && a.threads == b.threads) {
            let count =
                |figure: &Figure| figure.counts.iter().find(|(found, _)| *found == name).map(|found| found.1);
            let Some((first, ours)) = row.first().and_then(|first| Some((first, count(first)?))) else {
                continue;
            };
            print!("{:<14}{:>3}{}", first.workload, first.threads, marks(first));
            for figure in row {
                let cell = count(figure)
                    .map_or("-".into(), |theirs| format!("{:.1} {:.2}", theirs / 1000.0, theirs / ours));
                print!("{cell:>22}");
            }
            println!();
        }
    }
}
