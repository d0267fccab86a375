//! `executors`: heddle-coroutine and other executors side by side.
//!
//! Every experiment runs on every side in turn, round after round, so that what disturbs the machine disturbs all;
//! the table gives the median of the rounds, the spread between the quartiles, and the ratio of the best rival's
//! median to ours (above 1: ours is faster, or leaner).

mod memory;
mod rows;
mod sides;
#[cfg(feature = "thread-per-core")]
mod thread_per_core;

use rows::{Row, rows};
use serde_json::json;
use sides::*;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// A column of the table: a side and its experiments. The first of a group is ours.
type Column = (&'static str, [Row; 8]);

/// The columns of the executors that run here, in order.
#[derive(Default)]
struct Columns(Vec<Column>);

impl Columns {
    fn with<S: Side + 'static>(mut self) -> Self {
        if S::is_available() {
            self.0.push((S::NAME, rows::<S>()));
        } else {
            eprintln!("executors: {} does not run on this system", S::NAME);
        }
        self
    }
}

/// The sides of one thread.
fn one_thread() -> Vec<Column> {
    let columns = Columns::default()
        .with::<HeddleLocal>()
        .with::<TokioCurrent>()
        .with::<TokioLocalSet>()
        .with::<AsyncLocal>()
        .with::<LocalPool>();
    #[cfg(feature = "thread-per-core")]
    let columns = columns.with::<thread_per_core::Monoio>().with::<thread_per_core::Glommio>();
    columns.0
}

/// The sides of two threads.
fn two_threads() -> Vec<Column> {
    Columns::default().with::<HeddlePool>().with::<TokioMulti>().with::<AsyncStatic>().with::<Smol>().0
}

/// Starts the program anew with the variables that its sides read when they begin.
fn prepare() -> Result<(), String> {
    use std::os::unix::process::CommandExt;
    if std::env::var_os(SMOL_THREADS).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = std::process::Command::new(program);
    Err(command.args(std::env::args_os().skip(1)).env(SMOL_THREADS, "2").exec().to_string())
}

/// Median and quartiles of one cell.
struct Cell {
    side: &'static str,
    median: f64,
    low: f64,
    high: f64,
}

/// Bytes per coroutine of one side, in a process of its own: tables that a side keeps are not to be counted as found.
fn bytes(threads: usize, column: usize) -> Option<f64> {
    let program = std::env::current_exe().ok()?;
    let output = std::process::Command::new(program)
        .arg("--bytes")
        .arg(format!("{threads}:{column}"))
        .output()
        .ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

fn measure_bytes(columns: &[Column], threads: usize) -> Result<Vec<Cell>, String> {
    let cell = |(number, column): (usize, &Column)| {
        let bytes = bytes(threads, number).ok_or(format!("{}: no figure of its bytes", column.0))?;
        Ok(Cell { side: column.0, median: bytes, low: bytes, high: bytes })
    };
    columns.iter().enumerate().map(cell).collect()
}

fn measure(columns: &[Column], row: usize, rounds: usize) -> Vec<Cell> {
    let mut samples = vec![Vec::new(); columns.len()];
    for round in 0..=rounds {
        for (column, samples) in columns.iter().zip(&mut samples) {
            let sample = (column.1[row].2)();
            // The first round warms up.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    let cell = |(column, mut samples): (&Column, Vec<f64>)| {
        samples.sort_by(f64::total_cmp);
        let at = |part: usize| samples[(samples.len() - 1) * part / 4];
        Cell { side: column.0, median: at(2), low: at(1), high: at(3) }
    };
    columns.iter().zip(samples).map(cell).collect()
}

struct Options {
    /// Only the sides whose names contain this, without comparison: for a profiler.
    side: Option<String>,
    /// Only this number of threads.
    threads: Option<usize>,
    rounds: usize,
    json: Option<String>,
    /// `THREADS:COLUMN`: print the bytes per coroutine of one side, and nothing else.
    bytes: Option<String>,
    only: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { side: None, threads: None, rounds: 15, json: None, bytes: None, only: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--side" => options.side = Some(value()?),
            "--bytes" => options.bytes = Some(value()?),
            "--json" => options.json = Some(value()?),
            "--threads" => options.threads = value()?.parse().ok(),
            "--only" => options.only = Some(value()?),
            "--rounds" => {
                options.rounds =
                    value()?.parse().ok().filter(|rounds| *rounds > 0).ok_or("a number of rounds")?;
            }
            _ => {
                return Err(format!(
                    "usage: executors [--side TEXT] [--threads 1|2] [--rounds N] [--only TEXT] [--json FILE]; \
                     not {argument}"
                ));
            }
        }
    }
    Ok(options)
}

fn main() -> Result<(), String> {
    let options = options()?;
    prepare()?;
    let (one, two) = (one_thread(), two_threads());
    if let Some(which) = options.bytes {
        let (threads, column) = which.split_once(':').ok_or("THREADS:COLUMN")?;
        let columns = if threads == "1" { &one[..] } else { &two[..] };
        let column = column.parse().ok().and_then(|column: usize| columns.get(column)).ok_or("a column")?;
        let row = column.1.iter().find(|row| row.1 == "B").ok_or("a row of bytes")?;
        println!("{}", (row.2)());
        return Ok(());
    }
    let mut results = Vec::new();
    for (threads, columns) in [(1, &one[..]), (2, &two[..])] {
        if options.threads.is_some_and(|only| only != threads) {
            continue;
        }
        println!("{threads} thread{}", if threads == 1 { "" } else { "s" });
        for row in 0..columns[0].1.len() {
            let (name, unit, _) = columns[0].1[row];
            if options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
                continue;
            }
            if let Some(side) = options.side.as_ref().filter(|_| unit != "B") {
                let columns: Vec<_> =
                    columns.iter().filter(|column| column.0.contains(side)).copied().collect();
                for Cell { side, median, low, high } in measure(&columns, row, options.rounds) {
                    println!("  {name} ({unit}): {side} {median:.1} [{low:.1} .. {high:.1}]");
                }
                continue;
            }
            let cells = match unit {
                "B" => measure_bytes(columns, threads)?,
                _ => measure(columns, row, options.rounds),
            };
            let best = cells[1..].iter().min_by(|a, b| a.median.total_cmp(&b.median)).expect("a rival");
            let ratio = best.median / cells[0].median;
            println!("  {name} ({unit}): {ratio:.2} times as good as {}", best.side);
            for cell in &cells {
                println!("    {:22} {:9.1}  [{:.1} .. {:.1}]", cell.side, cell.median, cell.low, cell.high);
            }
            let cells: Vec<_> = cells
                .iter()
                .map(|c| json!({"side": c.side, "median": c.median, "low": c.low, "high": c.high}))
                .collect();
            results.push(json!({
                "threads": threads, "row": name, "unit": unit, "ratio": ratio, "sides": cells,
            }));
        }
    }
    if let Some(file) = options.json {
        let text = json!({"experiment": "executors", "rounds": options.rounds, "rows": results}).to_string();
        std::fs::write(&file, text).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(())
}
