//! Messages of 9P2000.L, as a client writes and reads them.
//!
//! A message is `size: u32`, `kind: u8`, `tag: u16` and fields in little endian; a string is its length as `u16` and
//! its bytes. This module knows how fields are laid out; the client knows which message has which, because each
//! is used in one place.

pub mod ahead;
pub mod knowledge;
#[cfg(test)]
mod knowledge_tests;
#[cfg(test)]
mod tests;

/// Bytes before a message's fields.
pub const HEADER_BYTES: usize = 7;
/// The protocol's name in `Tversion`.
pub const VERSION: &[u8] = b"9P2000.L";
/// The tag of `Tversion`.
pub const NO_TAG: u16 = u16::MAX;
/// The fid that stands for none.
pub const NO_FID: u32 = u32::MAX;

/// Kinds of requests; the reply's is one more.
#[allow(missing_docs, reason = "the names are the protocol's")]
pub mod kind {
    pub const ERROR: u8 = 6;
    pub const STATFS: u8 = 8;
    pub const OPEN: u8 = 12;
    pub const CREATE: u8 = 14;
    pub const SYMLINK: u8 = 16;
    pub const MKNOD: u8 = 18;
    pub const READLINK: u8 = 22;
    pub const GETATTR: u8 = 24;
    pub const SETATTR: u8 = 26;
    pub const READDIR: u8 = 40;
    pub const LINK: u8 = 70;
    pub const MKDIR: u8 = 72;
    pub const RENAMEAT: u8 = 74;
    pub const UNLINKAT: u8 = 76;
    pub const VERSION: u8 = 100;
    pub const ATTACH: u8 = 104;
    pub const WALK: u8 = 110;
    pub const READ: u8 = 116;
    pub const WRITE: u8 = 118;
    pub const CLUNK: u8 = 120;
}

/// Bits of what `Tsetattr` changes.
#[allow(missing_docs, reason = "the names are the protocol's")]
pub mod set {
    pub const MODE: u32 = 0x1;
    pub const UID: u32 = 0x2;
    pub const GID: u32 = 0x4;
    pub const SIZE: u32 = 0x8;
    pub const ATIME: u32 = 0x10;
    pub const MTIME: u32 = 0x20;
    pub const ATIME_SET: u32 = 0x80;
    pub const MTIME_SET: u32 = 0x100;
}

/// Everything that `stat` tells.
pub const GETATTR_BASIC: u64 = 0x7ff;
/// The generation of the file's number, which some file systems have.
pub const GETATTR_GENERATION: u64 = 0x1000;

/// The defect of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server says this error number of Linux.
    Refused(u32),
    /// It is not what the protocol says.
    Malformed,
}

/// Writes a message into a buffer. Fields that do not fit are noticed at the end.
pub struct MessageWriter<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> MessageWriter<'a> {
    /// Begins a message.
    pub fn new(buffer: &'a mut [u8], kind: u8, tag: u16) -> Self {
        let mut writer = Self { buffer, length: 0 };
        writer.u32(0);
        writer.bytes(&[kind]);
        writer.u16(tag);
        writer
    }

    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        if let Some(place) = self.buffer.get_mut(self.length..end) {
            place.copy_from_slice(bytes);
        }
        self.length = end;
    }

    /// Appends a number.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends a number.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends a number.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends a string; one that is too long makes the message too long.
    pub fn string(&mut self, bytes: &[u8]) {
        match u16::try_from(bytes.len()) {
            Ok(length) => {
                self.u16(length);
                self.bytes(bytes);
            }
            Err(_) => self.length = usize::MAX,
        }
    }

    /// The next `length` bytes, to be filled by the caller.
    pub fn space(&mut self, length: usize) -> Option<&mut [u8]> {
        let start = self.length;
        self.length = start.saturating_add(length);
        self.buffer.get_mut(start..self.length)
    }

    /// Ends the message; its length, unless the buffer is too small for it.
    #[must_use]
    pub fn finish(self) -> Option<usize> {
        let length = u32::try_from(self.length).ok()?;
        if self.length > self.buffer.len() {
            return None;
        }
        self.buffer[..4].copy_from_slice(&length.to_le_bytes());
        Some(self.length)
    }
}

/// Reads a message's fields.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

type Read<T> = Result<T, Failure>;

impl<'a> Reader<'a> {
    /// The fields of the reply to a request of this kind.
    ///
    /// # Errors
    /// The server's refusal, or that it is no such reply.
    pub fn of_reply(message: &'a [u8], request: u8) -> Read<Self> {
        let mut header = Self { rest: message };
        let size = header.u32()? as usize;
        let kind = header.u8()?;
        header.u16()?;
        let rest = message.get(HEADER_BYTES..size).ok_or(Failure::Malformed)?;
        let mut reader = Self { rest };
        match kind {
            kind if kind == kind::ERROR + 1 => Err(Failure::Refused(reader.u32()?)),
            kind if kind == request + 1 => Ok(reader),
            _ => Err(Failure::Malformed),
        }
    }

