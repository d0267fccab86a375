//! Where the fields lie on disk: the names are those of Linux's `fs/erofs/erofs_fs.h`, all numbers little-endian.

pub const BLOCK_BITS: u8 = 12;
pub const BLOCK_SIZE: usize = 1 << BLOCK_BITS;

/// Inode number `n` lies at `meta_blkaddr` blocks + `n` slots.
pub const SLOT_SIZE: usize = 32;

pub const SUPER_OFFSET: usize = 1024;
#[cfg(feature = "write")]
pub const SUPER_SIZE: usize = 128;
pub const MAGIC: u32 = 0xe0f5_e1e2;

/// Offsets in the superblock.
pub mod superblock {
    pub const MAGIC: usize = 0;
    pub const CHECKSUM: usize = 4;
    pub const FEATURE_COMPAT: usize = 8;
    pub const BLOCK_BITS: usize = 12;
    pub const ROOT_NID: usize = 14;
    #[cfg(feature = "write")]
    pub const INODES: usize = 16;
    pub const BUILD_TIME: usize = 24;
    pub const BUILD_TIME_NSEC: usize = 32;
    pub const BLOCKS: usize = 36;
    pub const META_BLOCK: usize = 40;
    pub const FEATURE_INCOMPAT: usize = 80;
    pub const EXTRA_DEVICES: usize = 86;
    pub const DEVICE_TABLE: usize = 88;
    pub const DIRECTORY_BLOCK_BITS: usize = 90;
}

/// `feature_compat`: the superblock has a checksum.
pub const COMPAT_CHECKSUM: u32 = 1;
/// `feature_compat`: extended inodes hold the time of the last modification.
#[cfg(feature = "write")]
pub const COMPAT_MTIME: u32 = 2;
/// `feature_incompat`: concerns compressed files only, which are refused one by one.
pub const INCOMPAT_ZERO_PADDING: u32 = 1;
/// `feature_incompat`: blocks of other devices continue the image's own.
pub const INCOMPAT_DEVICE_TABLE: u32 = 8;

/// An entry of the table of devices; the superblock gives the table's place as a number of entries.
pub mod device {
    pub const SIZE: usize = 128;
    #[cfg(feature = "write")]
    pub const TAG: usize = 0;
    pub const BLOCKS: usize = 64;
    /// The device's first block among those of the whole image.
    pub const FIRST_BLOCK: usize = 68;
}

/// Offsets in both forms of inode.
pub mod inode {
    pub const FORMAT: usize = 0;
    pub const XATTR_COUNT: usize = 2;
    pub const MODE: usize = 4;
    pub const SIZE: usize = 8;
    /// Block address of the data, or device number.
    pub const LOCATION: usize = 16;
    #[cfg(feature = "write")]
    pub const INO: usize = 20;

    pub const COMPACT_SIZE: usize = 32;
    pub const COMPACT_NLINK: usize = 6;
    pub const COMPACT_UID: usize = 24;
    pub const COMPACT_GID: usize = 26;

    pub const EXTENDED_SIZE: usize = 64;
    pub const EXTENDED_UID: usize = 24;
    pub const EXTENDED_GID: usize = 28;
    pub const EXTENDED_MTIME: usize = 32;
    pub const EXTENDED_MTIME_NSEC: usize = 40;
    pub const EXTENDED_NLINK: usize = 44;
}

/// `i_format`, bit 0: the inode has the extended form.
pub const FORMAT_EXTENDED: u16 = 1;
/// `i_format`, bits 1 to 3: all data in blocks.
pub const LAYOUT_PLAIN: u16 = 0;
/// `i_format`, bits 1 to 3: the last, partial block follows the inode.
pub const LAYOUT_INLINE: u16 = 2;

/// Extended attributes before the data: a header and entries of 4 bytes, the first counted with the header.
pub const XATTR_HEADER_SIZE: usize = 12;
pub const XATTR_ENTRY_SIZE: usize = 4;

/// A directory block: entries, then names; the first entry's name offset also gives the number of entries.
pub const DIRENT_SIZE: usize = 12;
pub const DIRENT_NAME_OFFSET: usize = 8;
pub const DIRENT_TYPE: usize = 10;

/// The field of `N` bytes at `offset`, if it is there.
pub fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    field(bytes, offset).map(u16::from_le_bytes)
}

pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    field(bytes, offset).map(u32::from_le_bytes)
}

pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    field(bytes, offset).map(u64::from_le_bytes)
}
