//! The checking build of Heddle's kernel: the faults that it must notice.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::process::{RUN_TIMEOUT, heddle_run, run};
use super::{Tally, Verdict, cargo, stress};
use crate::STATUS_KERNEL_PANIC;
use crate::guest::Kernel;

/// Mistakes that the kernel makes when asked to, and what it must say of each.
/// Both sides of an order of locks are places of the kernel's source.
const MISTAKES: [(&str, &[&str]); 5] = [
    ("inversion", &["was taken while", "; before, ", LOCK_ORDER, LOCK_PLACE]),
    ("self-deadlock", &["is held since", "and taken again at", LOCK_ORDER, LOCK_PLACE]),
    ("handler", &["takes a spinlock in an interrupt handler", LOCK_ORDER, LOCK_PLACE]),
    ("await", &["is held where a coroutine may wait", LOCK_ORDER, LOCK_PLACE]),
    // The end of the shell's stack: a page that is there, so that SMAP alone keeps the kernel from it.
    (
        "user-access $(sed -n 's/^[^-]*-\\([0-9a-f]*\\) .*\\[stack\\]$/\\1/p' /proc/$$/maps)",
        &["page fault in the kernel", "error 0x1,"],
    ),
];
const LOCK_ORDER: &str = "lock order: ";
const LOCK_PLACE: &str = "kernel/src/sync/order.rs:";

fn is_noticed(mistake: &str, words: &[&str]) -> std::result::Result<(), String> {
    let script = format!("echo {mistake} > /proc/heddle/provoke");
    let arguments = ["--checking", "--", "sh", "-c", &script];
    let mut command = heddle_run(Kernel::Heddle, &arguments).map_err(|error| format!("{error:#}"))?;
    let output = run(&mut command, b"", RUN_TIMEOUT).map_err(|error| format!("{error:#}"))?;
    let said = output.complaints();
    if output.status != Some(i32::from(STATUS_KERNEL_PANIC)) {
        return Err(format!("status {:?}: {said}", output.status));
    }
    match words.iter().find(|word| !said.contains(**word)) {
        Some(word) => Err(format!("nothing of {word:?}: {said}")),
        None => Ok(()),
    }
}

/// The program is silent while it makes one call with all its failures.
const QUIET_MAX: Duration = Duration::from_secs(240);

/// Calls with injected failures.
fn injection(repository: &Path) -> Result<Verdict> {
    let program = stress::build(repository)?;
    let arguments = ["--checking", "--", program.as_str(), "inject"];
    let output = run(&mut heddle_run(Kernel::Heddle, &arguments)?, b"", QUIET_MAX)?;
    if output.status == Some(0) {
        return Ok(Verdict::Passed);
    }
    let text = output.text();
    let wrong: Vec<&str> = text.lines().filter(|line| line.contains("wrong")).collect();
    let last = text.lines().last().unwrap_or_default();
    Ok(Verdict::Failed(format!("{} after '{last}' {}", wrong.join("; "), output.complaints())))
}

/// The longest stretch of the checking kernel without a look around, in thousands of instructions.
const STRETCH_MAX: &str = "1000";
/// Families of guest tests whose calls keep below it, by machine.
const BOUNDED: [&[&str]; 2] = [
    &[
        "signal::",
        "pipe::",
        "memory::",
        "socket::",
        "poll::",
        "ipc",
        "inotify::",
        "privilege::",
        "ranges::",
        "waiting::",
        "watchers::",
    ],
    &["epoll::", "process::", "progress::", "file::", "procfs::", "listing::", "memory_limits::"],
];

/// Guest tests on a clock that counts instructions, with a bound for each stretch of the kernel.
fn stretches(repository: &Path) -> Result<Verdict> {
    let limit = format!("heddle.stretch-us={STRETCH_MAX}");
    for families in BOUNDED {
        let verdict = counted(repository, &["--checking", "--boot", &limit], families)?;
        if !matches!(verdict, Verdict::Passed) {
            return Ok(verdict);
        }
    }
    Ok(Verdict::Passed)
}

/// Guest tests on a clock that counts instructions, which they are told.
fn counted(repository: &Path, options: &[&str], families: &[&str]) -> Result<Verdict> {
    let program = cargo::program(repository, "heddle-guest-tests")?.to_string_lossy().into_owned();
    let machine = ["--count-instructions", "-e", "HEDDLE_COUNTED=1", "--", &program];
    let arguments = [options, &machine, families].concat();
    let output = run(&mut heddle_run(Kernel::Heddle, &arguments)?, b"", QUIET_MAX)?;
    if output.status == Some(0) {
        return Ok(Verdict::Passed);
    }
    let text = output.text();
    let wrong: Vec<&str> = text.lines().filter(|line| line.starts_with("not ok")).collect();
    Ok(Verdict::Failed(format!("{:?} {} {}", output.status, wrong.join("; "), output.complaints())))
}

/// Runs the tests.
///
/// # Errors
/// If the stress programs do not build or the tool cannot be started.
pub fn test(repository: &Path, filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    // Not within the time of the first test.
    crate::guest::heddle::build_checking()?;
    for (mistake, words) in MISTAKES {
        let name = format!("checking/{} is reported", mistake.split(' ').next().unwrap_or_default());
        if filter.is_none_or(|filter| name.contains(filter)) {
            tally.record(&name, &Verdict::from(is_noticed(mistake, words)));
        }
    }
    let name = "checking/calls survive the failure of each of their steps";
    if filter.is_none_or(|filter| name.contains(filter)) {
        tally.record(name, &injection(repository)?);
    }
    let name = "checking/stretches of the kernel are bounded by instructions";
    if filter.is_none_or(|filter| name.contains(filter)) {
        tally.record(name, &stretches(repository)?);
    }
    let name = "checking/calls end soon after a kill, and urgent threads wait for none";
    if filter.is_none_or(|filter| name.contains(filter)) {
        tally.record(name, &counted(repository, &[], &["bounds::"])?);
    }
    let name = "checking/the same on this build";
    if filter.is_none_or(|filter| name.contains(filter)) {
        tally.record(name, &counted(repository, &["--checking"], &["bounds::"])?);
    }
    Ok(())
}
