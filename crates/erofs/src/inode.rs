//! Inodes as the reader sees them.

use crate::layout::{self, BLOCK_SIZE, inode as at, u16_at, u32_at, u64_at};
use crate::{Error, SYMLINK_LIMIT};

/// Time since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds.
    pub seconds: u64,
    /// The rest.
    pub nanoseconds: u32,
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symbolic link.
    Symlink,
}

impl FileType {
    const ALL: [FileType; 7] = [
        FileType::Regular,
        FileType::Directory,
        FileType::CharacterDevice,
        FileType::BlockDevice,
        FileType::Fifo,
        FileType::Socket,
        FileType::Symlink,
    ];

    /// The type bits of a mode (`S_IFMT`).
    #[must_use]
    pub const fn mode(self) -> u16 {
        match self {
            FileType::Regular => 0o100_000,
            FileType::Directory => 0o040_000,
            FileType::CharacterDevice => 0o020_000,
            FileType::BlockDevice => 0o060_000,
            FileType::Fifo => 0o010_000,
            FileType::Socket => 0o140_000,
            FileType::Symlink => 0o120_000,
        }
    }

    /// The type that `mode` names in its type bits.
    #[must_use]
    pub fn from_mode(mode: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.mode() == mode & 0o170_000)
    }

    /// The number that stands for the type in a directory entry.
    #[cfg(feature = "write")]
    pub(crate) fn entry_code(self) -> u8 {
        1 + self as u8
    }

    pub(crate) fn from_entry_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// Where a page of a file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// In a page of the image, zeroes behind the file's end included: it can be mapped as it is.
    InPlace {
        /// The page's offset in the image, a multiple of 4096.
        offset: u64,
    },
    /// Among metadata: its bytes must be copied to be mapped. Images from [`write`](crate) have no such files.
    Inline {
        /// Offset of the first byte in the image.
        offset: u64,
        /// Number of bytes.
        length: usize,
    },
}

/// A file's attributes, and the place of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// The number by which directories name it.
    pub nid: u64,
    /// The type of file.
    pub file_type: FileType,
    /// Type and permissions, as in `stat`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Length in bytes.
    pub size: u64,
    /// Last modification.
    pub mtime: Time,
    /// Of a device file, the device number in Linux's 32-bit encoding; otherwise 0.
    pub device: u32,
    /// Offset of the data in blocks, inside the image with its last block's padding.
    body: u64,
    /// How much of the data that is; the rest, less than a block or equal, lies at `tail`.
    body_length: u64,
    tail: u64,
}

impl Inode {
    pub(crate) fn read(image: &[u8], offset: u64, nid: u64, build_time: Time) -> Result<Self, Error> {
        let start = usize::try_from(offset).map_err(|_| Error::Inode)?;
        let raw = image.get(start..).ok_or(Error::Inode)?;
        let half = |offset| u16_at(raw, offset).ok_or(Error::Inode);
        let word = |offset| u32_at(raw, offset).ok_or(Error::Inode);
        let format = half(at::FORMAT)?;
        let mode = half(at::MODE)?;
        let mut inode = Inode {
            nid,
            file_type: FileType::from_mode(mode).ok_or(Error::Inode)?,
            mode,
            uid: half(at::COMPACT_UID)?.into(),
            gid: half(at::COMPACT_GID)?.into(),
            nlink: half(at::COMPACT_NLINK)?.into(),
            size: word(at::SIZE)?.into(),
            mtime: build_time,
            device: 0,
            body: 0,
            body_length: 0,
            tail: 0,
        };
        let mut header = at::COMPACT_SIZE;
        if format & layout::FORMAT_EXTENDED != 0 {
            header = at::EXTENDED_SIZE;
            inode.uid = word(at::EXTENDED_UID)?;
            inode.gid = word(at::EXTENDED_GID)?;
            inode.nlink = word(at::EXTENDED_NLINK)?;
            inode.size = u64_at(raw, at::SIZE).ok_or(Error::Inode)?;
            inode.mtime = Time {
                seconds: u64_at(raw, at::EXTENDED_MTIME).ok_or(Error::Inode)?,
                nanoseconds: word(at::EXTENDED_MTIME_NSEC)?,
            };
        }
        match inode.file_type {
            FileType::Regular | FileType::Directory | FileType::Symlink => {
                header += match half(at::XATTR_COUNT)? {
                    0 => 0,
                    count => layout::XATTR_HEADER_SIZE + layout::XATTR_ENTRY_SIZE * (usize::from(count) - 1),
                };
                let block = word(at::LOCATION)?;
                inode.locate(image.len() as u64, format, block, offset + header as u64)?;
            }
            FileType::CharacterDevice | FileType::BlockDevice => inode.device = word(at::LOCATION)?,
            FileType::Fifo | FileType::Socket => {}
        }
        Ok(inode)
    }

