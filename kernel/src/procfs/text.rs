//! Text that is put together piece by piece, with memory that may run out.

use alloc::vec::Vec;
use core::fmt;
use core::fmt::Write;

use crate::error::Errno;

use heddle_kernel_core::fallible::extend_reserved;

/// Text under construction.
pub struct Text(Vec<u8>);

impl Default for Text {
    fn default() -> Self {
        Self::new()
    }
}

impl Text {
    /// No text.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends formatted text.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn line(&mut self, arguments: fmt::Arguments<'_>) -> Result<(), Errno> {
        self.write_fmt(arguments).map_err(|_| Errno::ENOMEM)
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.0.try_reserve(bytes.len()).map_err(|_| Errno::ENOMEM)?;
        extend_reserved(&mut self.0, bytes);
        Ok(())
    }

    /// Appends a path with what would confuse a reader of lines written as octal numbers, as Linux does.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn escaped(&mut self, bytes: &[u8], special: &[u8]) -> Result<(), Errno> {
        for piece in bytes.split_inclusive(|byte| special.contains(byte)) {
            match piece.split_last() {
                Some((last, plain)) if special.contains(last) => {
                    self.bytes(plain)?;
                    self.line(format_args!("\\{last:03o}"))?;
                }
                _ => self.bytes(piece)?,
            }
        }
        Ok(())
    }

    /// The bytes so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends spaces up to a length.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn pad(&mut self, length: usize) -> Result<(), Errno> {
        let missing = length.saturating_sub(self.len());
        self.line(format_args!("{:missing$}", ""))
    }

    /// The text as bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes()).map_err(|_| fmt::Error)
    }
}
