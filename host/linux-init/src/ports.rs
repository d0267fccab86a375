//! The machine's virtio-serial ports, found by name.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use heddle_abi::boot::port;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;

use crate::root::wait_for;

const CLASS: &str = "/sys/class/virtio-ports";
const PORT_TIMEOUT: Duration = Duration::from_secs(30);

/// The open ports, non-blocking.
pub struct Ports {
    /// Messages.
    pub control: File,
    /// Standard input.
    pub stdin: File,
    /// Standard output.
    pub stdout: File,
    /// Standard error.
    pub stderr: File,
    /// The terminal.
    pub tty: File,
}

/// Opens every port, waiting until the driver has them and the host is at their other end.
pub fn open_all() -> Result<Ports> {
    let open = |number: u32| {
        let name = port::NAMES[number as usize - 1];
        open_connected(&find(name)?).context(name)
    };
    Ok(Ports {
        control: open(port::CONTROL)?,
        stdin: open(port::STDIN)?,
        stdout: open(port::STDOUT)?,
        stderr: open(port::STDERR)?,
        tty: open(port::TTY)?,
    })
}

fn find(name: &str) -> Result<PathBuf> {
    let deadline = Instant::now() + PORT_TIMEOUT;
    loop {
        if let Some(path) = look(name)? {
            return Ok(path);
        }
        if Instant::now() > deadline {
            bail!("no virtio port named {name}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn look(name: &str) -> Result<Option<PathBuf>> {
    let entries = match std::fs::read_dir(CLASS) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.context(CLASS)?,
    };
    for entry in entries {
        let entry = entry?;
        // The name arrives in a message of its own, after the port.
        let found = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if found.trim_end() == name {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

fn open_connected(path: &Path) -> Result<File> {
    wait_for(path)?;
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    let deadline = Instant::now() + PORT_TIMEOUT;
    loop {
        let mut entry = [PollFd::new(&file, PollFlags::OUT)];
        poll(&mut entry, None)?;
        if !entry[0].revents().contains(PollFlags::HUP) {
            break;
        }
        if Instant::now() > deadline {
            bail!("the host is not connected to {}", path.display());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(file)
}
