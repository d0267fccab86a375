//! The kernel's log: a file that QEMU writes and that the tool reads when there is something to explain.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};

/// A file without a name: in memory, or, where the host has no such files, in the directory for temporary ones.
///
/// # Errors
/// If neither can be had.
pub fn unnamed_file(name: &str) -> io::Result<File> {
    let in_memory = memfd_create(name, MemfdFlags::CLOEXEC);
    in_memory.map(File::from).or_else(|_| on_disk(&std::env::temp_dir()))
}

fn on_disk(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR);
    file.map(File::from).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("a temporary file in {}: {error}", directory.display()))
    })
}

/// A log that the machine writes to.
#[derive(Debug)]
pub struct Log {
    file: File,
    read_bytes: u64,
    partial: Vec<u8>,
}

impl Log {
    /// A log kept in memory.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn in_memory() -> io::Result<Self> {
        let file = unnamed_file("heddle-log")?;
        Ok(Self { file, read_bytes: 0, partial: Vec::new() })
    }

    /// A log in a file of the user's choice; what the file had is lost.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn at(path: &Path) -> io::Result<Self> {
        // A device such as /dev/stderr may not be readable; nothing is read back from it then.
        let open = |read| {
            let mut options = File::options();
            options.read(read).write(true).create(true).truncate(true);
            options.open(path)
        };
        let file = open(true).or_else(|_| open(false))?;
        Ok(Self { file, read_bytes: 0, partial: Vec::new() })
    }

    /// Writes a line of this tool's own, before the machine writes.
    pub fn note(&self, line: &str) {
        // A log that cannot be written is the machine's to report.
        let _ = (&self.file).write_all(format!("heddle: {line}\n").as_bytes());
    }

    /// All that was written so far; nothing if the log cannot be read.
    #[must_use]
    pub fn text(&self) -> String {
        // Not through the file's position: the process that writes to the log may share it.
        let mut bytes = Vec::new();
        if let Ok(metadata) = self.file.metadata()
            && metadata.is_file()
        {
            bytes.resize(usize::try_from(metadata.len()).unwrap_or(0), 0);
            let mut count = 0;
            while let Ok(more @ 1..) = self.file.read_at(&mut bytes[count..], count as u64) {
                count += more;
            }
            bytes.truncate(count);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The complete lines that were written since the last call.
    pub fn new_lines(&mut self) -> Vec<String> {
        let mut bytes = std::mem::take(&mut self.partial);
        if self.file.seek(SeekFrom::Start(self.read_bytes)).is_ok()
            && let Ok(count) = self.file.read_to_end(&mut bytes)
        {
            self.read_bytes += count as u64;
        }
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |index| index + 1);
        self.partial = bytes.split_off(end);
        String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
    }
}

impl AsFd for Log {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_files_in_memory_has_some_on_disk() {
        let folder = std::env::temp_dir();
        let file = on_disk(&folder).unwrap();
        file.write_all_at(b"kept", 3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 7);
        let refused = on_disk(Path::new("/proc/self")).unwrap_err().to_string();
        assert!(refused.contains("a temporary file in /proc/self: "), "{refused}");
    }

    #[test]
    fn new_lines_are_whole_and_come_once() {
        let mut log = Log::in_memory().unwrap();
        let mut writer = File::options().write(true).open(crate::machine::descriptor_path(&log)).unwrap();
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(log.new_lines(), ["one"]);
        assert!(log.new_lines().is_empty());
        writer.write_all(b"o\nthree\n").unwrap();
        assert_eq!(log.new_lines(), ["two", "three"]);
        assert_eq!(log.text(), "one\ntwo\nthree\n");
    }
}
