//! Machines under stress: random operations with contents checked, for each kind of locking and isolation and on
//! several processors; random system calls; programs that take all they can get.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::process::{heddle_run, run};
use super::{Tally, Verdict, cargo};
use crate::guest::Kernel;

const PACKAGE: &str = "heddle-stress";
/// The program is silent until it ends.
const QUIET_MAX: Duration = Duration::from_secs(240);
const SEEDS: std::ops::Range<u32> = 33..35;
const SEEDS_LONG: std::ops::Range<u32> = 33..65;

/// Programs that take all they can get, how many of it in CI and in the long tier.
const HOSTILE: [&str; 3] = ["processes=200", "threads=200", "steps=200"];
const HOSTILE_LONG: [&str; 3] = ["processes=1000", "threads=10000", "steps=10000"];
/// Random calls: steps of each thread, not all of which it lives to make; in the long tier a million over all seeds.
const CALLS: &str = "steps=1000";
const CALLS_LONG: &str = "steps=5000";

/// Seconds under pressure.
const PRESSURE: u64 = 5;
const PRESSURE_LONG: u64 = 600;

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
    let program = build(repository)?;
    for (machine, options, steps) in MACHINES {
        for seed in if is_long { SEEDS_LONG } else { SEEDS } {
            let name = format!("stress/memory with {machine}, seed {seed}");
            if filter.is_some_and(|filter| !name.contains(filter)) {
                continue;
            }
            let seed = format!("seed={seed}");
            let work = ["memory", "processes=3", "threads=3", steps, &seed];
            tally.record(&name, &verdict(options, &program, &work)?);
        }
    }
    for seed in if is_long { SEEDS_LONG } else { SEEDS } {
        let name = format!("stress/random calls, seed {seed}");
        if filter.is_none_or(|filter| name.contains(filter)) {
            let (seed, steps) = (format!("seed={seed}"), if is_long { CALLS_LONG } else { CALLS });
            let work = ["calls", "processes=4", "threads=2", steps, &seed];
            tally.record(&name, &verdict(&["--smp", "2"], &program, &work)?);
        }
    }
    for (options, machine) in [("none", "shared"), ("private", "private")] {
        let name = format!("stress/every kind of call while memory is short, {machine} spaces");
        if filter.is_none_or(|filter| name.contains(filter)) {
            let seconds = if is_long { PRESSURE_LONG } else { PRESSURE };
            let options = ["--smp", "4", "--memory", "64", "--isolation", options];
            let work = ["pressure", "processes=4", &format!("steps={seconds}")];
            let quiet_max = QUIET_MAX + Duration::from_secs(seconds);
            tally.record(&name, &verdict_within(&options, &program, &work, quiet_max)?);
        }
    }
    let name = "stress/programs that take all they can get";
    if filter.is_none_or(|filter| name.contains(filter)) {
        let amounts = if is_long { HOSTILE_LONG } else { HOSTILE };
        let work: Vec<&str> = ["hostile"].into_iter().chain(amounts).collect();
        tally.record(name, &verdict(&["--smp", "2", "--memory", "512"], &program, &work)?);
    }
    Ok(())
}

/// Builds the stress programs and says where they are.
///
/// # Errors
/// If they do not build.
pub fn build(repository: &Path) -> Result<String> {
    Ok(cargo::program(repository, PACKAGE)?.to_string_lossy().into_owned())
}

/// Runs a stress program in a machine of Heddle's.
fn verdict(options: &[&str], program: &str, work: &[&str]) -> Result<Verdict> {
    verdict_within(options, program, work, QUIET_MAX)
}

fn verdict_within(options: &[&str], program: &str, work: &[&str], quiet_max: Duration) -> Result<Verdict> {
    let arguments: Vec<&str> =
        options.iter().copied().chain(["--", program]).chain(work.iter().copied()).collect();
    let output = run(&mut heddle_run(Kernel::Heddle, &arguments)?, b"", quiet_max)?;
    if output.status == Some(0) {
        return Ok(Verdict::Passed);
    }
    let status = output.status.map_or(String::from("stuck"), |status| format!("status {status}"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(Verdict::Failed(format!("{status}: {} {errors}", output.text())))
}
