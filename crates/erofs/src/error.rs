//! Errors of reading an image.

use core::fmt;

/// Why an image, or one of its inodes, can't be read.
///
/// All but [`NotDirectory`](Error::NotDirectory) and [`NotSymlink`](Error::NotSymlink), with which the caller asked
/// for something the inode doesn't have, are the image's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no EROFS superblock.
    NotErofs,
    /// The superblock's checksum doesn't match.
    Checksum,
    /// The image uses a block size, feature or data layout that this reader leaves out.
    Unsupported,
    /// The image is shorter than its superblock says.
    Truncated,
    /// An inode number, or a location named by an inode, lies outside the image, or an inode contradicts itself.
    Inode,
    /// A directory block doesn't hold what it should.
    Directory,
    /// The inode is not a directory.
    NotDirectory,
    /// The inode is not a symbolic link.
    NotSymlink,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Error::NotErofs => "no EROFS superblock",
            Error::Checksum => "the superblock's checksum is wrong",
            Error::Unsupported => "the image uses a feature that is not supported",
            Error::Truncated => "the image is shorter than it says",
            Error::Inode => "an inode is damaged",
            Error::Directory => "a directory is damaged",
            Error::NotDirectory => "not a directory",
            Error::NotSymlink => "not a symbolic link",
        })
    }
}

impl core::error::Error for Error {}
