//! The options of an overlay: which directories are its layers.

#[cfg(all(test, not(heddle_loom)))]
mod tests;

use alloc::vec::Vec;

use crate::OutOfMemory;
use crate::fallible::push_reserved;

/// The most lower layers, as many as Linux has.
pub const LOWERS_MAX: usize = 500;

/// The layers that the options name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OverlayOptions {
    /// Paths of the lower layers, from the top down.
    pub lowers: Vec<Vec<u8>>,
    /// Path of the layer that takes changes.
    pub upper: Option<Vec<u8>>,
    /// Path of a directory beside it, for files under construction.
    pub work: Option<Vec<u8>>,
    /// Marks are `user.` attributes, which need no rights.
    pub has_user_marks: bool,
}

/// Options that make no overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionError {
    /// `EINVAL`.
    Invalid,
    /// `ENOMEM`.
    OutOfMemory,
}

impl From<OutOfMemory> for OptionError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// Where the first part of a text ends that `separator` ends; one behind a backslash doesn't.
fn end_of(text: &[u8], separator: u8) -> usize {
    let mut at = 0;
    while at < text.len() && text[at] != separator {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    at.min(text.len())
}

/// The parts of a text between separators.
fn parts(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    core::iter::from_fn(move || {
        let text = rest?;
        let end = end_of(text, separator);
        rest = text.get(end + 1..);
        Some(&text[..end])
    })
}

/// A copy without the backslashes that protect other letters.
fn plain(text: &[u8]) -> Result<Vec<u8>, OutOfMemory> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(text.len()).map_err(|_| OutOfMemory)?;
    let mut letters = text.iter();
    while let Some(&letter) = letters.next() {
        let letter = if letter == b'\\' { *letters.next().unwrap_or(&letter) } else { letter };
        push_reserved(&mut copy, letter);
    }
    Ok(copy)
}

impl OverlayOptions {
    /// Reads the options of mount(2).
    ///
    /// # Errors
    /// An option is unknown, or asks for what there is not; layers are missing.
    pub fn parse(text: &[u8]) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for option in parts(text, b',').filter(|option| !option.is_empty()) {
            let at = option.iter().position(|&letter| letter == b'=').unwrap_or(option.len());
            let (name, value) = (&option[..at], option.get(at + 1..).unwrap_or_default());
            match (name, value) {
                (b"lowerdir", _) => options.lowers = Self::lowers(value)?,
                (b"upperdir", [_, ..]) => options.upper = Some(plain(value)?),
                (b"workdir", [_, ..]) => options.work = Some(plain(value)?),
                (b"userxattr", []) => options.has_user_marks = true,
                // These switch off features that are not there, and nothing here outlives the machine.
                (b"redirect_dir", b"off" | b"nofollow")
                | (b"index" | b"nfs_export" | b"metacopy", b"off")
                | (b"xino", b"off" | b"auto")
                | (b"volatile" | b"default_permissions", []) => {}
                _ => return Err(OptionError::Invalid),
            }
        }
        let is_short = options.lowers.len() < if options.upper.is_some() { 1 } else { 2 };
        if is_short || options.upper.is_some() != options.work.is_some() {
            return Err(OptionError::Invalid);
        }
        Ok(options)
    }

    fn lowers(value: &[u8]) -> Result<Vec<Vec<u8>>, OptionError> {
        let mut lowers = Vec::new();
        for path in parts(value, b':') {
            if path.is_empty() || lowers.len() >= LOWERS_MAX {
                return Err(OptionError::Invalid);
            }
            lowers.try_reserve(1).map_err(|_| OutOfMemory)?;
            push_reserved(&mut lowers, plain(path)?);
        }
        Ok(lowers)
    }
}
