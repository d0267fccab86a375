//! Remembers the answer to a request and how to tell whether it still holds, so that a repeated request costs a few
//! hundred `lstat` calls instead of a walk through the package database.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::stamp::Stamp;

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Memo {
    /// The image's name.
    pub key: String,
    /// The program's path in the guest.
    pub program: PathBuf,
    /// Everything on the host that decided.
    pub stamps: Vec<Stamp>,
}

impl Memo {
    /// Whether nothing that decided has changed.
    pub fn holds(&self) -> bool {
        self.stamps.iter().all(Stamp::holds)
    }

    /// Reads a memo; one that is damaged is none.
    pub fn read(path: &Path) -> Option<Self> {
        let bytes = fs::read(path).ok()?;
        let mut records = bytes.strip_suffix(b"\0")?.split(|&byte| byte == 0);
        let key = String::from_utf8(records.next()?.to_vec()).ok()?;
        // A key becomes the name of a file.
        let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        let program = OsString::from_vec(records.next()?.to_vec()).into();
        let stamps = records.map(Stamp::decode).collect::<Option<Vec<_>>>()?;
        plain.then_some(Memo { key, program, stamps })
    }

    /// The image that the memo at `path` names, without the rest of the memo.
    pub fn key_at(path: &Path) -> Option<String> {
        let mut head = [0; 128];
        let count = fs::File::open(path).ok()?.read(&mut head).ok()?;
        let length = head[..count].iter().position(|&byte| byte == 0)?;
        String::from_utf8(head[..length].to_vec()).ok()
    }

    /// Writes the memo so that others see all of it or nothing.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut record = |record: &[u8]| {
            bytes.extend_from_slice(record);
            bytes.push(0);
        };
        record(self.key.as_bytes());
        record(self.program.as_os_str().as_bytes());
        for stamp in &self.stamps {
            record(&stamp.encode());
        }
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(&bytes)?;
        file.persist(path)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memo");
        let memo = Memo {
            key: "0123abcdef".into(),
            program: "/usr/bin/a b".into(),
            stamps: vec![Stamp::of(directory.path()), Stamp::of(Path::new("/no such file"))],
        };
        memo.write(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(Memo::read(&path).unwrap(), memo);
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            let read = Memo::read(&path);
            assert!(read.is_none_or(|read| read.stamps.len() < 2), "cut to {length} bytes");
        }
    }

    #[test]
    fn keys_stay_inside_the_cache() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memo");
        fs::write(&path, b"../escape\0/bin/sh\0").unwrap();
        assert_eq!(Memo::read(&path), None);
    }
}
