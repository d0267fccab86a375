//! Messages between the kernel and the program that serves a file system, the FUSE protocol, version 7.31.
//!
//! A request is a header of [`REQUEST_HEADER_BYTES`] and fields, an answer a header of [`ANSWER_HEADER_BYTES`] and
//! fields. This module knows how fields are laid out; the kernel knows which request has which, because each is made in
//! one place.

mod options;
#[cfg(all(test, not(heddle_loom)))]
mod tests;

pub use options::FuseOptions;

use alloc::vec::Vec;

use crate::OutOfMemory;
use crate::fallible::{extend_reserved, resize_reserved, try_with_capacity};

/// Bytes before a request's fields.
pub const REQUEST_HEADER_BYTES: usize = 40;
/// Bytes before an answer's fields.
pub const ANSWER_HEADER_BYTES: usize = 16;
/// The version that is spoken.
pub const VERSION: (u32, u32) = (7, 31);
/// The oldest minor version whose answers have the layouts of this module.
pub const MINOR_MIN: u32 = 12;
/// The number of the root.
pub const ROOT_ID: u64 = 1;

/// Kinds of requests.
#[allow(missing_docs, reason = "the names are the protocol's")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
}

/// Bits of what `SETATTR` changes.
#[allow(missing_docs, reason = "the names are the protocol's")]
pub mod set {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
}

/// Features that `INIT` offers.
#[allow(missing_docs, reason = "the names are the protocol's")]
pub mod feature {
    pub const ASYNC_READ: u32 = 1;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const DONT_MASK: u32 = 1 << 6;
    pub const SPLICE_WRITE: u32 = 1 << 7;
    pub const SPLICE_MOVE: u32 = 1 << 8;
    pub const SPLICE_READ: u32 = 1 << 9;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
}

/// How a file was opened, by the server's will.
#[allow(missing_docs, reason = "the names are the protocol's")]
pub mod opened {
    pub const NONSEEKABLE: u32 = 1 << 2;
    pub const STREAM: u32 = 1 << 4;
}

/// The thread that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of credentials(7)")]
pub struct FuseCaller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// A request that is being written. Running out of memory is noticed at the end.
pub struct FuseMessage {
    bytes: Vec<u8>,
    has_failed: bool,
}

impl FuseMessage {
    /// Begins a request about a node, with so much room for its fields.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(opcode: u32, node: u64, room: usize) -> Result<Self, OutOfMemory> {
        let bytes = try_with_capacity(REQUEST_HEADER_BYTES + room).map_err(|_| OutOfMemory)?;
        let mut message = Self { bytes, has_failed: false };
        message.u32(0);
        message.u32(opcode);
        message.u64(0);
        message.u64(node);
        for _ in 0..4 {
            message.u32(0);
        }
        Ok(message)
    }

    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if self.bytes.try_reserve(bytes.len()).is_ok() {
            extend_reserved(&mut self.bytes, bytes);
        } else {
            self.has_failed = true;
        }
    }

    /// Appends a number.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    /// Appends a number.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_ne_bytes());
    }

    /// Appends a name and the zero at its end.
    pub fn name(&mut self, name: &[u8]) {
        self.bytes(name);
        self.bytes(&[0]);
    }

    /// The next `length` bytes, to be filled by the caller.
    ///
    /// # Errors
    /// There is no memory.
    pub fn space(&mut self, length: usize) -> Result<&mut [u8], OutOfMemory> {
        self.bytes.try_reserve(length).map_err(|_| OutOfMemory)?;
        let start = self.bytes.len();
        resize_reserved(&mut self.bytes, start + length, 0);
        Ok(&mut self.bytes[start..])
    }

    /// Ends the request.
    ///
    /// # Errors
    /// There was no memory for all of it.
    pub fn finish(mut self, unique: u64, caller: FuseCaller) -> Result<Vec<u8>, OutOfMemory> {
        let length = u32::try_from(self.bytes.len()).map_err(|_| OutOfMemory)?;
        if self.has_failed {
            return Err(OutOfMemory);
        }
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        for (place, number) in [(24, caller.uid), (28, caller.gid), (32, caller.pid)] {
            self.bytes[place..place + 4].copy_from_slice(&number.to_ne_bytes());
        }
        Ok(self.bytes)
    }
}

/// The defect of an answer: it ends too early, or says what can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAnswer;

/// Reads an answer's fields.
#[derive(Clone, Copy, Debug)]
pub struct FuseReader<'a> {
    rest: &'a [u8],
}

type Read<T> = Result<T, BadAnswer>;

impl<'a> FuseReader<'a> {
    /// The fields of an answer.
    #[must_use]
    pub const fn new(fields: &'a [u8]) -> Self {
        Self { rest: fields }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self, length: usize) -> Read<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(BadAnswer)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.bytes(N)?.try_into().map_err(|_| BadAnswer)
    }

    /// A number.
    ///
    /// # Errors
    /// The answer ends before.
    pub fn u32(&mut self) -> Read<u32> {
        Ok(u32::from_ne_bytes(self.array()?))
    }

    /// A number.
    ///
    /// # Errors
    /// The answer ends before.
    pub fn u64(&mut self) -> Read<u64> {
        Ok(u64::from_ne_bytes(self.array()?))
    }

    /// Whether all has been read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// The header of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHeader {
    /// Bytes of the answer, with the header.
    pub length: u32,
    /// An error number, negated; of a notification its kind.
    pub error: i32,
    /// The number of the request; 0 for a notification.
    pub unique: u64,
}

