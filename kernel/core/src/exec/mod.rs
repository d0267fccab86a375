//! The data that execve(2) reads and writes, apart from memory itself: the headers of an ELF file, the first line of a
//! script, and the stack that a program starts with. All input comes from a program's files and arguments and may be
//! wrong in any way; the result is an error then.

mod image;
mod script;
mod stack;
mod strings;

#[cfg(test)]
mod tests;

pub use image::{Image, ImageError, ImageKind, Segment, SegmentProtection};
pub use script::{Script, parse_script};
pub use stack::{AUXILIARY_BYTES, Auxiliary, ProgramStackError, Stack, StackPlan};
pub use strings::{Strings, StringsError};

/// Bytes of a file that its headers have to be in: execve(2) reads no more.
pub const HEADER_BYTES: usize = 4096;

/// The size of a page, to which segments are mapped.
pub const PAGE_BYTES: u64 = 4096;
