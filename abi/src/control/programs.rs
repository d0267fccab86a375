//! Messages about further programs in a running machine, on a port of their own.
//!
//! One port carries all of them, with as many programs at a time as wanted. A program has a number, which the host
//! chooses and may use again after [`kind::ENDED`]; the machine's first program, whose streams have ports of their own,
//! is number 0 and can only be sent signals here. The host opens the port by [`super::kind::OPEN_PROGRAMS`].
//!
//! ```text
//!   host                              guest
//!   START number, program …  ──────▶
//!                            ◀──────  STARTED number, pid        (or ENDED: it could not be started)
//!   INPUT number, bytes      ──────▶
//!                            ◀──────  CREDIT number, STDIN, n    n bytes were taken, as many more may come
//!                            ◀──────  OUTPUT number, stream, bytes
//!   CREDIT number, stream, n ──────▶
//!                            ◀──────  ENDED number, ending       after all of its output
//! ```
//!
//! **Back pressure.** Each stream has a window: its sender may have [`WINDOW_BYTES`] under way that the receiver has
//! not granted again by [`kind::CREDIT`]. So a side keeps at most a window for each stream, the port never blocks
//! because of one slow stream, and a program whose output nobody takes waits in its own `write`.
//!
//! **Ends.** [`kind::END`] says that all of a stream has been sent. [`kind::CLOSE`] says that nobody reads a stream any
//! more: a program that writes to it gets `EPIPE`; a terminal hangs up. A program's descendants may outlive it: what
//! they have written when it ends is sent, then its streams are closed.

use super::{Ending, Full, Reader, Sink, header};

/// How many bytes of a stream may be under way.
pub const WINDOW_BYTES: u32 = 32 << 10;
/// The most bytes of a stream in one message: with its header it fills a buffer of the port.
pub const PIECE_BYTES: usize = 4096 - OUTPUT_HEAD_BYTES;
/// Bytes before those of the stream in a message of a [`Piece`].
pub const OUTPUT_HEAD_BYTES: usize = super::HEADER_BYTES + 8;
/// How many programs there may be at a time.
pub const PROGRAMS_MAX: usize = 256;

/// Kinds of messages; [`super::kind::START`] is one too. Each payload begins with the program's number.
pub mod kind {
    /// Host to guest: bytes for standard input or the terminal.
    pub const INPUT: u32 = 32;
    /// Both ways: `stream: u32`, all of which has been sent. From the host standard input, or the terminal, which hangs
    /// up.
    pub const END: u32 = 33;
    /// Both ways: `stream: u32`, `bytes: u32`, by which the window grows again.
    pub const CREDIT: u32 = 34;
    /// Host to guest: `stream: u32`, which has no reader any more.
    pub const CLOSE: u32 = 35;
    /// Host to guest: `rows: u32`, `columns: u32` of the terminal.
    pub const WINDOW_SIZE: u32 = 36;
    /// Host to guest: `signal: u32`, `scope: u32`, one of [`super::scope`].
    pub const SIGNAL: u32 = 37;
    /// Guest to host: `pid: u32`.
    pub const STARTED: u32 = 48;
    /// Guest to host: `stream: u32` and bytes of it.
    pub const OUTPUT: u32 = 49;
    /// Guest to host: how the program ended. Nothing follows about this program.
    pub const ENDED: u32 = 50;
}

/// Whom a signal is for.
pub mod scope {
    /// The program's process.
    pub const PROCESS: u32 = 0;
    /// The group of the program's process.
    pub const GROUP: u32 = 1;
    /// Every process of the machine.
    pub const MACHINE: u32 = 2;
}

/// The words of a message whose payload are the program's number and two more; what a kind has less is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The program.
    pub number: u32,
    /// The words.
    pub words: [u32; 2],
}

impl Short {
    /// Writes a message.
    ///
    /// # Errors
    /// [`Full`] as the sink says.
    pub fn put(&self, sink: &mut impl Sink, kind: u32) -> Result<(), Full> {
        header(sink, kind, 12)?;
        [self.number, self.words[0], self.words[1]].iter().try_for_each(|word| sink.put(&word.to_le_bytes()))
    }

    /// Reads a payload.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        Some(Self { number: reader.u32()?, words: [reader.u32()?, reader.u32()?] })
    }
}

/// The number of the program that a payload is about.
#[must_use]
pub fn number_of(payload: &[u8]) -> Option<u32> {
    Reader(payload).u32()
}

/// Replaces the number of the program that a payload is about; a payload without one stays as it is.
pub fn set_number(payload: &mut [u8], number: u32) {
    if let Some(first) = payload.first_chunk_mut() {
        *first = number.to_le_bytes();
    }
}

/// Bytes of a stream: [`kind::INPUT`] and [`kind::OUTPUT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The program.
    pub number: u32,
    /// The stream, by [`super::stream`].
    pub stream: u32,
    /// The bytes, at most [`PIECE_BYTES`].
    pub bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Writes a message.
    ///
    /// # Errors
    /// [`Full`] as the sink says.
    pub fn put(&self, sink: &mut impl Sink, kind: u32) -> Result<(), Full> {
        header(sink, kind, 8 + self.bytes.len())?;
        sink.put(&self.number.to_le_bytes())?;
        sink.put(&self.stream.to_le_bytes())?;
        sink.put(self.bytes)
    }

    /// Reads a payload.
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        Some(Self { number: reader.u32()?, stream: reader.u32()?, bytes: reader.0 })
    }
}

/// The start of a message with `length` bytes of output ([`kind::OUTPUT`]), for a sender that has the bytes in place.
#[must_use]
pub fn output_head(number: u32, stream: u32, length: usize) -> [u8; OUTPUT_HEAD_BYTES] {
    let mut head = [0; OUTPUT_HEAD_BYTES];
    let words = [length as u32 + 8, kind::OUTPUT, number, stream];
    for (bytes, word) in head.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    head
}

/// Writes a [`kind::ENDED`] message.
///
/// # Errors
/// [`Full`] as the sink says.
pub fn put_ended(sink: &mut impl Sink, number: u32, ending: Ending) -> Result<(), Full> {
    header(sink, kind::ENDED, 12)?;
    sink.put(&number.to_le_bytes())?;
    ending.put(sink)
}

/// Reads the payload of [`kind::ENDED`] behind the program's number.
#[must_use]
pub fn parse_ended(payload: &[u8]) -> Option<Ending> {
    let mut reader = Reader(payload);
    reader.u32()?;
    Ending::parse(&mut reader)
}

/// The bytes of a stream that its sender may still send, of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    open_bytes: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self { open_bytes: WINDOW_BYTES }
    }
}

impl Window {
    /// How much may be sent in one message now.
    #[must_use]
    pub fn piece_bytes(&self) -> usize {
        PIECE_BYTES.min(self.open_bytes as usize)
    }

    /// Counts bytes that were sent.
    pub fn spend(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.open_bytes as usize, "more was sent than the window allows");
        self.open_bytes = self.open_bytes.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    /// The receiver has taken bytes. A peer that grants more than a window gets a window.
    pub fn grant(&mut self, bytes: u32) {
        self.open_bytes = self.open_bytes.saturating_add(bytes).min(WINDOW_BYTES);
    }
}

/// The bytes that a receiver has taken and not granted yet: grants go out by the half window, not for every read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    bytes: u32,
}

impl Taken {
    /// Counts bytes that were taken; says how many to grant now.
    pub fn add(&mut self, bytes: usize) -> Option<u32> {
        self.bytes = self.bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        (self.bytes >= WINDOW_BYTES / 2).then(|| core::mem::take(&mut self.bytes))
    }
}
