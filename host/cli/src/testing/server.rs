//! Paper 3's server (`bench/server`) in all its forms on both kernels: no request is lost, none is answered wrongly,
//! also under too much load and when the server is killed. How long anything takes is the experiment's concern.

use std::path::Path;

use anyhow::Result;

use super::process::{Output, RUN_TIMEOUT, heddle_run, run};
use super::{Tally, Verdict, cargo};
use crate::guest::Kernel;

const PACKAGE: &str = "heddle-bench-server";
/// The forms, by the words that choose them.
const FORMS: [(&str, &[&str]); 5] = [
    ("strict coroutines", &["form=coroutines", "strict=1"]),
    ("relaxed coroutines", &["form=coroutines"]),
    ("threads", &["form=threads"]),
    ("epoll", &["form=epoll"]),
    ("tokio", &["form=tokio"]),
];

/// Runs each form on each kernel.
///
/// # Errors
/// If the program does not build or the tool cannot be started.
pub fn test(repository: &Path, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    for kernel in [Kernel::Linux, Kernel::Heddle] {
        for (form, words) in FORMS {
            let name = format!("server/{}/{form}", kernel.name());
            if filter.is_some_and(|filter| !name.contains(filter)) {
                continue;
            }
            let program = cargo::program(repository, PACKAGE)?.to_string_lossy().into_owned();
            let machine = ["--smp", "2", "--memory", "512", "--"];
            let item = [program.as_str(), "server", "what=check"];
            let arguments: Vec<&str> = machine.into_iter().chain(item).chain(words.iter().copied()).collect();
            let output = run(&mut heddle_run(kernel, &arguments)?, b"", RUN_TIMEOUT)?;
            tally.record(&name, &verdict(&output));
        }
    }
    counted(repository, filter, tally)
}

/// A server on one of two processors, with instructions for a clock. Timers expire on the instruction there, so that an
/// urgent thread that waits for a less urgent one of its processor has to leave it enough time to go on.
fn counted(repository: &Path, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let name = "server/heddle/strict coroutines by instructions";
    if filter.is_some_and(|filter| !name.contains(filter)) {
        return Ok(());
    }
    let program = cargo::program(repository, PACKAGE)?.to_string_lossy().into_owned();
    let machine = ["--count-instructions", "--smp", "2", "--memory", "512", "--", &program, "server"];
    let load = ["what=priorities", "n=128", "ms=300", "cpus=1", "loads=100"];
    let arguments: Vec<&str> = machine.into_iter().chain(load).chain(FORMS[0].1.iter().copied()).collect();
    let output = run(&mut heddle_run(Kernel::Heddle, &arguments)?, b"", RUN_TIMEOUT)?;
    tally.record(name, &verdict(&output));
    Ok(())
}

fn verdict(output: &Output) -> Verdict {
    match output.status {
        Some(0) => Verdict::Passed,
        status => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            Verdict::Failed(format!("{status:?}: {} {errors}", output.text()))
        }
    }
}
