//! A list that is put together in pieces of bounded size, so that nothing long is ever copied to make room.

use alloc::vec::Vec;

use crate::fallible::{AllocError, extend_reserved, try_push, try_with_capacity};

/// Bytes of a piece.
const PIECE_BYTES: usize = 4096;

/// See the module.
#[derive(Debug)]
pub struct Pieces<T> {
    pieces: Vec<Vec<T>>,
    length: usize,
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), length: 0 }
    }
}

impl<T: Clone> Pieces<T> {
    /// Items of a piece.
    const LENGTH: usize = PIECE_BYTES / size_of::<T>();

    /// Items so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds items.
    ///
    /// # Errors
    /// [`AllocError`]: a part may have been added.
    pub fn push(&mut self, mut items: &[T]) -> Result<(), AllocError> {
        while !items.is_empty() {
            if self.length.is_multiple_of(Self::LENGTH) {
                try_push(&mut self.pieces, try_with_capacity(Self::LENGTH)?)?;
            }
            let Some(last) = self.pieces.last_mut() else { return Ok(()) };
            let (now, rest) = items.split_at(items.len().min(Self::LENGTH - last.len()));
            extend_reserved(last, now);
            self.length += now.len();
            items = rest;
        }
        Ok(())
    }

    /// The pieces in order; all but the last have the same length.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        self.pieces.iter().map(Vec::as_slice)
    }
}

impl Pieces<u8> {
    /// Adds zeros up to a multiple of `unit`, at most 8.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn pad(&mut self, unit: usize) -> Result<(), AllocError> {
        let missing = self.length.next_multiple_of(unit) - self.length;
        self.push(&[0; 8][..missing.min(8)])
    }
}
