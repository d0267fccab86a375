//! A tree of small files, as tools look at one: `shares folder=PATH [rounds=N]`.
//!
//! Listing all directories (`find`), asking for the metadata of each file (`stat`), and opening, reading and closing
//! each (`read`): once when nothing is known of the tree (`cold`), and then again and again (`warm`). A step is a file.

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
    let (begin, mut files) = (Instant::now(), 0);
    for _ in 0..rounds {
        files += step().map_err(|error| format!("{name}: {error}"))? as u64;
    }
    report(name, files, begin.elapsed().as_nanos());
    Ok(())
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
