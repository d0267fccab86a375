//! A tree of small files, as tools look at one: `shares folder=PATH [rounds=N]`.
//!
//! Listing all directories (`find`), asking for the metadata of each file (`stat`), and opening, reading and closing
//! each (`read`): once when nothing is known of the tree (`cold`), and then again and again (`warm`). A step is a file.
//! On Heddle the requests to the host and the waits for it are counted, by the file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::arguments::Arguments;
use crate::measure::report;

/// Measures one tree.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let folder = Path::new(arguments.text("folder", "."));
    let rounds = arguments.number("rounds", 3)?;
    let all = |suffix: &str, rounds: u64| {
        let mut files = Vec::new();
        measure(&format!("find-{suffix}"), rounds, || {
            files.clear();
            find(folder, &mut files)?;
            Ok(files.len())
        })?;
        measure(&format!("stat-{suffix}"), rounds, || {
            files.iter().try_for_each(|file| file.symlink_metadata().map(drop))?;
            Ok(files.len())
        })?;
        measure(&format!("read-{suffix}"), rounds, || {
            files.iter().try_for_each(|file| std::fs::read(file).map(drop))?;
            Ok(files.len())
        })
    };
    all("cold", 1)?;
    all("warm", rounds)
}

/// Does something in rounds, each of which says of how many files it was.
fn measure(
    name: &str,
    rounds: u64,
    mut step: impl FnMut() -> Result<usize, std::io::Error>,
) -> Result<(), String> {
    let (before, begin, mut files) = (counters(), Instant::now(), 0);
    for _ in 0..rounds {
        files += step().map_err(|error| format!("{name}: {error}"))? as u64;
    }
    report(name, files, begin.elapsed().as_nanos());
    for ((counter, after), before) in counters().into_iter().zip(before) {
        println!("count {name}:{counter} {:.3}", (after - before.1) as f64 / files.max(1) as f64);
    }
    Ok(())
}

/// Heddle's counts of requests to the host and of waits for it; Linux counts none.
fn counters() -> Vec<(String, u64)> {
    let text = std::fs::read_to_string("/proc/heddle/counters").unwrap_or_default();
    let line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.strip_prefix("share_")?.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), std::io::Error> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
