//! Named machines, and container engines with `heddle oci` as their runtime: shell scripts in `tests/tool`, which print
//! `ok NAME`, `not ok NAME: reason` or `skip NAME: reason`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::process::run;
use super::{Tally, Verdict};
use crate::guest::linux;

/// How long a script may take.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Runs a script of `tests/tool`.
pub fn test(repository: &Path, script: &str, filter: Option<&str>, tally: &mut Tally) {
    let mut command = Command::new("bash");
    command.arg(repository.join("tests/tool").join(format!("{script}.sh")));
    let Ok(tool) = crate::paths::own_program() else {
        tally.record(script, &Verdict::Failed(String::from("the tool's own file is not known")));
        return;
    };
    // The guest's first process is built on demand: before deadlines run.
    if let Err(error) = linux::init() {
        return tally.record(script, &Verdict::Failed(format!("{error:#}")));
    }
    command.env("HEDDLE", tool).env("FILTER", filter.unwrap_or_default());
    let output = match run(&mut command, b"", TIMEOUT) {
        Ok(output) => output,
        Err(error) => return tally.record(script, &Verdict::Failed(format!("{error:#}"))),
    };
    for line in output.text().lines() {
        let (name, verdict) = if let Some(name) = line.strip_prefix("ok ") {
            (name, Verdict::Passed)
        } else if let Some(rest) = line.strip_prefix("not ok ") {
            let (name, reason) = rest.split_once(": ").unwrap_or((rest, ""));
            (name, Verdict::Failed(reason.to_owned()))
        } else if let Some(rest) = line.strip_prefix("skip ") {
            let (name, reason) = rest.split_once(": ").unwrap_or((rest, ""));
            (name, Verdict::Skipped(reason.to_owned()))
        } else {
            // Figures, and what else is for a reader only.
            if let Some(text) = line.strip_prefix("# ") {
                println!("{script}: {text}");
            }
            continue;
        };
        tally.record(&format!("{script}/{name}"), &verdict);
    }
    if output.status != Some(0) {
        let reason = format!("status {:?}: {}", output.status, output.complaints());
        tally.record(script, &Verdict::Failed(reason));
    }
}
