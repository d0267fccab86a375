//! The tests on the host, by cargo and other commands, and a check that the kernel builds.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

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
/// # Errors
/// If cargo cannot be run.
pub fn run(repository: &Path, arguments: &[&str], tally: &mut Tally) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(arguments).current_dir(repository);
    count(&format!("cargo {}", arguments.join(" ")), cargo, tally)
}

/// Runs a command, shows what it says, and adds up the tests of every test harness that it runs.
///
/// One that runs none is a test itself, and so is one that fails without a failed test, because something does not
/// build.
///
/// # Errors
/// If the command cannot be run.
pub fn count(name: &str, mut command: Command, tally: &mut Tally) -> Result<()> {
    println!("{name}");
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("starting {name}"))?;
    let (mut counted, mut failed) = (0, 0);
    let output = child.stdout.take().context("a command's output")?;
    for line in BufReader::new(output).lines() {
        let line = line.with_context(|| format!("reading the output of {name}"))?;
        println!("{line}");
        if let Some(summary) = parse_summary(&line) {
            tally.add(summary.passed, summary.failed, summary.ignored);
            counted += summary.passed + summary.failed;
            failed += summary.failed;
        }
    }
    let status = child.wait().with_context(|| format!("waiting for {name}"))?;
    if !status.success() && failed == 0 {
        tally.record(name, &super::Verdict::Failed(status.to_string()));
    } else if counted == 0 {
        tally.record(name, &super::Verdict::Passed);
    }
    Ok(())
}

/// Builds a program of a package that is called like it, and says where it is.
///
/// # Errors
/// If it does not build.
pub fn program(repository: &Path, package: &str) -> Result<PathBuf> {
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--release", "--package", package])
        .current_dir(repository)
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!("{package} does not build");
    }
    Ok(repository.join("target/release").join(package))
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
    fn commands_are_tests_or_have_some() {
        let counts = |script: &str| {
            let mut tally = Tally::default();
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            count("a script", command, &mut tally).unwrap();
            (tally.passed, tally.failed)
        };
        assert_eq!(counts("true"), (1, 0));
        assert_eq!(counts("false"), (0, 1));
        assert_eq!(counts("echo 'test result: ok. 3 passed; 0 failed; 0 ignored'"), (3, 0));
        assert_eq!(counts("echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored'; false"), (3, 1));
        assert_eq!(counts("echo 'test result: ok. 3 passed; 0 failed; 0 ignored'; false"), (3, 1));
    }

    #[test]
    fn summaries_are_parsed() {
        let line =
            "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; 5 filtered out; finished in 1s";
        assert_eq!(parse_summary(line), Some(Summary { passed: 12, failed: 1, ignored: 2 }));
        assert_eq!(parse_summary("running 3 tests"), None);
        assert_eq!(parse_summary("test result: odd"), None);
    }
}
