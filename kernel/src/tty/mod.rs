//! Terminals: the console and pseudoterminals.
//!
//! A [`Terminal`] joins a line (the host's terminal, or the master of a pseudoterminal) with the programs that have it
//! open. Input and output go through heddle-tty's line discipline; this module adds what concerns others:
//! who waits, who is in the foreground ([`job`]), who is told of signals, and hang-ups.
//!
//! ```text
//!   host or master ──line_input──▶ LineDiscipline ──read──▶ programs (TerminalFile)
//!                  ◀─line_output── output queue  ◀─write──
//! ```

pub mod console;
mod control;
pub mod instance;
mod job;
mod output;
mod program;
pub mod pty;
mod state;

use alloc::sync::Arc;

use crate::error::Errno;
use crate::fs::inode::{Contents, Opening, device_number};
use crate::fs::lookup::Walker;
use crate::fs::{File, FileType, OpenFile, StatusFlags, devices, mount};
use crate::memory::fallible;
use crate::process::{Credentials, Thread};

use crate::tty::program::TerminalFile;
pub use crate::tty::state::Terminal;

/// Major number of `/dev/tty`, `/dev/console` and `/dev/ptmx`, and their minor numbers.
const MAJOR: u32 = 5;
const MINOR_CONTROLLING: u32 = 0;
const MINOR_CONSOLE: u32 = 1;
const MINOR_MASTER: u32 = 2;
/// Major number of pseudoterminals.
const MAJOR_PTY: u32 = 136;

/// Makes the device nodes, and makes them work; `/dev` has to be there.
///
/// # Errors
/// `ENOMEM`, or those of mknod(2).
pub fn register() -> Result<(), Errno> {
    devices::register(MAJOR, MINOR_CONTROLLING..=MINOR_MASTER, |minor, opening| match minor {
        MINOR_CONTROLLING => open_controlling(opening),
        MINOR_CONSOLE => open(&console::terminal()?, opening.thread, opening.flags_of_call),
        _ => pty::open_master(opening),
    })?;
    devices::register(MAJOR_PTY, 0..=pty::LIMIT as u32 - 1, |number, opening| {
        open(&pty::find(number)?, opening.thread, opening.flags_of_call)
    })?;
    let nodes = [
        (&b"tty"[..], MINOR_CONTROLLING, 0o666),
        (b"console", MINOR_CONSOLE, 0o600),
        (b"ptmx", MINOR_MASTER, 0o666),
    ];
    for (name, minor, permissions) in nodes {
        let device = device_number(MAJOR, minor);
        devices::publish(name, permissions, Contents::Device(FileType::Character, device))?;
    }
    Ok(())
}

/// `/dev/tty`: the controlling terminal of whoever opens it.
fn open_controlling(opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
    let session = opening.thread.ok_or(Errno::ENXIO)?.process.session();
    session.terminal().ok_or(Errno::ENXIO)?.open()
}

/// Opens a terminal on its program's side, with the flags of open(2). It becomes the controlling terminal of a session
/// leader that has none, unless the flags say no.
fn open(terminal: &Arc<Terminal>, thread: Option<&Arc<Thread>>, flags: u32) -> Result<Arc<dyn File>, Errno> {
    use linux_raw_sys::general::{CAP_SYS_ADMIN, O_NOCTTY, O_WRONLY};
    let is_root = thread.is_none_or(|thread| thread.credentials().is_capable(CAP_SYS_ADMIN));
    if terminal.state.lock().exclusive && !is_root {
        return Err(Errno::EBUSY);
    }
    let file = TerminalFile::open(terminal)?;
    if let Some(thread) = thread.filter(|_| flags & (O_NOCTTY | O_WRONLY) == 0) {
        job::adopt_if_free(terminal, thread);
    }
    Ok(file)
}

/// A terminal's node below `/dev`, so that ttyname(3) finds it; none if a program has removed it.
pub fn open_file(file: Arc<dyn File>, path: &[u8], flags: StatusFlags) -> Result<Arc<OpenFile>, Errno> {
    let place = mount::root().and_then(|root| {
        let start = root.clone();
        Walker { credentials: &Credentials::ROOT, root, start, thread: None }.find(path).ok()
    });
    fallible::try_arc(match place {
        Some(place) => OpenFile::at(file, flags, place),
        None => OpenFile::new(file, flags),
    })
}

/// An open file description of the console, as a login makes it.
///
/// # Errors
/// `EIO` (the host's terminal is gone), `ENOMEM`.
pub fn open_console(console: &Arc<Terminal>) -> Result<Arc<OpenFile>, Errno> {
    open_file(TerminalFile::open(console)?, b"/dev/console", StatusFlags::RDWR)
}

/// The number of the console's device.
const CONSOLE_DEVICE: u64 = device_number(MAJOR, MINOR_CONSOLE);
