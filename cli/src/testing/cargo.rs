//! What cargo tests on the host, and that the kernel builds.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::Tally;

/// Counts in a line of the test harness's summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Summary {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Parses `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn parse_summary(line: &str) -> Option<Summary> {
    let counts = line.trim_start().strip_prefix("test result: ")?;
    let count = |word: &str| {
        let mut words = counts.split_whitespace().peekable();
        while let Some(number) = words.next() {
            if words.peek().is_some_and(|next| next.trim_end_matches(';') == word) {
                return number.parse().ok();
            }
        }
        None
    };
    Some(Summary { passed: count("passed")?, failed: count("failed")?, ignored: count("ignored")? })
}

/// Runs a cargo command, shows what it says, and adds up its tests.
///
/// A command that fails without a failed test, because something does not build, counts as a failed test.
///
/// # Errors
/// If cargo cannot be run.
pub fn run(repository: &Path, arguments: &[&str], tally: &mut Tally) -> Result<()> {
    let name = format!("cargo {}", arguments.join(" "));
    println!("{name}");
    let mut child = Command::new("cargo")
        .args(arguments)
        .current_dir(repository)
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo")?;
    let mut failed = 0;
    let output = child.stdout.take().context("cargo's output")?;
    for line in BufReader::new(output).lines() {
        let line = line.context("reading cargo's output")?;
        println!("{line}");
        if let Some(summary) = parse_summary(&line) {
            tally.add(summary.passed, summary.failed, summary.ignored);
            failed += summary.failed;
        }
    }
    let status = child.wait().context("waiting for cargo")?;
    if !status.success() && failed == 0 {
        tally.record(&name, &super::Verdict::Failed(status.to_string()));
    }
    Ok(())
}

/// Builds something, which is one test.
///
/// # Errors
/// If cargo cannot be run.
pub fn build(repository: &Path, arguments: &[&str], tally: &mut Tally) -> Result<()> {
    let status =
        Command::new("cargo").args(arguments).current_dir(repository).status().context("starting cargo")?;
    let result = if status.success() { Ok(()) } else { Err(status.to_string()) };
    tally.record(&format!("cargo {}", arguments.join(" ")), &result.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_parsed() {
        let line =
            "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; 5 filtered out; finished in 1s";
        assert_eq!(parse_summary(line), Some(Summary { passed: 12, failed: 1, ignored: 2 }));
        assert_eq!(parse_summary("running 3 tests"), None);
        assert_eq!(parse_summary("test result: odd"), None);
    }
}
