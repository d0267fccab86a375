//! Processors that lack something, and KVM as far as this host has it.

use super::process::{Output, RUN_TIMEOUT, heddle_run, run};
use super::{Tally, Verdict};
use crate::guest::Kernel;
use crate::machine::accelerator;

fn heddle(arguments: &[&str]) -> Result<Output, String> {
    let mut command = heddle_run(Kernel::Heddle, arguments).map_err(|error| format!("{error:#}"))?;
    run(&mut command, b"", RUN_TIMEOUT).map_err(|error| format!("{error:#}"))
}

/// A processor without something that the kernel needs ends in a message that names it.
fn is_refused(cpu: &str, words: &str) -> Result<(), String> {
    let output = heddle(&["--cpu", cpu, "--", "true"])?;
    let said = output.complaints();
    if output.status == Some(0) || !said.contains(words) {
        return Err(format!("status {:?}, and nothing of {words:?}: {said}", output.status));
    }
    Ok(())
}

/// With KVM a program runs, or, where the host's KVM only interprets, the kernel comes as far as the program's image.
/// Which of the two is seen in the kernel's log.
fn kvm() -> Verdict {
    let log = std::env::temp_dir().join(format!("heddle-kvm-{}", std::process::id()));
    let arguments = ["--accel", "kvm", "--log", &log.to_string_lossy(), "--", "echo", "hello"];
    let output = heddle(&arguments);
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    let output = match output {
        Ok(output) if output.complaints().contains("--accel kvm: ") => {
            return Verdict::Skipped(output.complaints());
        }
        Ok(output) => output,
        Err(reason) => return Verdict::Failed(reason),
    };
    let is_fast =
        accelerator::Accelerator::decide(accelerator::Choice::Auto).is_ok_and(|auto| auto.kvm.is_some());
    if output.text() == "hello\n" && output.status == Some(0) {
        return Verdict::Passed;
    }
    if !is_fast && text.contains("the program's image") {
        return Verdict::Skipped(String::from("this KVM interprets; the kernel ran up to its first program"));
    }
    Verdict::Failed(format!("status {:?}: {}; log: {text}", output.status, output.complaints()))
}

/// Runs these tests.
pub fn test(filter: Option<&str>, tally: &mut Tally) {
    let is_chosen = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    for (cpu, words) in [("max,-nx", "(nx)"), ("max,-lm", "(lm)"), ("max,-sse2", "SSE2")] {
        let name = format!("processors/{cpu} is refused");
        if is_chosen(&name) {
            tally.record(&name, &is_refused(cpu, words).into());
        }
    }
    if is_chosen("processors/kvm") {
        tally.record("processors/kvm", &kvm());
    }
}