    /// Fills in where the data lies, for an image of `image` bytes: blocks from `block` on, and, if `format` says
    /// so, the last of them at offset `tail` instead.
    fn locate(&mut self, image: u64, format: u16, block: u32, tail: u64) -> Result<(), Error> {
        let block_size = BLOCK_SIZE as u64;
        self.body = u64::from(block) << layout::BLOCK_BITS;
        self.body_length = match (format >> 1) & 7 {
            layout::LAYOUT_PLAIN => self.size,
            layout::LAYOUT_INLINE => self.size.saturating_sub(1) / block_size * block_size,
            _ => return Err(Error::Unsupported),
        };
        let fits = |start: u64, length: u64| start.checked_add(length).is_some_and(|end| end <= image);
        let padded = self.body_length.checked_next_multiple_of(block_size).ok_or(Error::Inode)?;
        if self.body_length > 0 && !fits(self.body, padded) {
            return Err(Error::Inode);
        }
        self.tail = tail;
        let tail_length = self.size - self.body_length;
        if tail_length > 0 && (!fits(tail, tail_length) || tail % block_size + tail_length > block_size) {
            return Err(Error::Inode);
        }
        Ok(())
    }

    /// Where the page number `index` of the file's contents lies, or nothing if the file ends before it.
    #[must_use]
    pub fn page(&self, index: u64) -> Option<Page> {
        let start = index.checked_mul(BLOCK_SIZE as u64)?;
        if start < self.body_length {
            Some(Page::InPlace { offset: self.body + start })
        } else if start < self.size && self.has_data() {
            Some(Page::Inline { offset: self.tail, length: (self.size - start) as usize })
        } else {
            None
        }
    }

    fn has_data(&self) -> bool {
        matches!(self.file_type, FileType::Regular | FileType::Directory | FileType::Symlink)
    }

    /// The longest part of the file that lies in one piece in `image` and starts at `offset`, a file offset.
    pub(crate) fn part_in<'a>(&self, image: &'a [u8], offset: u64) -> Option<&'a [u8]> {
        if offset >= self.size || !self.has_data() {
            return None;
        }
        let (start, length) = match offset.checked_sub(self.body_length) {
            Some(skipped) => (self.tail + skipped, self.size - offset),
            None => (self.body + offset, self.body_length - offset),
        };
        image.get(usize::try_from(start).ok()?..)?.get(..usize::try_from(length).ok()?)
    }

    pub(crate) fn symlink_in<'a>(&self, image: &'a [u8]) -> Result<&'a [u8], Error> {
        if self.file_type != FileType::Symlink {
            return Err(Error::NotSymlink);
        }
        let target = self.part_in(image, 0).ok_or(Error::Inode)?;
        // Linux stops at the limit too, and a target in one piece is one that needs no copy.
        if target.len() as u64 != self.size || target.len() > SYMLINK_LIMIT || target.contains(&0) {
            return Err(Error::Inode);
        }
        Ok(target)
    }
}
