//! A pseudo-terminal with a program on it, as a person at a terminal would have it.
#![allow(unsafe_code)] // `pre_exec` runs code between fork and exec, which std makes unsafe to ask for.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heddle_abi::control::WindowSize;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::process::wait;

const POLL_PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A program on a terminal of its own.
pub struct PseudoTerminal {
    /// Gone once the terminal was closed.
    master: Option<OwnedFd>,
    slave: OwnedFd,
    child: Child,
    seen: Vec<u8>,
    /// How much of `seen` was waited for.
    passed: usize,
}

impl PseudoTerminal {
    /// Starts a command as the leader of a new session with this terminal.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn start(mut command: Command, window: WindowSize) -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        set_size(&master, window)?;
        let end = || slave.try_clone().map(Stdio::from);
        command.stdin(end()?).stdout(end()?).stderr(end()?);
        let controlling = slave.try_clone()?;
        // SAFETY: the closure only makes system calls; it neither allocates nor takes locks.
        unsafe {
            command.pre_exec(move || {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(&controlling)?;
                Ok(())
            });
        }
        let child = command.spawn()?;
        Ok(Self { master: Some(master), slave, child, seen: Vec::new(), passed: 0 })
    }

    /// Types.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn write(&self, keys: &[u8]) -> io::Result<()> {
        rustix::io::write(self.master()?, keys)?;
        Ok(())
    }

    /// Changes the size.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn resize(&self, window: WindowSize) -> io::Result<()> {
        set_size(self.master()?, window)
    }

    /// The terminal's modes.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn modes(&self) -> io::Result<Termios> {
        Ok(tcgetattr(&self.slave)?)
    }

    /// Waits until this text appears after what was waited for before.
    ///
    /// # Errors
    /// If it does not appear in time, with what did.
    pub fn expect(&mut self, text: &str, timeout: Duration) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        loop {
            let unread = &self.seen[self.passed..];
            if let Some(at) = unread.windows(text.len()).position(|part| part == text.as_bytes()) {
                self.passed += at + text.len();
                return Ok(());
            }
            let has_ended = matches!(self.child.try_wait(), Ok(Some(_)));
            let came = self.read();
            if Instant::now() > deadline || has_ended && !came {
                let unread = String::from_utf8_lossy(&self.seen[self.passed..]);
                return Err(format!("no {text:?} in {unread:?}"));
            }
        }
    }

    /// Waits for the program's end.
    pub fn wait(&mut self, timeout: Duration) -> Option<i32> {
        let deadline = Instant::now() + timeout;
        // A program cannot end that is not rid of its output.
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            self.read();
        }
        wait(&mut self.child, Duration::ZERO)
    }

    /// The program's process.
    #[must_use]
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Closes the terminal, as a person closes its window, and waits for the program's end.
    #[must_use]
    pub fn close(mut self, timeout: Duration) -> Option<i32> {
        self.master = None;
        wait(&mut self.child, timeout)
    }

    fn master(&self) -> io::Result<&OwnedFd> {
        self.master.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Takes what the program wrote; `false` if nothing comes for a while.
    fn read(&mut self) -> bool {
        let Some(master) = &self.master else { return false };
        let mut entry = [PollFd::new(master, PollFlags::IN)];
        if !matches!(poll(&mut entry, Some(&POLL_PERIOD)), Ok(1..)) {
            return false;
        }
        let mut chunk = [0; 4096];
        let count = rustix::io::read(master, &mut chunk).unwrap_or(0);
        self.seen.extend_from_slice(&chunk[..count]);
        count > 0
    }
}

impl Drop for PseudoTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(master: &OwnedFd, window: WindowSize) -> io::Result<()> {
    let clamp = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    let size =
        Winsize { ws_row: clamp(window.rows), ws_col: clamp(window.columns), ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}
