//! Signals that ask this tool to end, noticed between machines and while a command runs. While a machine runs, its
//! session acts on them.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::signals;

/// How long a command may take to end when it is asked to.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The user wants it to end.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Whether the user wants it to end.
pub struct Interrupt {
    came: Arc<AtomicBool>,
    /// Readable from the first signal on, so that no wait misses it.
    bell: UnixStream,
}

impl Interrupt {
    /// Starts to notice.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn watch() -> Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        let (bell, button) = UnixStream::pair().context("watching signals")?;
        let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
        // A signal that this process was started to ignore (`nohup`, `&` in a script) is not meant for it.
        for signal in signals.into_iter().filter(|signal| !signals::is_ignored(*signal)) {
            let button = button.try_clone().context("watching signals")?;
            signal_hook::flag::register(signal.as_raw(), came.clone()).context("watching signals")?;
            signal_hook::low_level::pipe::register(signal.as_raw(), button).context("watching signals")?;
        }
        Ok(Self { came, bell })
    }

    /// # Errors
    /// [`Interrupted`] once a signal has come.
    pub fn check(&self) -> Result<()> {
        if self.came.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Waits until a process descriptor says that its process has ended; false if it has not at `deadline`.
    ///
    /// # Errors
    /// [`Interrupted`] once a signal has come.
    pub fn wait(&self, process: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool> {
        loop {
            self.check()?;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.map(Timespec::try_from).transpose()?;
            let bell = self.bell.as_fd();
            let mut polled = [PollFd::new(&process, PollFlags::IN), PollFd::new(&bell, PollFlags::IN)];
            match poll(&mut polled, timeout.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) if !polled[0].revents().is_empty() => return Ok(true),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for a process"),
            }
        }
    }

    /// Runs a command to its end, or ends it when the user wants this tool to end.
    ///
    /// # Errors
    /// [`Interrupted`], or if the command can't be started.
    pub fn run(&self, command: &mut Command) -> Result<ExitStatus> {
        self.check()?;
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| name.clone())?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).context(name)?;
        let waited = self.wait(process.as_fd(), None);
        if waited.is_err() {
            end(&mut child);
        }
        waited?;
        Ok(child.wait()?)
    }
}

/// Ends a command: it is asked to first, so that it can end what it started.
fn end(child: &mut Child) {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    let deadline = Instant::now() + END_TIMEOUT;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_the_command_that_runs() {
        let interrupt = Interrupt::watch().unwrap();
        assert!(interrupt.run(&mut Command::new("true")).unwrap().success());
        let itself = rustix::process::getpid();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                kill_process(itself, Signal::HUP).unwrap();
            });
            let error = interrupt.run(Command::new("sleep").arg("600")).unwrap_err();
            assert!(error.is::<Interrupted>());
        });
        assert!(interrupt.check().unwrap_err().is::<Interrupted>());
    }
}