impl AnswerHeader {
    /// Reads a header.
    #[must_use]
    pub fn read(bytes: [u8; ANSWER_HEADER_BYTES]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(core::array::from_fn(|index| bytes[at + index]));
        let first = word(0).to_ne_bytes();
        let half = |at: usize| u32::from_ne_bytes(core::array::from_fn(|index| first[at + index]));
        Self { length: half(0), error: half(4).cast_signed(), unique: word(8) }
    }
}

/// The attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of stat(2)")]
pub struct FuseAttributes {
    pub number: u64,
    pub size: u64,
    pub blocks: u64,
    /// Seconds and nanoseconds.
    pub accessed: (u64, u32),
    pub modified: (u64, u32),
    pub changed: (u64, u32),
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
}

impl FuseAttributes {
    /// Reads the fields of `struct fuse_attr`.
    ///
    /// # Errors
    /// The answer ends before.
    pub fn read(reader: &mut FuseReader<'_>) -> Read<Self> {
        let (number, size, blocks) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let seconds = [reader.u64()?, reader.u64()?, reader.u64()?];
        let parts = [reader.u32()?, reader.u32()?, reader.u32()?];
        let (mode, links, uid) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (gid, device) = (reader.u32()?, reader.u32()?);
        reader.bytes(8)?;
        if size > i64::MAX as u64 {
            return Err(BadAnswer);
        }
        let [accessed, modified, changed] = core::array::from_fn(|index| (seconds[index], parts[index]));
        Ok(Self { number, size, blocks, accessed, modified, changed, mode, links, uid, gid, device })
    }
}

/// A time for which the server vouches, in nanoseconds.
fn valid_ns(seconds: u64, nanoseconds: u32) -> u64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds.into())
}

/// The answer to `GETATTR` and `SETATTR`: attributes, and for how long they are good.
///
/// # Errors
/// The answer ends before.
pub fn read_attributes(fields: &[u8]) -> Read<(FuseAttributes, u64)> {
    let mut reader = FuseReader::new(fields);
    let valid_ns = valid_ns(reader.u64()?, reader.u32()?);
    reader.u32()?;
    Ok((FuseAttributes::read(&mut reader)?, valid_ns))
}

/// The answer to `LOOKUP` and to what makes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseEntry {
    /// The server's number of the file; 0 if there is none.
    pub node: u64,
    /// Tells files apart that have the same number one after the other.
    pub generation: u64,
    /// The attributes.
    pub attributes: FuseAttributes,
    /// How long they are good.
    pub valid_ns: u64,
}

impl FuseEntry {
    /// Bytes of it.
    pub const BYTES: usize = 128;

    /// Reads the fields of `struct fuse_entry_out`.
    ///
    /// # Errors
    /// The answer ends before.
    pub fn read(reader: &mut FuseReader<'_>) -> Read<Self> {
        let (node, generation) = (reader.u64()?, reader.u64()?);
        let (_, seconds) = (reader.u64()?, reader.u64()?);
        let (_, nanoseconds) = (reader.u32()?, reader.u32()?);
        let attributes = FuseAttributes::read(reader)?;
        Ok(Self { node, generation, attributes, valid_ns: valid_ns(seconds, nanoseconds) })
    }
}

/// The answer to `INIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseTerms {
    /// The server's version.
    pub version: (u32, u32),
    /// The most bytes of a `WRITE`.
    pub write_max: u32,
}

impl FuseTerms {
    /// Reads the answer.
    ///
    /// # Errors
    /// The answer ends before.
    pub fn read(fields: &[u8]) -> Read<Self> {
        let mut reader = FuseReader::new(fields);
        let version = (reader.u32()?, reader.u32()?);
        if version.0 != VERSION.0 {
            return Ok(Self { version, write_max: 0 });
        }
        reader.bytes(12)?;
        Ok(Self { version, write_max: reader.u32()? })
    }
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseListed<'a> {
    /// The file's number.
    pub number: u64,
    /// Where the listing goes on behind it.
    pub next: u64,
    /// The type, as in `struct dirent`.
    pub kind: u32,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> FuseListed<'a> {
    /// Reads an entry; `None` at the end of the answer, where the last entry may be cut.
    ///
    /// # Errors
    /// A name without bytes, or with a slash.
    pub fn read(reader: &mut FuseReader<'a>) -> Read<Option<Self>> {
        const FIXED: usize = 24;
        if reader.rest.len() < FIXED {
            return Ok(None);
        }
        let (number, next, length, kind) = (reader.u64()?, reader.u64()?, reader.u32()?, reader.u32()?);
        let Ok(name) = reader.bytes(length as usize) else { return Ok(None) };
        let padding = (length as usize).next_multiple_of(8) - length as usize;
        reader.rest = reader.rest.get(padding..).unwrap_or_default();
        if name.is_empty() || name.len() > 255 || name.contains(&b'/') || name.contains(&0) {
            return Err(BadAnswer);
        }
        Ok(Some(Self { number, next, kind, name }))
    }
}
