//! A byte ring that grows with its contents and keeps its storage while it is in use.

use alloc::vec::Vec;

use crate::platform::OutOfMemory;

/// Storage that a ring begins with.
const FIRST_BYTES: usize = 2048;
/// Times in a row that a ring was emptied without having needed half of its storage, before the storage is halved.
const SPARSE_LIMIT: u8 = 16;

/// See the module. An empty ring that was never used has no storage.
#[derive(Debug, Default)]
pub struct ByteRing {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
    /// The most contents since it was empty last.
    peak: usize,
    sparse: u8,
}

impl ByteRing {
    /// An empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), start: 0, length: 0, peak: 0, sparse: 0 }
    }

    /// Bytes in the ring.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Provides storage for `count` more bytes, as far as the contents stay within `limit`. Storage that a failed
    /// growth leaves is used as it is.
    ///
    /// # Errors
    /// There is no storage for one more byte.
    pub fn reserve(&mut self, count: usize, limit: usize) -> Result<(), OutOfMemory> {
        let needed = self.length + count.min(limit.saturating_sub(self.length));
        if needed <= self.bytes.len() {
            return Ok(());
        }
        let size = needed.next_power_of_two().max(FIRST_BYTES);
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(size).is_err() {
            return if self.length < self.bytes.len() { Ok(()) } else { Err(OutOfMemory) };
        }
        let (first, second) = self.parts();
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(second);
        bytes.resize(size, 0);
        self.bytes = bytes;
        self.start = 0;
        self.sparse = 0;
        Ok(())
    }

    /// The first contiguous part of the storage that is free, at most as long as keeps the contents within `limit`.
    pub fn free(&mut self, limit: usize) -> &mut [u8] {
        let room = limit.saturating_sub(self.length).min(self.bytes.len() - self.length);
        let end = self.start + self.length;
        let from = if end < self.bytes.len() { end } else { end - self.bytes.len() };
        let to = self.bytes.len().min(from + room);
        &mut self.bytes[from..to]
    }

    /// Makes the first `count` bytes of [`ByteRing::free`] contents.
    pub fn commit(&mut self, count: usize) {
        self.length = (self.length + count).min(self.bytes.len());
        self.peak = self.peak.max(self.length);
    }

    /// The contents in at most two parts, oldest first.
    #[must_use]
    pub fn parts(&self) -> (&[u8], &[u8]) {
        let first = self.length.min(self.bytes.len() - self.start);
        (&self.bytes[self.start..self.start + first], &self.bytes[..self.length - first])
    }

    /// Removes the oldest `count` bytes.
    pub fn consume(&mut self, count: usize) {
        let count = count.min(self.length);
        self.length -= count;
        self.start += count;
        if self.start >= self.bytes.len() {
            self.start -= self.bytes.len();
        }
        if self.length == 0 {
            self.start = 0;
            self.emptied();
        }
    }

    /// Gives storage back that was not needed for a while.
    fn emptied(&mut self) {
        let is_sparse = self.peak <= self.bytes.len() / 2 && self.bytes.len() > FIRST_BYTES;
        self.peak = 0;
        self.sparse = if is_sparse { self.sparse + 1 } else { 0 };
        if self.sparse >= SPARSE_LIMIT {
            self.sparse = 0;
            let half = self.bytes.len() / 2;
            let mut smaller = Vec::new();
            if smaller.try_reserve_exact(half).is_err() {
                return;
            }
            smaller.resize(half, 0);
            self.bytes = smaller;
        }
    }

    /// Gives all storage of an empty ring back.
    pub fn release(&mut self) {
        if self.length == 0 {
            *self = Self::new();
        }
    }
}
