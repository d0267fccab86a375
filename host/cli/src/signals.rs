//! Signals of this process as something to poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::Signal;
use signal_hook::SigId;

/// The signals that a session acts on.
const WATCHED: [Signal; 7] =
    [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::WINCH, Signal::TSTP, Signal::CONT];

/// Watched signals; from its creation on they no longer end the process.
#[derive(Debug)]
pub struct Signals {
    watches: Vec<(Signal, UnixStream, SigId)>,
}

impl Signals {
    /// Starts watching, except for signals that this process was started to ignore (`nohup`, `&` in a script).
    ///
    /// # Errors
    /// The error of the system call.
    pub fn watch() -> io::Result<Self> {
        let mut watches = Vec::new();
        for signal in WATCHED {
            if is_ignored(signal) {
                continue;
            }
            let (reader, writer) = UnixStream::pair()?;
            reader.set_nonblocking(true)?;
            let id = signal_hook::low_level::pipe::register(signal.as_raw(), writer)?;
            watches.push((signal, reader, id));
        }
        Ok(Self { watches })
    }

    /// The descriptors to poll for reading.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watches.iter().map(|(_, reader, _)| reader.as_fd())
    }

    /// The signals that came since the last call.
    pub fn take(&self) -> Vec<Signal> {
        let came =
            |reader: &UnixStream| matches!(rustix::io::read(reader, &mut [0; 64]), Ok(count) if count > 0);
        self.watches.iter().filter(|(_, reader, _)| came(reader)).map(|(signal, ..)| *signal).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (_, _, id) in &self.watches {
            signal_hook::low_level::unregister(*id);
        }
    }
}

/// Makes programs that this process starts have the default dispositions of the signals that end programs, even if this
/// process was started to ignore them (`nohup`, `&` in a script): an ignored signal stays ignored across `execve`, and
/// one with a handler gets the default. This process still ignores the signals that it ignored, and ends by the others.
///
/// # Errors
/// The error of the system call.
pub fn give_children_defaults() -> io::Result<()> {
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::PIPE] {
        let ends = Arc::new(AtomicBool::new(!is_ignored(signal)));
        let number = signal.as_raw();
        let status = i32::from(crate::STATUS_SIGNAL_BASE) + number;
        signal_hook::flag::register_conditional_shutdown(number, status, ends)?;
    }
    Ok(())
}

/// Whether this process ignores a signal.
#[must_use]
pub fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal.as_raw() - 1)) != 0
}
