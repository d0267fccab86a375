//! The UNIX socket between two machines: whoever comes first listens.

use std::io::{ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::io::{FdFlags, fcntl_setfd};

/// How often the two may find each other between looking and listening.
const ATTEMPTS: usize = 3;

/// This machine's end.
#[derive(Debug)]
pub struct Peer {
    socket: OwnedFd,
    /// The listening socket's file, which goes with it.
    file: Option<PathBuf>,
}

impl Peer {
    /// Connects to the machine that listens at `path`, or listens there.
    pub fn open(path: &Path) -> Result<Self> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match Self::try_open(path) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && attempt < ATTEMPTS => {}
                result => return result,
            }
        }
    }

    fn try_open(path: &Path) -> Result<Self> {
        let (socket, file) = match UnixStream::connect(path) {
            Ok(stream) => (OwnedFd::from(stream), None),
            Err(error) => {
                if error.kind() == ErrorKind::ConnectionRefused {
                    // Left behind by a machine that was killed.
                    std::fs::remove_file(path)?;
                } else if error.kind() != ErrorKind::NotFound {
                    return Err(error);
                }
                (OwnedFd::from(UnixListener::bind(path)?), Some(path.to_path_buf()))
            }
        };
        // QEMU inherits it under the same number.
        fcntl_setfd(socket.as_fd(), FdFlags::empty())?;
        Ok(Self { socket, file })
    }

    /// The socket's number, here and in QEMU.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Whether the other machine is yet to come.
    pub fn listens(&self) -> bool {
        self.file.is_some()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}
