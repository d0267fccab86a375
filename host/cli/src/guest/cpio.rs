//! Writes a cpio archive in the `newc` format, as Linux unpacks its initial file system from.

use std::io::{self, Write};

const MAGIC: &str = "070701";
const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive being written.
pub struct Archive<W: Write> {
    output: W,
    entries: u32,
}

impl<W: Write> Archive<W> {
    /// An empty archive.
    pub fn new(output: W) -> Self {
        Self { output, entries: 0 }
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, TYPE_DIRECTORY | 0o755, (0, 0), &[])
    }

    /// Adds an executable file.
    pub fn file(&mut self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.entry(path, TYPE_FILE | 0o755, (0, 0), contents)
    }

    /// Adds a character device.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, TYPE_CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.output)
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) -> io::Result<()> {
        let size = u32::try_from(contents.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let name_bytes = u32::try_from(path.len() + 1).map_err(|_| io::ErrorKind::InvalidFilename)?;
        self.entries += 1;
        let links = if mode & TYPE_DIRECTORY != 0 { 2 } else { 1 };
        let (user, group, time, check) = (0, 0, 0, 0);
        let fields =
            [self.entries, mode, user, group, links, time, size, 0, 0, device.0, device.1, name_bytes, check];
        let mut header = String::from(MAGIC);
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(path);
        header.push('\0');
        self.aligned(header.as_bytes())?;
        self.aligned(contents)
    }

    /// Writes bytes, and zeros up to a multiple of four.
    fn aligned(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)?;
        self.output.write_all(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_a_trailer() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("dev").unwrap();
        archive.file("init", b"12345").unwrap();
        let bytes = archive.finish().unwrap();
        // Headers are 110 bytes; with "dev\0" 114, padded to 116; with "init\0" 115, padded to 116, then 5 to 8.
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[116..122], b"070701");
        assert_eq!(&bytes[232..237], b"12345");
        assert_eq!(&bytes[240..246], b"070701");
        assert!(bytes.len().is_multiple_of(4) && bytes.windows(10).any(|part| part == b"TRAILER!!!"));
    }
}
