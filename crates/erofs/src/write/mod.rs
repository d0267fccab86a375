//! Making images: describe a [`Tree`], lay it out as a [`Plan`], write that to a file.
//!
//! An image is a function of its tree alone: same tree, same bytes. The layout is settled before the first byte is
//! written, so writing goes through the output once, in order. Every regular file starts a block of its own and its
//! last block is filled up with zeroes, so that all its pages can be mapped from the image; directories and symbolic
//! links, of which there are many small ones, end beside their inodes.

mod output;
mod plan;
mod tree;

use std::path::PathBuf;
use std::{fmt, io};

pub use plan::Plan;
pub use tree::{Attributes, Content, Node, NodeId, Source, Tree, device_number};

/// Why an image can't be made.
#[derive(Debug)]
pub enum WriteError {
    /// A name is empty, `.` or `..`, longer than 255 bytes, or has a slash or NUL in it.
    Name(Vec<u8>),
    /// A symbolic link's target is empty, longer than 4095 bytes, or has a NUL in it.
    Target(Vec<u8>),
    /// The directory has an entry of that name.
    Exists(Vec<u8>),
    /// Only a directory can have entries.
    NotDirectory,
    /// A directory can't have a second name.
    DirectoryLink,
    /// The image would exceed 16 TiB.
    TooLarge,
    /// A file changed its length between being described and being read.
    Changed(PathBuf),
    /// A file can't be read.
    Read(PathBuf, io::Error),
    /// The image can't be written.
    Write(io::Error),
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Name(name) => {
                write!(formatter, "not a file name: {:?}", name.escape_ascii().to_string())
            }
            WriteError::Target(target) => {
                write!(formatter, "not a target for a symbolic link: {:?}", target.escape_ascii().to_string())
            }
            WriteError::Exists(name) => write!(formatter, "{} exists twice", name.escape_ascii()),
            WriteError::NotDirectory => formatter.write_str("entries in something that is not a directory"),
            WriteError::DirectoryLink => formatter.write_str("a directory can't have two names"),
            WriteError::TooLarge => formatter.write_str("the files exceed the 16 TiB an image can hold"),
            WriteError::Changed(path) => write!(formatter, "{}: changed while it was read", path.display()),
            WriteError::Read(path, error) => write!(formatter, "{}: {error}", path.display()),
            WriteError::Write(error) => write!(formatter, "writing the image: {error}"),
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WriteError::Read(_, error) | WriteError::Write(error) => Some(error),
            _ => None,
        }
    }
}
