//! The guest tests: a program of ours that tests the Linux interface from inside, a line for each test.
//!
//! The line protocol is `ok NAME`, `not ok NAME: REASON`, `skip NAME: REASON`. A machine that ends early leaves tests
//! without a line: the first of them is what ended it, and the others run in another machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::process::{heddle_run, run};
use super::{Tally, Verdict};
use crate::guest::Kernel;

const PACKAGE: &str = "heddle-guest-tests";
/// A hung test is ended by the program itself, and says so, after a minute.
const QUIET_MAX: Duration = Duration::from_secs(150);
/// At most so many machines for one list of tests.
const MACHINES_MAX: usize = 16;

/// Parses a line of the protocol.
#[must_use]
pub fn parse_line(line: &str) -> Option<(&str, Verdict)> {
    if let Some(name) = line.strip_prefix("ok ") {
        return Some((name.trim_end(), Verdict::Passed));
    }
    let (rest, is_skip) = match line.strip_prefix("not ok ") {
        Some(rest) => (rest, false),
        None => (line.strip_prefix("skip ")?, true),
    };
    let (name, reason) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
    let reason = reason.trim_end().to_owned();
    Some((name, if is_skip { Verdict::Skipped(reason) } else { Verdict::Failed(reason) }))
}

fn build(repository: &Path) -> Result<PathBuf> {
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--release", "--package", PACKAGE])
        .current_dir(repository)
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!("the guest tests do not build");
    }
    Ok(repository.join("target/release").join(PACKAGE))
}

fn list(program: &Path) -> Result<Vec<String>> {
    let output = Command::new(program).arg("--list").output().context("listing the guest tests")?;
    let names: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if names.is_empty() {
        bail!("the guest tests' program lists none");
    }
    Ok(names)
}

fn verdicts(kernel: Kernel, program: &Path, names: &[String]) -> Result<BTreeMap<String, Verdict>> {
    let mut verdicts: BTreeMap<String, Verdict> = BTreeMap::new();
    for _ in 0..MACHINES_MAX {
        let missing: Vec<_> = names.iter().filter(|name| !verdicts.contains_key(*name)).collect();
        let Some(first) = missing.first() else { break };
        let mut arguments = vec![String::from("--"), program.to_string_lossy().into_owned()];
        if missing.len() < names.len() {
            arguments.extend(missing.iter().map(|name| (*name).clone()));
        }
        let output = run(&mut heddle_run(kernel, &arguments)?, b"", QUIET_MAX)?;
        let text = output.text();
        let mut any = false;
        for (name, verdict) in text.lines().filter_map(parse_line) {
            if names.iter().any(|known| known == name) && !verdicts.contains_key(name) {
                any |= name == first.as_str();
                verdicts.insert(name.to_owned(), verdict);
            }
        }
        let unheard = names.iter().find(|name| !verdicts.contains_key(*name));
        if let Some(culprit) = unheard.filter(|_| !any || output.status != Some(0)) {
            let status = output.status.map_or(String::from("stuck"), |status| format!("status {status}"));
            let reason = format!("the machine ended here: {status} {}", output.complaints());
            verdicts.insert(culprit.clone(), Verdict::Failed(reason));
        }
    }
    Ok(verdicts)
}

/// Runs the guest tests on both kernels.
///
/// # Errors
/// If they do not build or the tool cannot be started.
pub fn test(repository: &Path, tally: &mut Tally) -> Result<()> {
    let program = build(repository)?;
    let names = list(&program)?;
    for kernel in [Kernel::Linux, Kernel::Heddle] {
        println!("{} guest tests on {}", names.len(), kernel.name());
        let verdicts = verdicts(kernel, &program, &names)?;
        for name in &names {
            let missing = Verdict::Failed(format!("not reached within {MACHINES_MAX} machines"));
            tally.record(&format!("guest/{}/{name}", kernel.name()), verdicts.get(name).unwrap_or(&missing));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_protocol_are_parsed() {
        assert_eq!(parse_line("ok a::b"), Some(("a::b", Verdict::Passed)));
        let failed = Verdict::Failed(String::from("x: y"));
        assert_eq!(parse_line("not ok a::b: x: y"), Some(("a::b", failed)));
        assert_eq!(parse_line("skip c: no"), Some(("c", Verdict::Skipped(String::from("no")))));
        assert_eq!(parse_line("anything else"), None);
    }
}
