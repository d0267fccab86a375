//! Input that was typed and not yet read: a ring of bytes with marks where lines end.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use crate::termios::DISABLED;

/// Size of the ring. The longest line has this many bytes, its end included.
pub const CAPACITY_BYTES: usize = 4096;

/// The ring. Positions only grow; a position modulo the capacity is an index.
#[derive(Debug)]
pub(crate) struct InputQueue {
    bytes: Vec<u8>,
    /// One bit an index: a line ends with this byte.
    line_ends: [u64; CAPACITY_BYTES / 64],
    /// Next position to write.
    pub(crate) head: usize,
    /// End of the last finished line; what lies between it and `head` can still be edited.
    pub(crate) finished: usize,
    /// Next position to read.
    pub(crate) tail: usize,
}

impl InputQueue {
    pub(crate) fn try_new() -> Result<Self, TryReserveError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(CAPACITY_BYTES)?;
        bytes.resize(CAPACITY_BYTES, 0);
        Ok(Self { bytes, line_ends: [0; CAPACITY_BYTES / 64], head: 0, finished: 0, tail: 0 })
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.tail = self.head;
        self.finished = self.head;
        self.line_ends = [0; CAPACITY_BYTES / 64];
    }

    pub(crate) const fn len(&self) -> usize {
        self.head - self.tail
    }

    pub(crate) fn byte(&self, position: usize) -> u8 {
        self.bytes[position % CAPACITY_BYTES]
    }

    /// Appends a byte; the caller has made sure that there is room.
    pub(crate) fn push(&mut self, byte: u8) {
        self.bytes[self.head % CAPACITY_BYTES] = byte;
        self.head += 1;
    }

    /// Appends the last byte of a line.
    pub(crate) fn push_line_end(&mut self, byte: u8) {
        self.mark(self.head, true);
        self.push(byte);
        self.finished = self.head;
    }

    /// Forgets all line ends; with `as_line`, what was typed so far becomes one line.
    pub(crate) fn set_lines(&mut self, as_line: bool) {
        self.line_ends = [0; CAPACITY_BYTES / 64];
        if as_line && self.len() > 0 {
            self.mark(self.head - 1, true);
            self.finished = self.head;
        } else {
            self.finished = self.tail;
        }
    }

    /// Bytes of finished lines, the marks of ends of file not counted.
    pub(crate) fn finished_len(&self) -> usize {
        let is_text = |&position: &usize| !(self.is_line_end(position) && self.byte(position) == DISABLED);
        (self.tail..self.finished).filter(is_text).count()
    }

    /// Hands bytes of the first finished line to `accept` (which returns how many it took), at most `limit`.
    /// The end of a file is taken silently once everything before it was.
    pub(crate) fn take_line(&mut self, limit: usize, accept: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let mut taken = 0;
        while self.tail < self.finished {
            if self.is_line_end(self.tail) && self.byte(self.tail) == DISABLED {
                self.mark(self.tail, false);
                self.tail += 1;
                break;
            }
            if taken == limit {
                break;
            }
            let bound = (self.tail + limit - taken).min(self.finished);
            let end = (self.tail..bound).find(|&position| self.is_line_end(position));
            let ends_in_text = end.is_some_and(|position| self.byte(position) != DISABLED);
            let stop = end.map_or(bound, |position| position + usize::from(ends_in_text));
            let (count, all) = self.hand_over(stop, accept);
            taken += count;
            if !all {
                break;
            }
            if ends_in_text {
                self.mark(stop - 1, false);
                break;
            }
        }
        taken
    }

    /// Hands at most `limit` bytes to `accept`, whatever lines they are in.
    pub(crate) fn take(&mut self, limit: usize, accept: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        self.hand_over(self.head.min(self.tail + limit), accept).0
    }

    /// Hands the bytes before `stop` to `accept`; returns how many it took, and whether that is all of them.
    fn hand_over(&mut self, stop: usize, accept: &mut dyn FnMut(&[u8]) -> usize) -> (usize, bool) {
        let start = self.tail;
        while self.tail < stop {
            let index = self.tail % CAPACITY_BYTES;
            let end = (index + stop - self.tail).min(CAPACITY_BYTES);
            let count = accept(&self.bytes[index..end]);
            self.tail += count;
            if count < end - index {
                break;
            }
        }
        (self.tail - start, self.tail == stop)
    }

    fn is_line_end(&self, position: usize) -> bool {
        let index = position % CAPACITY_BYTES;
        self.line_ends[index / 64] & (1 << (index % 64)) != 0
    }

    fn mark(&mut self, position: usize, is_end: bool) {
        let index = position % CAPACITY_BYTES;
        let bit = 1 << (index % 64);
        if is_end {
            self.line_ends[index / 64] |= bit;
        } else {
            self.line_ends[index / 64] &= !bit;
        }
    }
}
