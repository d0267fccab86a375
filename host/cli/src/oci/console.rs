//! Terminals of containers: a pseudoterminal of the host, whose master goes to the engine over a socket.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result};
use heddle_abi::control::WindowSize;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::session::Streams;

/// Makes a terminal, sends its master to the engine, and returns the other side as the streams of a program. It becomes
/// this process's controlling terminal, so that changes of its size are told.
///
/// # Errors
/// The error of a system call.
pub fn connect(socket: &Path, size: WindowSize) -> Result<Streams> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).context("making a terminal")?;
    grantpt(&master).context("making a terminal")?;
    unlockpt(&master).context("making a terminal")?;
    let terminal = ioctl_tiocgptpeer(&master, flags).context("making a terminal")?;
    if size.rows != 0 {
        let half = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        let size =
            Winsize { ws_row: half(size.rows), ws_col: half(size.columns), ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).context("the terminal's size")?;
    }
    send(socket, &master)?;
    drop(master);
    crate::machines::detach::leave_session();
    // Without it sizes are not followed, and nothing else is lost.
    let _ = rustix::process::ioctl_tiocsctty(&terminal);
    let copy = || terminal.try_clone().context("the terminal");
    Ok(Streams { stdin: copy()?, stdout: copy()?, stderr: copy()? })
}

fn send(socket: &Path, master: &OwnedFd) -> Result<()> {
    let connection = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let descriptors = [master.as_fd()];
    message.push(SendAncillaryMessage::ScmRights(&descriptors));
    let name = [IoSlice::new(b"/dev/ptmx")];
    sendmsg(&connection, &name, &mut message, SendFlags::empty()).context("passing the terminal on")?;
    Ok(())
}

/// Streams that lead nowhere.
///
/// # Errors
/// The error of the system call.
pub fn nowhere() -> Result<Streams> {
    let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    Ok(Streams { stdin: null()?, stdout: null()?, stderr: null()? })
}
