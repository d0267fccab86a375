//! The reader: an image in memory and its files.

use crate::checksum;
use crate::layout::{self, superblock, u16_at, u32_at, u64_at};
use crate::{Error, Inode, Time};

/// An image that lies in memory.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    bytes: &'a [u8],
    /// Where inode 0 would be.
    inodes: u64,
    root: u64,
    /// The time of modification of inodes of the compact form.
    build_time: Time,
}

impl<'a> Image<'a> {
    /// Reads the superblock of the image at the start of `bytes`, which may be longer than the image.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Error> {
        let first = bytes.get(..layout::BLOCK_SIZE).ok_or(Error::NotErofs)?;
        let head = &first[layout::SUPER_OFFSET..];
        let word = |offset| u32_at(head, offset).ok_or(Error::NotErofs);
        if word(superblock::MAGIC)? != layout::MAGIC {
            return Err(Error::NotErofs);
        }
        if word(superblock::FEATURE_COMPAT)? & layout::COMPAT_CHECKSUM != 0
            && word(superblock::CHECKSUM)? != checksum::of_superblock(first)
        {
            return Err(Error::Checksum);
        }
        let plain = head[superblock::BLOCK_BITS] == layout::BLOCK_BITS
            && head[superblock::DIRECTORY_BLOCK_BITS] == 0
            && u16_at(head, superblock::EXTRA_DEVICES) == Some(0)
            && word(superblock::FEATURE_INCOMPAT)? & !layout::INCOMPAT_ZERO_PADDING == 0;
        if !plain {
            return Err(Error::Unsupported);
        }
        let length = u64::from(word(superblock::BLOCKS)?) << layout::BLOCK_BITS;
        let bytes =
            usize::try_from(length).ok().and_then(|length| bytes.get(..length)).ok_or(Error::Truncated)?;
        Ok(Image {
            bytes,
            inodes: u64::from(word(superblock::META_BLOCK)?) << layout::BLOCK_BITS,
            root: u16_at(head, superblock::ROOT_NID).ok_or(Error::NotErofs)?.into(),
            build_time: Time {
                seconds: u64_at(head, superblock::BUILD_TIME).ok_or(Error::NotErofs)?,
                nanoseconds: word(superblock::BUILD_TIME_NSEC)?,
            },
        })
    }

    /// The image's bytes, without what follows it.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of the root directory's inode.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Reads the inode number `nid`.
    ///
    /// The location of the inode's data has been checked against the image when this returns.
    pub fn inode(&self, nid: u64) -> Result<Inode, Error> {
        let offset = nid
            .checked_mul(layout::SLOT_SIZE as u64)
            .and_then(|offset| offset.checked_add(self.inodes))
            .ok_or(Error::Inode)?;
        Inode::read(self.bytes, offset, nid, self.build_time)
    }

    /// The target of a symbolic link.
    pub fn symlink(&self, inode: &Inode) -> Result<&'a [u8], Error> {
        inode.symlink_in(self.bytes)
    }

    /// Copies the file's bytes from `offset` on into `buffer` and returns their number, which is less than the
    /// buffer's length only where the file ends.
    #[must_use]
    pub fn read_at(&self, inode: &Inode, offset: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(part) = inode.part_in(self.bytes, offset.saturating_add(done as u64)) {
            let rest = &mut buffer[done..];
            let count = rest.len().min(part.len());
            if count == 0 {
                break;
            }
            rest[..count].copy_from_slice(&part[..count]);
            done += count;
        }
        done
    }
}
