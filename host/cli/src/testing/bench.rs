//! `heddle bench` itself: instruction counts beside the committed ones, and ends that leave no machine behind.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use heddle_abi::control::WindowSize;
use rustix::process::{Pid, Signal, kill_process};

use super::process::wait;
use super::pseudo_terminal::PseudoTerminal;
use super::streams::{all_gone, machines};
use super::{Tally, Verdict};
use crate::bench::baseline::{self, Outcome};
use crate::machine::QEMU;

/// Longer than it takes to build the experiments' program and to start a machine.
const START_TIMEOUT: Duration = Duration::from_secs(600);
const END_TIMEOUT: Duration = Duration::from_secs(60);
const WINDOW: WindowSize = WindowSize { rows: 24, columns: 80 };

/// Runs these tests.
pub fn test(filter: Option<&str>, tally: &mut Tally) {
    let is_wanted = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    for (name, signal) in [("SIGINT", Signal::INT), ("SIGTERM", Signal::TERM), ("SIGKILL", Signal::KILL)] {
        let name = format!("bench/{name} leaves no machine behind");
        if is_wanted(&name) {
            tally.record(&name, &ended_by(signal).into());
        }
    }
    let name = "bench/closing the terminal leaves no machine behind";
    if is_wanted(name) {
        tally.record(name, &closed().into());
    }
    if is_wanted("bench/instructions") {
        counts(tally);
    }
}

/// A verdict for each experiment whose counts are committed.
fn counts(tally: &mut Tally) {
    match baseline::checked(None).and_then(|experiments| baseline::check(&experiments)) {
        Ok(outcomes) => {
            for (name, outcome) in outcomes {
                let verdict = match outcome {
                    Outcome::Good(_) => Verdict::Passed,
                    Outcome::Bad(bad, _) => Verdict::Failed(bad.join("; ")),
                    Outcome::NotComparable(reason) => Verdict::Skipped(format!("not comparable: {reason}")),
                };
                tally.record(&format!("bench/instructions of {name}"), &verdict);
            }
        }
        Err(error) => tally.record("bench/instructions", &Verdict::Failed(format!("{error:#}"))),
    }
}

/// An experiment that would run for minutes and keeps nothing when it is ended.
fn experiment() -> Result<Command> {
    let mut command = Command::new(crate::paths::own_program()?);
    command.args(["bench", "yield", "--full"]);
    Ok(command)
}

/// Waits until a machine runs.
fn machine_of(child: &Child) -> Result<Vec<Pid>, String> {
    let deadline = Instant::now() + START_TIMEOUT;
    let is_machine = |pid: &Pid| {
        let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
        // The system keeps fifteen characters of a name.
        std::fs::read_to_string(path).is_ok_and(|name| QEMU.starts_with(name.trim()) && name.len() > 8)
    };
    while Instant::now() < deadline {
        let found: Vec<_> = machines(child).into_iter().filter(is_machine).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("no machine started".to_owned())
}

fn ended_by(signal: Signal) -> Result<(), String> {
    let mut command = experiment().map_err(|error| format!("{error:#}"))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let machines = machine_of(&child).inspect_err(|_| drop(child.kill()))?;
    kill_process(Pid::from_child(&child), signal).map_err(|error| error.to_string())?;
    match wait(&mut child, END_TIMEOUT) {
        Some(status) if status > i32::from(crate::STATUS_SIGNAL_BASE) => all_gone(&machines),
        status => Err(format!("status {status:?}, expected a signal's")),
    }
}

fn closed() -> Result<(), String> {
    let command = experiment().map_err(|error| format!("{error:#}"))?;
    let terminal = PseudoTerminal::start(command, WINDOW).map_err(|error| error.to_string())?;
    let machines = machine_of(terminal.child())?;
    match terminal.close(END_TIMEOUT) {
        Some(status) if status > i32::from(crate::STATUS_SIGNAL_BASE) => all_gone(&machines),
        status => Err(format!("status {status:?}, expected a signal's")),
    }
}
