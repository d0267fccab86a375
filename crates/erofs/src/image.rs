//! The reader: an image in memory and its files.

use crate::checksum;
use crate::layout::{self, device, superblock, u16_at, u32_at, u64_at};
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
    ///
    /// Blocks on further devices must lie behind the image's own, in the order of its table.
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
            && word(superblock::FEATURE_INCOMPAT)?
                & !(layout::INCOMPAT_ZERO_PADDING | layout::INCOMPAT_DEVICE_TABLE)
                == 0;
        if !plain {
            return Err(Error::Unsupported);
        }
        let length = blocks(first, head)? << layout::BLOCK_BITS;
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

/// The number of blocks, those of further devices included. `first` is the image's first block and `head` its
/// superblock with what follows.
fn blocks(first: &[u8], head: &[u8]) -> Result<u64, Error> {
    let mut blocks = u64::from(u32_at(head, superblock::BLOCKS).ok_or(Error::NotErofs)?);
    let devices = u16_at(head, superblock::EXTRA_DEVICES).ok_or(Error::NotErofs)?;
    let features = u32_at(head, superblock::FEATURE_INCOMPAT).ok_or(Error::NotErofs)?;
    if (devices > 0) != (features & layout::INCOMPAT_DEVICE_TABLE != 0) {
        return Err(Error::Unsupported);
    }
    let table = usize::from(u16_at(head, superblock::DEVICE_TABLE).ok_or(Error::NotErofs)?) * device::SIZE;
    for index in 0..usize::from(devices) {
        // A table that is not within the first block, or devices at other places, would have to be gone after.
        let entry = first.get(table + index * device::SIZE..).ok_or(Error::Unsupported)?;
        let at = |offset| u32_at(entry, offset).map(u64::from).ok_or(Error::Unsupported);
        if at(device::FIRST_BLOCK)? != blocks {
            return Err(Error::Unsupported);
        }
        blocks += at(device::BLOCKS)?;
    }
    Ok(blocks)
}
