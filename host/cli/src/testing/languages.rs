//! Programs in other languages under the shared scheduler: the vDSO's functions and asynchronous calls from Python.
//! C's are guest tests. Only Heddle has them.

use std::path::Path;

use anyhow::Result;

use super::process::{RUN_TIMEOUT, heddle_run, run};
use super::{Tally, Verdict};
use crate::guest::Kernel;

/// The output of the example, by the levels of its coroutines.
const EXPECTED: &str = "written 3\nurgent\nordinary\nbackground\n";

/// Runs the examples in machines of several kinds.
///
/// # Errors
/// If the tool cannot be started.
pub fn test(repository: &Path, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let example = repository.join("guest/vdso/examples/calls.py");
    let added = format!("{}:/calls.py", example.display());
    for (machine, options) in [
        ("one processor", &["--smp", "1"][..]),
        ("private spaces", &["--smp", "4", "--isolation", "private"]),
    ] {
        let name = format!("languages/asynchronous calls from Python, {machine}");
        if filter.is_some_and(|filter| !name.contains(filter)) {
            continue;
        }
        let mut arguments = options.to_vec();
        arguments.extend(["--deb", "python3", "--add", &added, "--", "python3", "/calls.py"]);
        let output = run(&mut heddle_run(Kernel::Heddle, &arguments)?, b"", RUN_TIMEOUT)?;
        let verdict = if output.status == Some(0) && output.text() == EXPECTED {
            Verdict::Passed
        } else {
            Verdict::Failed(format!("{:?}: {} {}", output.status, output.text(), output.complaints()))
        };
        tally.record(&name, &verdict);
    }
    Ok(())
}
