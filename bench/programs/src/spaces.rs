//! Real programs, and what going from one to another of them changes: `spaces load=NAME n=SIZE`.
//!
//! The workloads are shell functions (`spaces.sh`). Time and counters are those from the moment all is prepared until
//! the work is done.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::arguments::Arguments;
use crate::measure::report;

const WORKLOADS: &str = include_str!("spaces.sh");
/// The counters that are reported.
const COUNTERS: [&str; 9] = [
    "switches",
    "page_table_changes",
    "page_tables_kept",
    "flushes_all",
    "flushes_fork",
    "flushes_exit",
    "flushes_remote",
    "shootdown_ipis",
    "faults",
];

/// Runs one workload.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let (load, size) = (arguments.text("load", "commands"), arguments.number("n", 1)?);
    let mut shell = Command::new("/bin/bash")
        .args(["-c", WORKLOADS, "bash", load, &size.to_string()])
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("bash: {error}"))?;
    let mut input = shell.stdin.take().ok_or("no input")?;
    let mut output = BufReader::new(shell.stdout.take().ok_or("no output")?);
    let mut wait_for = |word: &str| {
        let mut line = String::new();
        output.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim_end() == word {
            Ok(())
        } else {
            Err(format!("{load}: '{}' instead of {word}", line.trim_end()))
        }
    };
    wait_for("ready")?;
    let (before, begin) = (counters(), Instant::now());
    input.write_all(b"\n").map_err(|error| error.to_string())?;
    wait_for("done")?;
    let (nanoseconds, after) = (begin.elapsed().as_nanos(), counters());
    report(&format!("spaces-{load}"), 1, nanoseconds);
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        println!("count spaces-{load}:{name} {}", after - before);
    }
    let of = |name: &str| {
        let at = before.iter().position(|(known, _)| known == name)?;
        Some(after[at].1 - before[at].1)
    };
    if let (Some(switches @ 1..), Some(changes)) = (of("switches"), of("page_table_changes")) {
        println!("count spaces-{load}:percent_changed {:.1}", changes as f64 * 100.0 / switches as f64);
    }
    input.write_all(b"\n").map_err(|error| error.to_string())?;
    drop(input);
    let status = shell.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{load}: {status}")) }
}

/// Heddle's counters; on Linux the switches from one thread to another, and the faults.
fn counters() -> Vec<(String, u64)> {
    let line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    if let Ok(text) = std::fs::read_to_string("/proc/heddle/counters") {
        return text.lines().filter_map(line).filter(|(name, _)| COUNTERS.contains(&name.as_str())).collect();
    }
    let of = |path: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let found = text.lines().filter_map(line).find(|(name, _)| name == from);
        found.map(|(_, value)| (to.to_owned(), value))
    };
    [of("/proc/stat", "ctxt", "switches"), of("/proc/vmstat", "pgfault", "faults")]
        .into_iter()
        .flatten()
        .collect()
}
