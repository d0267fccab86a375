//! A bounded buffer between a source and a sink.
//!
//! The owner polls the source while [`Pump::wants_input`] and the sink while [`Pump::has_output`]; so a slow sink
//! stops the source, and memory stays bounded.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

const BUFFER_BYTES: usize = 64 << 10;

/// The result of an attempt to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// This many bytes came, at least one.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The source ended.
    End,
}

/// The result of an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// The buffer is empty.
    All,
    /// The sink takes no more now.
    Some,
    /// The sink has no reader; the buffer was thrown away.
    ReaderGone,
}

/// A buffer with the totals of what went through it.
#[derive(Debug)]
pub struct Pump {
    buffer: Vec<u8>,
    start: usize,
    received: u64,
    sent: u64,
    write_max_bytes: usize,
}

impl Default for Pump {
    fn default() -> Self {
        Self::new(BUFFER_BYTES)
    }
}

impl Pump {
    /// An empty pump that never writes more than `write_max_bytes` at a time: a blocking pipe that polls as
    /// writable takes `PIPE_BUF` bytes without blocking, and no more are certain.
    #[must_use]
    pub fn new(write_max_bytes: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, received: 0, sent: 0, write_max_bytes }
    }

    /// Bytes read from the source so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes written to the sink, or thrown away for want of a reader, so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether the buffer is empty, and so the source should be read.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Whether bytes wait for the sink.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.wants_input()
    }

    /// Reads once from `source`, into an empty buffer.
    ///
    /// # Errors
    /// The error of reading. `EIO` and `ECONNRESET` are ends: terminals and sockets say so when their other side is
    /// gone.
    pub fn fill(&mut self, source: impl AsFd) -> io::Result<Filled> {
        debug_assert!(self.wants_input(), "a pump is filled when it is empty");
        self.start = 0;
        self.buffer.clear();
        self.buffer.reserve(BUFFER_BYTES);
        match rustix::io::read(source, rustix::buffer::spare_capacity(&mut self.buffer)) {
            Ok(0) | Err(Errno::IO | Errno::CONNRESET) => Ok(Filled::End),
            Ok(count) => {
                self.received += count as u64;
                Ok(Filled::Bytes(count))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Filled::Nothing),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes the waiting bytes, which must not become more.
    pub fn filter(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let waiting = self.buffer.len();
        change(&mut self.buffer);
        debug_assert!(self.buffer.len() <= waiting);
    }

    /// Writes what `sink` takes now, at most `write_max_bytes`.
    ///
    /// # Errors
    /// The error of writing, except that a sink without a reader is no error.
    pub fn drain(&mut self, sink: impl AsFd) -> io::Result<Drained> {
        while self.has_output() {
            let end = self.buffer.len().min(self.start.saturating_add(self.write_max_bytes));
            match rustix::io::write(&sink, &self.buffer[self.start..end]) {
                Ok(count) => {
                    self.start += count;
                    self.sent += count as u64;
                    if self.write_max_bytes < BUFFER_BYTES && self.has_output() {
                        return Ok(Drained::Some);
                    }
                }
                Err(Errno::AGAIN) => return Ok(Drained::Some),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET | Errno::IO) => {
                    self.discard();
                    return Ok(Drained::ReaderGone);
                }
                Err(error) => {
                    self.discard();
                    return Err(error.into());
                }
            }
        }
        Ok(Drained::All)
    }

    /// Throws the waiting bytes away, as if they had been written.
    pub fn discard(&mut self) {
        self.sent += (self.buffer.len() - self.start) as u64;
        self.start = self.buffer.len();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (near, far)
    }

    #[test]
    fn bytes_pass_unchanged_and_counted() {
        let (source, mut writer) = pair();
        let (sink, mut reader) = pair();
        let mut pump = Pump::default();
        assert_eq!(pump.fill(&source).unwrap(), Filled::Nothing);
        writer.write_all(b"some bytes").unwrap();
        assert_eq!(pump.fill(&source).unwrap(), Filled::Bytes(10));
        assert!(pump.has_output() && !pump.wants_input());
        assert_eq!(pump.drain(&sink).unwrap(), Drained::All);
        drop(writer);
        assert_eq!(pump.fill(&source).unwrap(), Filled::End);
        drop(sink);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "some bytes");
        assert_eq!((pump.received(), pump.sent()), (10, 10));
    }

    #[test]
    fn a_full_sink_stops_the_pump_without_loss() {
        let (sink, mut reader) = pair();
        let (source, mut writer) = pair();
        let data: Vec<u8> = (0..2_000_000u32).map(|index| (index % 251) as u8).collect();
        let expected = data.clone();
        let feeder = std::thread::spawn(move || writer.write_all(&data).unwrap());
        let mut pump = Pump::new(4096);
        let mut back = Vec::new();
        let mut chunk = [0; 10_000];
        while back.len() < expected.len() {
            if pump.wants_input() {
                pump.fill(&source).unwrap();
            }
            if pump.drain(&sink).unwrap() == Drained::Some || pump.sent() > back.len() as u64 {
                let count = reader.read(&mut chunk).unwrap();
                back.extend_from_slice(&chunk[..count]);
            }
        }
        feeder.join().unwrap();
        assert!(back == expected);
    }

    #[test]
    fn a_gone_reader_is_reported() {
        let (sink, reader) = pair();
        let (source, mut writer) = pair();
        drop(reader);
        writer.write_all(b"lost").unwrap();
        let mut pump = Pump::default();
        pump.fill(&source).unwrap();
        assert_eq!(pump.drain(&sink).unwrap(), Drained::ReaderGone);
        assert!(pump.wants_input());
    }
}