    /// Reads fields that were copied from a message.
    #[must_use]
    pub const fn of_fields(fields: &'a [u8]) -> Self {
        Self { rest: fields }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self, length: usize) -> Read<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Failure::Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let bytes = self.bytes(N)?;
        bytes.try_into().map_err(|_| Failure::Malformed)
    }

    /// A number.
    ///
    /// # Errors
    /// The message ends before.
    pub fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// A number.
    ///
    /// # Errors
    /// The message ends before.
    pub fn u16(&mut self) -> Read<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A number.
    ///
    /// # Errors
    /// The message ends before.
    pub fn u32(&mut self) -> Read<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A number.
    ///
    /// # Errors
    /// The message ends before.
    pub fn u64(&mut self) -> Read<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string.
    ///
    /// # Errors
    /// The message ends before.
    pub fn string(&mut self) -> Read<&'a [u8]> {
        let length = self.u16()?;
        self.bytes(length.into())
    }

    /// A file's identity: its number.
    ///
    /// # Errors
    /// The message ends before.
    pub fn qid(&mut self) -> Read<u64> {
        self.qid_and_version().map(|(number, _)| number)
    }

    /// A file's identity: its number, and the version, which is another when the file has changed.
    ///
    /// # Errors
    /// The message ends before.
    pub fn qid_and_version(&mut self) -> Read<(u64, u32)> {
        let qid = self.whole_qid()?;
        Ok((qid.number, qid.version))
    }

    /// A file's identity as a whole.
    ///
    /// # Errors
    /// The message ends before.
    pub fn whole_qid(&mut self) -> Read<Qid> {
        let bits = self.u8()?;
        let version = self.u32()?;
        Ok(Qid { number: self.u64()?, version, is_directory: bits & 0x80 != 0 })
    }

    /// A file's identity, and its type as in `struct dirent`.
    ///
    /// # Errors
    /// The message ends before.
    pub fn qid_and_kind(&mut self) -> Read<(u64, u8)> {
        // Bits of the first byte: directory, symbolic link.
        let kind = match self.u8()? {
            bits if bits & 0x80 != 0 => 4,
            bits if bits & 0x02 != 0 => 10,
            _ => 8,
        };
        self.u32()?;
        Ok((self.u64()?, kind))
    }

    /// How many of so many bytes have been read.
    #[must_use]
    pub const fn position_from(&self, bytes: usize) -> usize {
        bytes.saturating_sub(self.rest.len())
    }

    /// Whether all has been read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// A file's identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Qid {
    /// Its number.
    pub number: u64,
    /// Another one when the file has changed.
    pub version: u32,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// The attributes in `Rgetattr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of stat(2)")]
pub struct Attributes {
    pub number: u64,
    pub version: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u64,
    pub device: u64,
    pub size: u64,
    pub blocks: u64,
    /// Seconds and nanoseconds.
    pub accessed: (u64, u64),
    pub modified: (u64, u64),
    pub changed: (u64, u64),
    /// Tells files apart that have the number one after the other, if the server knows it.
    pub generation: Option<u64>,
}

impl Attributes {
    /// Reads the fields of `Rgetattr`.
    ///
    /// # Errors
    /// The message ends before.
    pub fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let valid = reader.u64()?;
        let (number, version) = reader.qid_and_version()?;
        let (mode, uid, gid) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (links, device, size) = (reader.u64()?, reader.u64()?, reader.u64()?);
        reader.u64()?;
        let blocks = reader.u64()?;
        let mut time = || Ok((reader.u64()?, reader.u64()?));
        let (accessed, modified, changed) = (time()?, time()?, time()?);
        let generation = if valid & GETATTR_GENERATION == 0 {
            None
        } else {
            // After the time of birth. QEMU says that it is there, and zero, where the file system counts none.
            time()?;
            Some(reader.u64()?).filter(|&generation| generation != 0)
        };
        let numbers =
            Self { number, version, mode, uid, gid, links, device, size, blocks, ..Self::default() };
        Ok(Self { accessed, modified, changed, generation, ..numbers })
    }

    /// Whether the file has one name at most, as far as the count tells: a directory counts its own entries.
    #[must_use]
    pub const fn has_one_name(&self) -> bool {
        self.links <= 1 || self.mode & 0o170_000 == 0o040_000
    }

    /// Whether both are of one file, where the generations tell that.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> Option<bool> {
        let is_same = self.generation? == other.generation?;
        Some(is_same && self.number == other.number)
    }
}

/// An entry of `Rreaddir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Number of the file.
    pub number: u64,
    /// The offset at which the listing continues after it.
    pub next: u64,
    /// The type as in `struct dirent`.
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> DirectoryEntry<'a> {
    /// Reads an entry.
    ///
    /// # Errors
    /// The message ends before.
    pub fn read(reader: &mut Reader<'a>) -> Read<Self> {
        let number = reader.qid()?;
        let (next, kind) = (reader.u64()?, reader.u8()?);
        Ok(Self { number, next, kind, name: reader.string()? })
    }
}
