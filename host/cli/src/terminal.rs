//! The host's terminal: raw while the guest's line discipline is in charge, and as it was afterwards.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use heddle_abi::control::WindowSize;
use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, OutputModes, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};

/// The terminal that the program's input comes from. Dropping it restores the terminal.
#[derive(Debug)]
pub struct Terminal {
    fd: OwnedFd,
    saved: Termios,
    keeps_output_modes: bool,
    is_raw: bool,
}

impl Terminal {
    /// Takes note of the terminal's state. With `keeps_output_modes` raw mode will leave the terminal's output
    /// processing on, for the sake of other programs that write to it meanwhile.
    ///
    /// # Errors
    /// If `fd` is no terminal.
    pub fn new(fd: BorrowedFd<'_>, keeps_output_modes: bool) -> io::Result<Self> {
        let saved = tcgetattr(fd)?;
        Ok(Self { fd: fd.try_clone_to_owned()?, saved, keeps_output_modes, is_raw: false })
    }

    /// Whether the terminal is raw now, and so may be read.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.is_raw
    }

    /// Makes the terminal raw if this process is in its foreground; one in the background would be stopped.
    pub fn enter(&mut self) {
        if !tcgetpgrp(&self.fd).is_ok_and(|group| group == getpgrp()) {
            self.is_raw = false;
            return;
        }
        let mut raw = self.saved.clone();
        raw.make_raw();
        if self.keeps_output_modes {
            let kept = self.saved.output_modes & (OutputModes::OPOST | OutputModes::ONLCR);
            raw.output_modes |= kept;
        }
        self.is_raw = tcsetattr(&self.fd, OptionalActions::Now, &raw).is_ok();
    }

    /// Restores the terminal.
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.is_raw) {
            // A terminal that is gone needs no restoring.
            let _ = tcsetattr(&self.fd, OptionalActions::Drain, &self.saved);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The size of the terminal at `fd`; zero if it says none.
#[must_use]
pub fn window_size(fd: BorrowedFd<'_>) -> WindowSize {
    tcgetwinsize(fd).map_or(WindowSize::default(), |size| WindowSize {
        rows: size.ws_row.into(),
        columns: size.ws_col.into(),
    })
}

/// Takes the carriage return out of each line end: the guest's line discipline has put it there, and the host's,
/// where it still processes output, does so again.
pub fn strip_carriage_returns(bytes: &mut Vec<u8>) {
    let mut previous = None;
    let mut kept = Vec::with_capacity(bytes.len());
    for &byte in bytes.iter() {
        if byte == b'\n' && previous == Some(b'\r') {
            kept.pop();
        }
        kept.push(byte);
        previous = Some(byte);
    }
    *bytes = kept;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_carriage_return_before_a_line_end_goes() {
        let mut bytes = b"a\r\nb\r\r\nc\rd\n\n\r\n".to_vec();
        strip_carriage_returns(&mut bytes);
        assert_eq!(bytes, b"a\nb\r\nc\rd\n\n\n");
    }
}
