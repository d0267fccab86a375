//! The bytes in a pipe: a ring that grows with its contents up to a capacity.
//!
//! A writer copies straight into the free part and then commits; a reader copies straight out of the filled part and
//! then consumes. So a byte is copied once on each side, and a copy that stops half-way (a page of user memory is
//! missing) has done exactly what it reported.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::fallible::{extend_reserved, resize_reserved};

/// Storage that a ring begins with: most pipes never carry more at once.
const FIRST_BYTES: usize = 4096;

pub use crate::OutOfMemory;

/// A byte ring.
#[derive(Debug)]
pub struct Ring {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
    capacity: usize,
}

impl Ring {
    /// An empty ring that holds at most `capacity` bytes; allocates nothing.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, length: 0, capacity }
    }

    /// Bytes in the ring.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there is nothing to read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The most it may hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub const fn storage_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that may still be written.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.capacity - self.length
    }

    /// Changes the capacity; says whether the contents fit.
    pub const fn set_capacity(&mut self, capacity: usize) -> bool {
        let fits = self.length <= capacity;
        if fits {
            self.capacity = capacity;
        }
        fits
    }

    /// Provides storage for `count` more bytes, or for as many as there is [`room`](Ring::room).
    ///
    /// # Errors
    /// [`OutOfMemory`], if there is no storage for even one more byte.
    pub fn reserve(&mut self, count: usize) -> Result<(), OutOfMemory> {
        let needed = self.length + count.min(self.room());
        if needed <= self.bytes.len() {
            return Ok(());
        }
        let size = needed.next_power_of_two().max(FIRST_BYTES).min(self.capacity.max(FIRST_BYTES));
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(size).is_err() {
            return if self.length < self.bytes.len() { Ok(()) } else { Err(OutOfMemory) };
        }
        let (first, second) = self.parts();
        extend_reserved(&mut bytes, first);
        extend_reserved(&mut bytes, second);
        resize_reserved(&mut bytes, size, 0);
        self.bytes = bytes;
        self.start = 0;
        Ok(())
    }

    /// The first contiguous part of the storage that is free, at most [`room`](Ring::room) bytes long; empty
    /// when more storage must be [reserved](Ring::reserve) first.
    pub fn free(&mut self) -> &mut [u8] {
        let room = self.room().min(self.bytes.len() - self.length);
        let end = self.start + self.length;
        let from = if end < self.bytes.len() { end } else { end - self.bytes.len() };
        let to = self.bytes.len().min(from + room);
        &mut self.bytes[from..to]
    }

    /// Makes the first `count` bytes of [`free`](Ring::free) contents.
    pub fn commit(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        self.length = (self.length + count).min(self.bytes.len());
    }

    /// The contents, oldest first, in at most two parts.
    #[must_use]
    pub fn parts(&self) -> (&[u8], &[u8]) {
        let first = self.length.min(self.bytes.len() - self.start);
        (&self.bytes[self.start..self.start + first], &self.bytes[..self.length - first])
    }

    /// Removes the oldest `count` bytes.
    pub fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.length);
        let count = count.min(self.length);
        self.length -= count;
        self.start += count;
        if self.start >= self.bytes.len() {
            self.start -= self.bytes.len();
        }
        if self.length == 0 {
            self.start = 0;
            if self.bytes.len() > FIRST_BYTES {
                self.bytes = Vec::new();
            }
        }
    }
}
