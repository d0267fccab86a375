//! Lists of strings as `argv` and `envp` hold them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::fallible::{extend_reserved, push_back_reserved, push_front_reserved, push_reserved};

/// Strings one after the other in one piece of memory, each with its final zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    /// Start and length without the zero, in the order of the list, which differs from that of the bytes once
    /// something was put in front.
    places: VecDeque<(u32, u32)>,
}

/// A list that has grown too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringsError {
    /// `E2BIG`.
    TooBig,
    /// `ENOMEM`.
    OutOfMemory,
}

impl Strings {
    /// The longest string, with its final zero.
    pub const STRING_BYTES_MAX: usize = 131_072;
    /// Room that a list never exceeds, whatever the stack limit is.
    pub const BYTES_MAX: usize = 6 << 20;

    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), places: VecDeque::new() }
    }

    /// Adds a string, given without its final zero, at the end.
    ///
    /// # Errors
    /// See [`StringsError`].
    pub fn push(&mut self, string: &[u8]) -> Result<(), StringsError> {
        let place = self.put(string)?;
        push_back_reserved(&mut self.places, place);
        Ok(())
    }

    /// Adds a string in front of the others.
    ///
    /// # Errors
    /// See [`StringsError`].
    pub fn push_front(&mut self, string: &[u8]) -> Result<(), StringsError> {
        let place = self.put(string)?;
        push_front_reserved(&mut self.places, place);
        Ok(())
    }

    /// Takes the first string away; its bytes stay behind unused.
    pub fn pop_front(&mut self) {
        self.places.pop_front();
    }

    fn put(&mut self, string: &[u8]) -> Result<(u32, u32), StringsError> {
        if string.len() >= Self::STRING_BYTES_MAX || self.bytes.len() + string.len() >= Self::BYTES_MAX {
            return Err(StringsError::TooBig);
        }
        self.places.try_reserve(1).map_err(|_| StringsError::OutOfMemory)?;
        self.bytes.try_reserve(string.len() + 1).map_err(|_| StringsError::OutOfMemory)?;
        let start = self.bytes.len() as u32;
        extend_reserved(&mut self.bytes, string);
        push_reserved(&mut self.bytes, 0);
        Ok((start, string.len() as u32))
    }

    /// The number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no string.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The strings in order, each with its final zero.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().map(|&(start, length)| &self.bytes[start as usize..=(start + length) as usize])
    }

    /// The bytes of all strings, final zeros included.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.places.iter().map(|&(_, length)| length as usize + 1).sum()
    }
}
