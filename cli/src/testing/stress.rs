//! Random operations in machines, by seed, with contents checked: each kind of locking and isolation, on several
//! processors.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::process::{heddle_run, run};
use super::{Tally, Verdict};
use crate::guest::Kernel;

const PACKAGE: &str = "heddle-stress-apps";
/// The program is silent until it ends.
const QUIET_MAX: Duration = Duration::from_secs(240);
const SEEDS: std::ops::Range<u32> = 33..35;
const SEEDS_LONG: std::ops::Range<u32> = 33..65;

/// A machine to put under stress: its name, how it is started, and for how long.
const MACHINES: [(&str, &[&str], &str); 4] = [
    ("range locks", &["--smp", "4"], "steps=400"),
    ("one lock", &["--smp", "2", "--boot", "heddle.space-lock=one"], "steps=700"),
    ("private spaces", &["--smp", "3", "--isolation", "private"], "steps=400"),
    ("many processors", &["--smp", "8"], "steps=150"),
];

/// Runs them all.
///
/// # Errors
/// If the program does not build or the tool cannot be started.
pub fn test(repository: &Path, is_long: bool, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--release", "--package", PACKAGE])
        .current_dir(repository)
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!("the stress programs do not build");
    }
    let program = repository.join("target/release").join(PACKAGE);
    let program = program.to_string_lossy();
    for (machine, options, steps) in MACHINES {
        for seed in if is_long { SEEDS_LONG } else { SEEDS } {
            let name = format!("stress/memory with {machine}, seed {seed}");
            if filter.is_some_and(|filter| !name.contains(filter)) {
                continue;
            }
            let seed = format!("seed={seed}");
            let work = ["--", &program, "memory", "processes=3", "threads=3", steps, &seed];
            let arguments: Vec<&str> = options.iter().copied().chain(work).collect();
            let output = run(&mut heddle_run(Kernel::Heddle, &arguments)?, b"", QUIET_MAX)?;
            let verdict = if output.status == Some(0) {
                Verdict::Passed
            } else {
                let status = output.status.map_or(String::from("stuck"), |status| format!("status {status}"));
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                Verdict::Failed(format!("{status}: {} {errors}", output.text()))
            };
            tally.record(&name, &verdict);
        }
    }
    Ok(())
}
