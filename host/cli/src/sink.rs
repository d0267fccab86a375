//! A standard output of this tool, written without ever blocking the loop that also has to see signals.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use heddle_streams::{Drained, Pump};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;

/// The number of bytes that a pipe accepts without blocking when it polls as writable.
const PIPE_BUF_BYTES: usize = 4096;

/// Where a stream of the program ends.
#[derive(Debug)]
pub struct Sink {
    file: File,
    write_max_bytes: usize,
}

impl Sink {
    /// A sink that writes where `fd` does.
    ///
    /// Pipes and terminals are opened anew, because the flag against blocking belongs to the open file, which is
    /// shared with the process that started this tool. Files keep their offset, and need no flag.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(fstat(fd)?.st_mode);
        if matches!(kind, FileType::Fifo | FileType::CharacterDevice) {
            let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            if let Ok(file) = File::options().write(true).custom_flags(flags).open(path) {
                return Ok(Self { file, write_max_bytes: usize::MAX });
            }
        }
        let write_max_bytes = if kind == FileType::RegularFile { usize::MAX } else { PIPE_BUF_BYTES };
        Ok(Self { file: fd.try_clone_to_owned()?.into(), write_max_bytes })
    }

    /// Writes what can be written now without blocking, and says how much that was.
    ///
    /// # Errors
    /// The error of writing, except that a sink without a reader is no error.
    pub fn write(&self, bytes: &[u8]) -> io::Result<(usize, Drained)> {
        let part = &bytes[..bytes.len().min(self.write_max_bytes)];
        match rustix::io::write(&self.file, part) {
            Ok(count) if count == bytes.len() => Ok((count, Drained::All)),
            Ok(count) => Ok((count, Drained::Some)),
            Err(Errno::AGAIN | Errno::INTR) => Ok((0, Drained::Some)),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::IO) => Ok((0, Drained::ReaderGone)),
            Err(error) => Err(error.into()),
        }
    }

    /// A pump that suits this sink.
    #[must_use]
    pub fn pump(&self) -> Pump {
        Pump::new(self.write_max_bytes)
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
