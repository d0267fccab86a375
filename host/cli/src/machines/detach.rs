//! A machine in the background: this program starts itself once more, as the leader of a session of its own, and waits
//! until the copy says that the program runs.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use anyhow::{Context, Result};
use rustix::io::FdFlags;
use rustix::pipe::{PipeFlags, pipe_with};

/// Names the descriptor on which the copy says that it is ready.
const READY: &str = "HEDDLE_READY_DESCRIPTOR";
/// The word that it says.
const WORD: &[u8] = b"ready";

/// The copy's end of the connection to the command that started it.
#[derive(Debug)]
pub struct ReadyPipe(File);

impl ReadyPipe {
    /// The connection, in a copy; nothing in a command that a user started.
    ///
    /// # Errors
    /// If the environment names a descriptor that isn't there.
    pub fn inherited() -> Result<Option<Self>> {
        let Some(number) = std::env::var_os(READY) else { return Ok(None) };
        let number: i32 = number.to_str().and_then(|text| text.parse().ok()).context(READY)?;
        // Opened anew: the inherited descriptor belongs to nobody, and programs that this one starts may have it.
        let file = File::options().write(true).open(format!("/proc/self/fd/{number}")).context(READY)?;
        Ok(Some(Self(file)))
    }

    /// Says that the program runs, or waits to be started.
    pub fn tell(mut self) {
        // The command may have been ended; the machine runs on.
        let _ = self.0.write_all(WORD);
    }
}

/// How the start of a copy went.
#[derive(Debug)]
pub enum Started {
    /// It is ready.
    Ready(Child),
    /// It ended first, with this status, and has said why.
    Ended(u8),
}

/// Starts the copy and waits until it is ready.
///
/// # Errors
/// The error of the system call.
pub fn start(mut command: Command) -> Result<Started> {
    let (reader, writer): (OwnedFd, OwnedFd) = pipe_with(PipeFlags::CLOEXEC).context("making a pipe")?;
    rustix::io::fcntl_setfd(&writer, FdFlags::empty()).context("passing a pipe on")?;
    command.env(READY, writer.as_raw_fd().to_string());
    let mut child = command.spawn().context("starting this program once more")?;
    drop(writer);
    let mut word = vec![0; WORD.len()];
    match File::from(reader).read_exact(&mut word) {
        Ok(()) => Ok(Started::Ready(child)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let status = child.wait().context("waiting for the machine's process")?;
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            Ok(Started::Ended(code.unwrap_or(crate::STATUS_TOOL_FAILED)))
        }
        Err(error) => Err(error).context("waiting for the machine's process"),
    }
}

/// This program with the arguments that it has.
///
/// # Errors
/// If its file is not known.
pub fn copy() -> Result<Command> {
    let mut command = Command::new(crate::paths::own_program()?);
    let mut words = std::env::args_os();
    // The name by which it was called says which command is meant.
    command.arg0(words.next().context("finding this program's name")?).args(words);
    Ok(command)
}

/// Makes this process one of its own session, which no terminal's signals reach.
pub fn leave_session() {
    // A leader already has its own.
    let _ = rustix::process::setsid();
}
