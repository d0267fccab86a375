//! Telling whether a file is still the one that was looked at, without reading it.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The state of a path itself, links not followed, at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    path: PathBuf,
    /// Device, inode, mode, length, times of modification and of change in nanoseconds; nothing if there was no file.
    identity: Option<[i128; 6]>,
}

impl Stamp {
    /// The present state of `path`.
    pub fn of(path: &Path) -> Self {
        Stamp { path: path.to_owned(), identity: identity(path).ok() }
    }

    /// The identity of the file without its path, which may have several spellings.
    pub fn identity(&self) -> Option<[i128; 6]> {
        self.identity
    }

    /// Whether the path still looks the same.
    pub fn holds(&self) -> bool {
        identity(&self.path).ok() == self.identity
    }

    /// As text without NUL bytes: numbers, then the path.
    pub fn encode(&self) -> Vec<u8> {
        let mut text = String::new();
        for number in self.identity.iter().flatten() {
            text.push_str(&format!("{number} "));
        }
        [text.as_bytes(), self.path.as_os_str().as_bytes()].concat()
    }

    /// The inverse of [`Stamp::encode`].
    pub fn decode(text: &[u8]) -> Option<Self> {
        let start = text.iter().position(|&byte| byte == b'/')?;
        let numbers = std::str::from_utf8(&text[..start]).ok()?;
        let numbers: Vec<i128> = numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let identity = if numbers.is_empty() { None } else { Some(numbers.try_into().ok()?) };
        Some(Stamp { path: std::ffi::OsString::from_vec(text[start..].to_vec()).into(), identity })
    }
}

fn identity(path: &Path) -> io::Result<[i128; 6]> {
    let metadata = fs::symlink_metadata(path)?;
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    Ok([
        metadata.dev().into(),
        metadata.ino().into(),
        metadata.mode().into(),
        metadata.len().into(),
        nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a file");
        let absent = Stamp::of(&path);
        assert!(absent.holds());
        fs::write(&path, "1").unwrap();
        let present = Stamp::of(&path);
        assert!(present.holds() && !absent.holds());
        fs::write(&path, "22").unwrap();
        assert!(!present.holds());
    }

    #[test]
    fn survives_encoding() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path().to_owned(), directory.path().join("no such file 12 ")] {
            let stamp = Stamp::of(&path);
            assert_eq!(Stamp::decode(&stamp.encode()), Some(stamp));
        }
        assert_eq!(Stamp::decode(b"1 2 /x"), None);
        assert_eq!(Stamp::decode(b"1 2"), None);
    }
}
