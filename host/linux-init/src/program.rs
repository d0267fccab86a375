//! Starts the program with its descriptors.
#![allow(unsafe_code)] // `pre_exec` runs code between fork and exec, which std makes unsafe to ask for.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::Result;
use heddle_abi::control::{Descriptor, Ending, Start, WindowSize};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Gid, Pid, Uid};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The program's terminal: what it has open, and our side of it.
pub struct Terminal {
    /// Our side.
    pub master: OwnedFd,
    /// Kept open, so that the master never sees the last user go.
    slave: OwnedFd,
}

impl Terminal {
    fn new(window: WindowSize) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let slave =
            ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        let terminal = Self { master, slave };
        terminal.resize(window)?;
        Ok(terminal)
    }

    /// Sets the size; the foreground process group gets `SIGWINCH`.
    pub fn resize(&self, window: WindowSize) -> io::Result<()> {
        let clamp = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        let size =
            Winsize { ws_row: clamp(window.rows), ws_col: clamp(window.columns), ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.master, size)?)
    }
}

/// A program that runs, and our ends of its streams.
pub struct Program {
    /// Its process, and process group.
    pub pid: Pid,
    /// Where its standard input is written, if that is a pipe.
    pub stdin: Option<File>,
    /// Where its standard output and error are read, where they are pipes.
    pub outputs: [Option<File>; 2],
    /// Its terminal, if a descriptor is one.
    pub terminal: Option<Terminal>,
}

/// Why there is no program, as the host is told.
pub struct NotStarted(pub Ending);

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> Self {
        Self(Ending::NotStarted(number(&error)))
    }
}

fn number(error: &io::Error) -> u32 {
    error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()).cast_unsigned()
}

/// Starts what the host asked for.
pub fn spawn(start: &Start<'_>) -> Result<Program, NotStarted> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Err(error) = rustix::fs::open(start.directory, directory, Mode::empty()) {
        return Err(NotStarted(Ending::NoDirectory(number(&error.into()))));
    }
    let mut command = Command::new(OsStr::from_bytes(start.program));
    let mut arguments = start.arguments.iter().map(OsStr::from_bytes);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).env_clear().current_dir(OsStr::from_bytes(start.directory));
    for variable in start.environment.iter() {
        if let Some(equals) = variable.iter().position(|&byte| byte == b'=') {
            let (key, value) = (&variable[..equals], &variable[equals + 1..]);
            command.env(OsStr::from_bytes(key), OsStr::from_bytes(value));
        }
    }
    let terminal = start
        .descriptors
        .contains(&Descriptor::Terminal)
        .then(|| Terminal::new(start.window).map_err(io::Error::other))
        .transpose()?;
    let identity = Identity { user: start.user, group: start.group, groups: start.groups.iter().collect() };
    connect(&mut command, start.descriptors, terminal.as_ref(), identity)?;
    let mut child = command.spawn()?;
    let own = |pipe: Option<OwnedFd>| -> io::Result<Option<File>> {
        let Some(pipe) = pipe else { return Ok(None) };
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Some(File::from(pipe)))
    };
    Ok(Program {
        pid: Pid::from_child(&child),
        stdin: own(child.stdin.take().map(OwnedFd::from))?,
        outputs: [own(child.stdout.take().map(OwnedFd::from))?, own(child.stderr.take().map(OwnedFd::from))?],
        terminal,
    })
}

/// User, group and supplementary groups of the program.
struct Identity {
    user: u32,
    group: u32,
    groups: Vec<u32>,
}

fn connect(
    command: &mut Command,
    descriptors: [Descriptor; 3],
    terminal: Option<&Terminal>,
    identity: Identity,
) -> io::Result<()> {
    let stdio = |descriptor| -> io::Result<Stdio> {
        Ok(match (descriptor, terminal) {
            (Descriptor::Terminal, Some(terminal)) => Stdio::from(terminal.slave.try_clone()?),
            (Descriptor::Pipe, _) => Stdio::piped(),
            _ => Stdio::null(),
        })
    };
    let [stdin, stdout, stderr] = descriptors;
    command.stdin(stdio(stdin)?).stdout(stdio(stdout)?).stderr(stdio(stderr)?);
    let controlling = terminal.map(|terminal| terminal.slave.try_clone()).transpose()?;
    let groups: Vec<Gid> = identity.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let (user, group) = (Uid::from_raw(identity.user), Gid::from_raw(identity.group));
    let prepare = move || {
        rustix::process::setsid()?;
        if let Some(terminal) = &controlling {
            rustix::process::ioctl_tiocsctty(terminal)?;
        }
        for (number, descriptor) in (0..).zip(descriptors) {
            if descriptor == Descriptor::Closed {
                // SAFETY: std has put /dev/null there for the program and nothing else in this child owns it.
                unsafe { rustix::io::close(number) };
            }
        }
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        Ok(())
    };
    // SAFETY: the closure only makes system calls; it neither allocates nor takes locks.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}
