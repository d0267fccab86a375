//! EROFS images, uncompressed: a `no_std` reader for the kernel and a writer for the host tool (feature `write`).
//!
//! The reader works on an image that lies in memory as a whole, and hands out names, symbolic links and file data
//! as parts of it: nothing is copied and nothing allocated. An image is foreign data: whatever it holds, an
//! operation ends with a result or an [`Error`], never with a panic or an access outside the image.
//!
//! - [`Image`]: the superblock; finds an [`Inode`] by number.
//! - [`Inode`]: attributes, and where the file's bytes lie ([`Inode::page`]).
//! - [`Image::lookup`], [`Image::entries`]: directories.
#![cfg_attr(feature = "write", doc = "- [`write`]: making images.")]
//!
//! Only what images for Heddle need is read: 4 KiB blocks, flat data with or without an inline tail, on further devices
//! too where these follow the image in memory. Compressed and chunked images are refused, extended attributes are
//! ignored.
#![cfg_attr(not(feature = "write"), no_std)]

mod checksum;
mod directory;
mod error;
mod image;
mod inode;
mod layout;
#[cfg(feature = "write")]
pub mod write;

pub use directory::{Entries, Entry};
pub use error::Error;
pub use image::Image;
pub use inode::{FileType, Inode, Page, Time};

/// Bytes in a block of an image, and in a page that can be mapped from it.
pub const BLOCK_SIZE: u64 = layout::BLOCK_SIZE as u64;

/// The longest file name in bytes.
pub const NAME_LIMIT: usize = 255;

/// The longest target of a symbolic link in bytes.
pub const SYMLINK_LIMIT: usize = 4095;
