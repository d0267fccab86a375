//! Paper 3's server (`bench/server`) in all its forms on both kernels: no request is lost, none is answered wrongly,
//! also under too much load and when the server is killed. How long anything takes is the experiment's concern.

use std::path::Path;

use anyhow::Result;

use super::process::{RUN_TIMEOUT, heddle_run, run};
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
            let verdict = match output.status {
                Some(0) => Verdict::Passed,
                status => {
                    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                    Verdict::Failed(format!("{status:?}: {} {errors}", output.text()))
                }
            };
            tally.record(&name, &verdict);
        }
    }
    Ok(())
}
