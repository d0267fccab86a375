//! Rust programs in several kinds of machines: one with threads (`tests/threads`), and one on monoio, whose runtime is
//! `io_uring` (`tests/rings`). They must say the same everywhere, and Linux decides what.

use std::path::Path;

use anyhow::Result;

use super::process::{Output, RUN_TIMEOUT, heddle_run, run};
use super::{Tally, Verdict, cargo};
use crate::guest::Kernel;

/// The programs: what they are, and their packages.
const PROGRAMS: [(&str, &str); 2] = [
    ("a Rust program with threads", "heddle-threads-program"),
    ("a Rust program on io_uring", "heddle-rings-program"),
];

/// Heddle's machines: their names, and how they are started.
const MACHINES: [(&str, &[&str]); 4] = [
    ("one processor", &[]),
    ("4 processors", &["--smp", "4"]),
    ("private spaces", &["--smp", "4", "--isolation", "private"]),
    ("the checking kernel", &["--smp", "2", "--checking"]),
];

/// Runs the programs everywhere.
///
/// # Errors
/// If one does not build or the tool cannot be started.
pub fn test(repository: &Path, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    PROGRAMS.iter().try_for_each(|program| test_program(repository, *program, filter, tally))
}

fn test_program(
    repository: &Path,
    (title, package): (&str, &str),
    filter: Option<&str>,
    tally: &mut Tally,
) -> Result<()> {
    let name = |machine: &str| format!("threads/{title}, {machine}");
    if MACHINES.iter().all(|(machine, _)| filter.is_some_and(|filter| !name(machine).contains(filter))) {
        return Ok(());
    }
    // A run that built it would be silent for longer than one may be.
    crate::guest::heddle::build_checking()?;
    let program = cargo::program(repository, package)?.to_string_lossy().into_owned();
    let output = |kernel, options: &[&str]| -> Result<Output> {
        let arguments: Vec<&str> = options.iter().copied().chain(["--", &program]).collect();
        run(&mut heddle_run(kernel, &arguments)?, b"", RUN_TIMEOUT)
    };
    let linux = output(Kernel::Linux, &["--smp", "4"])?;
    for (machine, options) in MACHINES {
        if filter.is_none_or(|filter| name(machine).contains(filter)) {
            tally.record(&name(machine), &judge(&linux, &output(Kernel::Heddle, options)?));
        }
    }
    Ok(())
}

fn judge(linux: &Output, heddle: &Output) -> Verdict {
    if linux.status != Some(0) {
        return Verdict::Failed(format!("on Linux: {:?} {}", linux.status, linux.text()));
    }
    if (heddle.status, &heddle.stdout) == (linux.status, &linux.stdout) {
        return Verdict::Passed;
    }
    let errors = String::from_utf8_lossy(&heddle.stderr).into_owned();
    Verdict::Failed(format!("{:?}: {} {errors}; Linux: {}", heddle.status, heddle.text(), linux.text()))
}
