//! A virtual machine: QEMU, the sockets to its ports, its log, and the certainty that it ends with us.
#![allow(unsafe_code)] // `pre_exec` runs code between fork and exec, which std makes unsafe to ask for.

pub mod accelerator;
mod command;
mod special;
mod watch;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use heddle_abi::boot::port;
use heddle_abi::control::SpecialFile;
use rustix::io::FdFlags;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};

use crate::guest::share::Share;
use crate::log::Log;

pub use command::{Clock, Configuration, INSTRUCTIONS_PER_SECOND, Memory, RootDisk};

/// The emulator's name on PATH.
pub const QEMU: &str = "qemu-system-x86_64";

/// The host's ends of a machine's ports.
#[derive(Debug)]
pub struct Ports {
    /// Messages.
    pub control: UnixStream,
    /// Standard input.
    pub stdin: UnixStream,
    /// Standard output.
    pub stdout: UnixStream,
    /// Standard error.
    pub stderr: UnixStream,
    /// The terminal.
    pub tty: UnixStream,
    /// Further programs.
    pub programs: UnixStream,
    /// Messages about changes in shared folders, to be passed on to the control port as they are.
    pub changes: Option<UnixStream>,
}

/// A running machine. Dropping it ends it.
#[derive(Debug)]
pub struct Machine {
    child: Child,
    pidfd: OwnedFd,
    errors: Log,
    shares: Vec<Share>,
}

impl Machine {
    /// Starts QEMU.
    ///
    /// # Errors
    /// If there is no QEMU, or it cannot be started.
    pub fn start(configuration: &Configuration, log: &Log) -> Result<(Self, Ports)> {
        let mut ends = Vec::with_capacity(port::NAMES.len());
        let mut far = Vec::with_capacity(port::NAMES.len());
        for _ in port::NAMES {
            let (near_end, far_end) = UnixStream::pair().context("making a socket pair")?;
            near_end.set_nonblocking(true).context("making a socket non-blocking")?;
            ends.push(near_end);
            far.push(far_end);
        }
        log.note(&format!(
            "accelerator {}: {}",
            configuration.accelerator.name(),
            configuration.accelerator.reason
        ));
        let errors = Log::in_memory().context("making a file for QEMU's messages")?;
        let sockets: Vec<i32> = far.iter().map(AsRawFd::as_raw_fd).collect();
        let qemu = find_qemu()?;
        let mut command = Command::new(&qemu);
        command.args(command::arguments(configuration, &sockets, log.as_fd().as_raw_fd()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::from(errors.as_fd().try_clone_to_owned()?));
        // Not in our process group: the terminal's signals are ours to pass on.
        command.process_group(0);
        inherit(&mut command, far.iter().map(AsFd::as_fd).chain([log.as_fd()]))?;
        let child = command.spawn().with_context(|| format!("starting {}", qemu.display()))?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let mut machine = Self {
            child,
            pidfd: errors.as_fd().try_clone_to_owned()?,
            errors,
            shares: configuration.shares.clone(),
        };
        machine.pidfd = pidfd.context("watching QEMU")?;
        drop(far);
        let mut ends = ends.into_iter();
        let mut next = || ends.next().context("one socket for each port");
        let ports = Ports {
            control: next()?,
            stdin: next()?,
            stdout: next()?,
            stderr: next()?,
            tty: next()?,
            programs: next()?,
            changes: if configuration.watches_shares { watch::start(&configuration.shares) } else { None },
        };
        Ok((machine, ports))
    }

    /// Polls as readable once the machine has ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Waits for the machine's end.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Makes a FIFO or a socket in a shared folder for the guest; the error number, zero for none.
    #[must_use]
    pub fn make_special_file(&self, asked: &SpecialFile<'_>) -> u32 {
        special::serve(&self.shares, asked)
    }

    /// The messages of QEMU itself.
    #[must_use]
    pub fn errors(&self) -> String {
        self.errors.text()
    }

    /// Stops the machine until [`Machine::resume`], as far as the host's processor is concerned.
    pub fn pause(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::STOP);
    }

    /// Continues after [`Machine::pause`].
    pub fn resume(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::CONT);
    }

    /// The id of QEMU's process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A path by which a child that inherits the descriptor can open it anew.
#[must_use]
pub fn descriptor_path(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The variable of the environment that names another QEMU than PATH's.
pub const QEMU_VARIABLE: &str = "HEDDLE_QEMU";

fn find_qemu() -> Result<PathBuf> {
    if let Some(chosen) = std::env::var_os(QEMU_VARIABLE).filter(|chosen| !chosen.is_empty()) {
        let chosen = PathBuf::from(chosen);
        if !chosen.is_file() {
            bail!("{QEMU_VARIABLE}: {} is no program", chosen.display());
        }
        return Ok(chosen);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(QEMU)).find(|file| file.is_file());
    let Some(found) = found else {
        bail!("no {QEMU} on PATH: install Debian's package qemu-system-x86");
    };
    Ok(found)
}

/// Lets the child have these descriptors under the same numbers, and end when this thread does.
fn inherit<'a>(command: &mut Command, descriptors: impl Iterator<Item = BorrowedFd<'a>>) -> Result<()> {
    let numbers: Vec<i32> = descriptors.map(|descriptor| descriptor.as_raw_fd()).collect();
    let parent = rustix::process::getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            // The parent ended before its death could be announced.
            return Err(io::Error::from(rustix::io::Errno::CHILD));
        }
        for &number in &numbers {
            // SAFETY: the caller holds the descriptors open until the child has been started.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls; it neither allocates nor takes locks.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}
