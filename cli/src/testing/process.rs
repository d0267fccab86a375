//! Runs this tool as a user would, with an end to every wait.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::STATUS_SIGNAL_BASE;
use crate::guest::Kernel;

/// More than any single run takes on a busy host; a run that takes it is stuck.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(90);
const POLL_PERIOD: Duration = Duration::from_millis(5);

/// What a run left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Exit status, as a shell would say it; `None` if the run was stuck and ended by force.
    pub status: Option<i32>,
}

impl Output {
    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The lines on standard error that come from this tool.
    #[must_use]
    pub fn complaints(&self) -> String {
        let errors = String::from_utf8_lossy(&self.stderr).into_owned();
        errors.lines().filter(|line| line.starts_with("heddle: ")).collect::<Vec<_>>().join("; ")
    }
}

/// `heddle run --kernel KERNEL …`, by the executable that this is.
///
/// # Errors
/// If this executable cannot be found.
pub fn heddle_run<S: AsRef<OsStr>>(kernel: Kernel, arguments: &[S]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this executable")?);
    command.args(["run", "--kernel", kernel.name()]).args(arguments);
    Ok(command)
}

/// Runs a command with this input until it ends, or is stuck.
///
/// # Errors
/// If it cannot be started.
pub fn run(command: &mut Command, input: &[u8], timeout: Duration) -> Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting a test's program")?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let status = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A program need not read all of its input.
            stdin.map(|mut stdin| stdin.write_all(input));
        });
        let read = |source: Option<Box<dyn Read + Send>>| {
            scope.spawn(move || {
                let mut bytes = Vec::new();
                source.map(|mut source| source.read_to_end(&mut bytes));
                bytes
            })
        };
        let stdout = read(stdout.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
        let stderr = read(stderr.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
        let status = wait(&mut child, timeout);
        Output {
            stdout: stdout.join().unwrap_or_default(),
            stderr: stderr.join().unwrap_or_default(),
            status,
        }
    });
    Ok(status)
}

/// Waits for a child's end, and ends it by force after `timeout`; a machine that it started ends with it.
pub fn wait(child: &mut Child, timeout: Duration) -> Option<i32> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            let signal = status.signal().map(|signal| i32::from(STATUS_SIGNAL_BASE) + signal);
            return status.code().or(signal);
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(POLL_PERIOD);
    }
}
