//! Tools of the crates themselves, which need no machine and write what they measured as JSON.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::Interrupt;
use crate::bench::guest::cargo_build;
use crate::paths;

/// Builds a tool, a binary or `examples/NAME`, with these features and runs it; what it wrote.
///
/// # Errors
/// If the user interrupted, or the tool fails.
pub fn run(
    (package, features): (&str, &str),
    binary: &str,
    arguments: &[String],
    interrupt: &Interrupt,
) -> Result<Value> {
    let repository = paths::repository()?;
    let mut build = vec!["--release", "--package", package, "--features", features];
    build.extend(binary.strip_prefix("examples/").into_iter().flat_map(|example| ["--example", example]));
    cargo_build(&repository, &build, interrupt)?;
    let scratch = std::env::temp_dir().join(format!("heddle-bench-{}.json", std::process::id()));
    let mut command = Command::new(repository.join("target/release").join(binary));
    command.arg("--json").arg(&scratch).args(arguments);
    let status = interrupt.run(&mut command);
    let text = std::fs::read_to_string(&scratch);
    let _ = std::fs::remove_file(&scratch);
    let status = status?;
    if !status.success() {
        bail!("{binary} failed: {status}");
    }
    let text = text.with_context(|| scratch.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("what {binary} wrote"))
}

/// The text that a row has under `key`.
///
/// # Errors
/// If there is none.
pub fn text<'a>(row: &'a Value, key: &str) -> Result<&'a str> {
    row[key].as_str().with_context(|| format!("no text '{key}'"))
}
