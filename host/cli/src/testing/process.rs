//! Runs this tool as a user would, with an end to every wait.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::STATUS_SIGNAL_BASE;
use crate::guest::Kernel;
use crate::machine::accelerator;

/// Longer than any run is silent on a busy host; a run that is silent so long is stuck.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(90);
const CHUNK_BYTES: usize = 64 << 10;
const POLL_PERIOD: Duration = Duration::from_millis(5);

/// The results of a run.
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
    let mut command = Command::new(crate::paths::own_program()?);
    command.args(["run", "--kernel", kernel.name()]).args(arguments);
    command.env(accelerator::VARIABLE, accelerator::choice().name());
    Ok(command)
}

/// Runs a command with this input until it ends, or is stuck: neither writes nor ends for `quiet_max`.
///
/// # Errors
/// If it cannot be started.
pub fn run(command: &mut Command, input: &[u8], quiet_max: Duration) -> Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting a test's program")?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let written_bytes = AtomicUsize::new(0);
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A program need not read all of its input.
            stdin.map(|mut stdin| stdin.write_all(input));
        });
        let stdout = scope.spawn(|| read_all(stdout, &written_bytes));
        let stderr = scope.spawn(|| read_all(stderr, &written_bytes));
        let mut seen_bytes = 0;
        let status = wait_while(&mut child, quiet_max, || {
            let now = written_bytes.load(Ordering::Relaxed);
            std::mem::replace(&mut seen_bytes, now) != now
        });
        Output {
            stdout: stdout.join().unwrap_or_default(),
            stderr: stderr.join().unwrap_or_default(),
            status,
        }
    });
    Ok(output)
}

fn read_all(source: Option<impl Read>, written_bytes: &AtomicUsize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Some(mut source) = source else { return bytes };
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = source.read(&mut chunk) {
        bytes.extend_from_slice(&chunk[..count]);
        written_bytes.fetch_add(count, Ordering::Relaxed);
    }
    bytes
}

/// Waits for a child's end, and ends it by force after `timeout`; a machine that it started ends with it.
pub fn wait(child: &mut Child, timeout: Duration) -> Option<i32> {
    wait_while(child, timeout, || false)
}

/// As [`wait`], where the time begins anew whenever there is `progress`.
fn wait_while(child: &mut Child, timeout: Duration, mut progress: impl FnMut() -> bool) -> Option<i32> {
    let mut deadline = Instant::now() + timeout;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            let signal = status.signal().map(|signal| i32::from(STATUS_SIGNAL_BASE) + signal);
            return status.code().or(signal);
        }
        if progress() {
            deadline = Instant::now() + timeout;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(POLL_PERIOD);
    }
}
