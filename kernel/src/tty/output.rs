//! Output on its way from programs to the line.

use alloc::collections::VecDeque;

use heddle_tty::Output;

use crate::error::Errno;

/// Bytes that a terminal holds for its line.
const CAPACITY_BYTES: usize = 16 << 10;
/// Programs have to wait when less than this is left, so that there is room for echo.
const ECHO_RESERVE_BYTES: usize = 1 << 10;

/// Processed bytes that the line has not taken yet.
pub(super) struct OutputQueue {
    bytes: VecDeque<u8>,
    /// How much stays when pending output is thrown away.
    kept_bytes: usize,
}

impl OutputQueue {
    pub fn try_new(kept_bytes: usize) -> Result<Self, Errno> {
        let mut bytes = VecDeque::new();
        bytes.try_reserve_exact(CAPACITY_BYTES).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { bytes, kept_bytes })
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How many bytes of a program fit, each becoming as long as it can.
    pub fn program_room(&self) -> usize {
        self.room().saturating_sub(ECHO_RESERVE_BYTES) / heddle_tty::WORST_EXPANSION
    }

    /// The oldest bytes that lie in one piece.
    pub fn first(&self) -> &[u8] {
        self.bytes.as_slices().0
    }

    /// Removes the oldest bytes.
    pub fn consume(&mut self, count: usize) {
        self.bytes.drain(..count.min(self.bytes.len()));
    }

    /// Removes everything (`TCOFLUSH`).
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

impl Output for OutputQueue {
    fn room(&self) -> usize {
        CAPACITY_BYTES - self.bytes.len()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    fn discard(&mut self) {
        self.bytes.truncate(self.kept_bytes);
    }
}
