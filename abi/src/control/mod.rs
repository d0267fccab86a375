//! Messages on the control port.
//!
//! A message is an 8-byte header, `length: u32` (of the payload, in bytes) and `kind: u32`, then the payload; all
//! integers are little-endian. A byte string is `length: u32` and its bytes, a list is `count: u32` and its items.
//! The host speaks first ([`Start`]); the guest ends with [`Exit`], after which the host waits until it has
//! received as many bytes on each stream as `Exit` counts, and then ends the machine. A side that receives a kind
//! it does not know skips the message.
//!
//! Further programs in the same machine have a port of their own, with messages of the same form: [`programs`].

pub mod programs;
mod shares;

pub use shares::{ShareChanged, SpecialFile};

/// Length of a message header in bytes.
pub const HEADER_BYTES: usize = 8;
/// Largest payload in bytes: room for Linux's 2 MiB of arguments and environment, and their lengths.
pub const PAYLOAD_MAX_BYTES: usize = 4 << 20;

/// Kinds of messages.
pub mod kind {
    /// Host to guest: [`super::Start`].
    pub const START: u32 = 1;
    /// Host to guest: [`super::EndOfInput`].
    pub const END_OF_INPUT: u32 = 2;
    /// Host to guest: [`super::WindowSize`].
    pub const WINDOW_SIZE: u32 = 3;
    /// Host to guest: `signal: u32`, to be sent to the program's process group.
    pub const SIGNAL: u32 = 4;
    /// Host to guest: `stream: u32` (a [`super::stream`] number), which has no reader any more.
    pub const READER_GONE: u32 = 5;
    /// Host to guest, without payload: open the port of [`super::programs`], once.
    pub const OPEN_PROGRAMS: u32 = 6;
    /// Host to guest: `folder: u32`, a shared folder of which all changes are announced from now on.
    pub const SHARE_WATCHED: u32 = 7;
    /// Host to guest: `folder: u32`, of which changes are not announced any more.
    pub const SHARE_UNWATCHED: u32 = 9;
    /// Host to guest: `number: u32`, `error: u32`: what has become of a [`super::SpecialFile`]; zero: it is done.
    pub const SPECIAL_FILE_DONE: u32 = 10;
    /// Guest to host: [`super::SpecialFile`].
    pub const SPECIAL_FILE: u32 = 20;
    /// Host to guest: [`super::ShareChanged`].
    pub const SHARE_CHANGED: u32 = 8;
    /// Guest to host: [`super::Exit`].
    pub const EXIT: u32 = 16;
    /// Guest to host: `nanoseconds: u64`, guest time from its first instruction to the program's start.
    pub const STARTED: u32 = 17;
    /// Guest to host: [`super::OutOfMemory`].
    pub const OUT_OF_MEMORY: u32 = 18;
    /// Guest to host: `seconds: u32`, for which no server of DHCP has given an address; the program starts without.
    pub const NO_LEASE: u32 = 19;
}

/// Numbers of the streams in messages.
pub mod stream {
    /// Standard input.
    pub const STDIN: u32 = 0;
    /// Standard output.
    pub const STDOUT: u32 = 1;
    /// Standard error.
    pub const STDERR: u32 = 2;
    /// The terminal.
    pub const TTY: u32 = 3;
}

/// The connection of one of the program's standard descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Descriptor {
    /// Nothing: the descriptor is closed when the program starts.
    Closed = 0,
    /// A byte stream; the program sees a pipe.
    Pipe = 1,
    /// The terminal.
    Terminal = 2,
}

impl Descriptor {
    /// The inverse of `self as u32`.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Closed),
            1 => Some(Self::Pipe),
            2 => Some(Self::Terminal),
            _ => None,
        }
    }
}

/// Rows and columns of the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowSize {
    /// Height in characters.
    pub rows: u32,
    /// Width in characters.
    pub columns: u32,
}

/// The host has sent all of a stream's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndOfInput {
    /// The stream, by [`stream`].
    pub stream: u32,
    /// How many bytes the host sent on it in all: the guest reports end of file after that many.
    pub total_bytes: u64,
}

/// The program to run and the connections of its streams.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The program's number: 0 for the machine's first, others for those of [`programs`].
    pub number: u32,
    /// Standard input, output and error.
    pub descriptors: [Descriptor; 3],
    /// The terminal's size, zero where there is none.
    pub window: WindowSize,
    /// The user id, real, effective and saved.
    pub user: u32,
    /// The group id, likewise.
    pub group: u32,
    /// The supplementary groups.
    pub groups: Words<'a>,
    /// Path of the program in the guest. One without a slash is looked for along `PATH` of the environment.
    pub program: &'a [u8],
    /// Working directory in the guest.
    pub directory: &'a [u8],
    /// `argv`, the name first.
    pub arguments: List<'a>,
    /// `KEY=VALUE` strings.
    pub environment: List<'a>,
}

/// The parts of a [`Start`] message: the same fields, with slices, because a [`List`] only exists inside a message.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields are those of Start")]
pub struct StartFields<'a, S> {
    pub number: u32,
    pub descriptors: [Descriptor; 3],
    pub window: WindowSize,
    pub user: u32,
    pub group: u32,
    pub groups: &'a [u32],
    pub program: &'a [u8],
    pub directory: &'a [u8],
    pub arguments: &'a [S],
    pub environment: &'a [S],
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status, 0 to 255.
    Exited(u32),
    /// This signal killed it.
    Signaled(u32),
    /// It could not be started: the errno of `execve`.
    NotStarted(u32),
    /// It could not be started in its working directory: the errno of `chdir`.
    NoDirectory(u32),
}

/// The last message of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// How the program ended.
    pub ending: Ending,
    /// Bytes written by the guest to standard output, standard error and the terminal.
    pub written_bytes: [u64; 3],
}

/// The guest has killed a process because its memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The process.
    pub pid: u32,
    /// The name of its first thread, filled up with zeros.
    pub name: [u8; 16],
    /// The memory that it had.
    pub bytes: u64,
}

/// A list of byte strings inside a message.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl<'a> List<'a> {
    /// The number of items.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are no items.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The items in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader(self.bytes);
        (0..self.count).map_while(move |_| reader.bytes())
    }
}

/// A list of numbers inside a message.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        let mut reader = Reader(self.0);
        core::iter::from_fn(move || reader.u32())
    }
}

/// Where a message is written to.
pub trait Sink {
    /// Appends bytes, or says that there is no room.
    ///
    /// # Errors
    /// [`Full`] when the bytes don't fit; nothing useful is in the sink then.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full>;
}

/// A [`Sink`] has no room left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A fixed buffer as a [`Sink`]; large enough for every message but [`Start`].
#[derive(Clone, Debug)]
pub struct Small {
    bytes: [u8; 64],
    length: usize,
}

impl Small {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; 64], length: 0 }
    }

    /// The bytes put into it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Default for Small {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink for Small {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let end = self.length + bytes.len();
        self.bytes.get_mut(self.length..end).ok_or(Full)?.copy_from_slice(bytes);
        self.length = end;
        Ok(())
    }
}

fn header(sink: &mut impl Sink, kind: u32, length: usize) -> Result<(), Full> {
    let length = u32::try_from(length).map_err(|_| Full)?;
    sink.put(&length.to_le_bytes())?;
    sink.put(&kind.to_le_bytes())
}

/// Splits a header into payload length and kind; `None` if the length is over [`PAYLOAD_MAX_BYTES`].
#[must_use]
pub fn parse_header(bytes: [u8; HEADER_BYTES]) -> Option<(usize, u32)> {
    let mut reader = Reader(&bytes);
    let length = reader.u32()? as usize;
    (length <= PAYLOAD_MAX_BYTES).then_some((length, reader.u32()?))
}

/// Writes a message whose payload is one `u32`: [`kind::SIGNAL`], [`kind::READER_GONE`], [`kind::NO_LEASE`],
/// [`kind::SHARE_WATCHED`], [`kind::SHARE_UNWATCHED`].
///
/// # Errors
/// [`Full`] as the sink says.
pub fn put_word(sink: &mut impl Sink, kind: u32, word: u32) -> Result<(), Full> {
    header(sink, kind, 4)?;
    sink.put(&word.to_le_bytes())
}

/// Reads the payload of a message written by [`put_word`].
#[must_use]
pub fn parse_word(payload: &[u8]) -> Option<u32> {
    Reader(payload).u32()
}

/// Writes a [`kind::OPEN_PROGRAMS`] message.
///
/// # Errors
/// [`Full`] as the sink says.
pub fn put_open_programs(sink: &mut impl Sink) -> Result<(), Full> {
    header(sink, kind::OPEN_PROGRAMS, 0)
}

/// Writes a [`kind::STARTED`] message.
///
/// # Errors
/// [`Full`] as the sink says.
pub fn put_started(sink: &mut impl Sink, nanoseconds: u64) -> Result<(), Full> {
    header(sink, kind::STARTED, 8)?;
    sink.put(&nanoseconds.to_le_bytes())
}

/// Reads the payload of [`kind::STARTED`].
#[must_use]
pub fn parse_started(payload: &[u8]) -> Option<u64> {
    Reader(payload).u64()
}

impl WindowSize {
    /// Writes a [`kind::WINDOW_SIZE`] message.
    ///
    /// # Errors
    /// [`Full`] as the sink says.
    pub fn put(&self, sink: &mut impl Sink) -> Result<(), Full> {
        header(sink, kind::WINDOW_SIZE, 8)?;
        sink.put(&self.rows.to_le_bytes())?;
        sink.put(&self.columns.to_le_bytes())
    }

    /// Reads the payload of [`kind::WINDOW_SIZE`].
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        Some(Self { rows: reader.u32()?, columns: reader.u32()? })
    }
}

impl EndOfInput {
    /// Writes a [`kind::END_OF_INPUT`] message.
    ///
    /// # Errors
    /// [`Full`] as the sink says.
    pub fn put(&self, sink: &mut impl Sink) -> Result<(), Full> {
        header(sink, kind::END_OF_INPUT, 12)?;
        sink.put(&self.stream.to_le_bytes())?;
        sink.put(&self.total_bytes.to_le_bytes())
    }

    /// Reads the payload of [`kind::END_OF_INPUT`].
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        Some(Self { stream: reader.u32()?, total_bytes: reader.u64()? })
    }
}

impl Ending {
    fn put(self, sink: &mut impl Sink) -> Result<(), Full> {
        let (how, value) = match self {
            Self::Exited(value) => (0u32, value),
            Self::Signaled(value) => (1, value),
            Self::NotStarted(value) => (2, value),
            Self::NoDirectory(value) => (3, value),
        };
        sink.put(&how.to_le_bytes())?;
        sink.put(&value.to_le_bytes())
    }

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let how = reader.u32()?;
        let value = reader.u32()?;
        match how {
            0 => Some(Self::Exited(value)),
            1 => Some(Self::Signaled(value)),
            2 => Some(Self::NotStarted(value)),
            3 => Some(Self::NoDirectory(value)),
            _ => None,
        }
    }
}

impl Exit {
    /// Writes a [`kind::EXIT`] message.
    ///
    /// # Errors
    /// [`Full`] as the sink says.
    pub fn put(&self, sink: &mut impl Sink) -> Result<(), Full> {
        header(sink, kind::EXIT, 32)?;
        self.ending.put(sink)?;
        self.written_bytes.iter().try_for_each(|total| sink.put(&total.to_le_bytes()))
    }

    /// Reads the payload of [`kind::EXIT`].
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        let ending = Ending::parse(&mut reader)?;
        Some(Self { ending, written_bytes: [reader.u64()?, reader.u64()?, reader.u64()?] })
    }
}

impl OutOfMemory {
    /// Writes a [`kind::OUT_OF_MEMORY`] message.
    ///
    /// # Errors
    /// [`Full`] as the sink says.
    pub fn put(&self, sink: &mut impl Sink) -> Result<(), Full> {
        header(sink, kind::OUT_OF_MEMORY, 28)?;
        sink.put(&self.pid.to_le_bytes())?;
        sink.put(&self.name)?;
        sink.put(&self.bytes.to_le_bytes())
    }

    /// Reads the payload of [`kind::OUT_OF_MEMORY`].
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        let pid = reader.u32()?;
        let (name, rest) = reader.0.split_first_chunk()?;
        reader.0 = rest;
        Some(Self { pid, name: *name, bytes: reader.u64()? })
    }
}

impl<S: AsRef<[u8]>> StartFields<'_, S> {
    /// Writes a [`kind::START`] message.
    ///
    /// # Errors
    /// [`Full`] as the sink says, or when the payload would exceed [`PAYLOAD_MAX_BYTES`].
    pub fn put(&self, sink: &mut impl Sink) -> Result<(), Full> {
        let list_bytes = |list: &[S]| 4 + list.iter().map(|item| 4 + item.as_ref().len()).sum::<usize>();
        let fixed = 4 + 12 + 8 + 12 + 8;
        let texts = self.program.len() + self.directory.len();
        let lists = 4 * self.groups.len() + list_bytes(self.arguments) + list_bytes(self.environment);
        let length = fixed + texts + lists;
        if length > PAYLOAD_MAX_BYTES {
            return Err(Full);
        }
        header(sink, kind::START, length)?;
        let mut word = |value: u32| sink.put(&value.to_le_bytes());
        word(self.number)?;
        self.descriptors.iter().try_for_each(|&descriptor| word(descriptor as u32))?;
        word(self.window.rows)?;
        word(self.window.columns)?;
        word(self.user)?;
        word(self.group)?;
        word(u32::try_from(self.groups.len()).map_err(|_| Full)?)?;
        self.groups.iter().try_for_each(|&group| word(group))?;
        put_bytes(sink, self.program)?;
        put_bytes(sink, self.directory)?;
        for list in [self.arguments, self.environment] {
            sink.put(&u32::try_from(list.len()).map_err(|_| Full)?.to_le_bytes())?;
            for item in list {
                put_bytes(sink, item.as_ref())?;
            }
        }
        Ok(())
    }
}

impl<'a> Start<'a> {
    /// Reads the payload of [`kind::START`]; `None` if it is malformed.
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        let number = reader.u32()?;
        let mut descriptor = || Descriptor::from_u32(reader.u32()?);
        let descriptors = [descriptor()?, descriptor()?, descriptor()?];
        let window = WindowSize { rows: reader.u32()?, columns: reader.u32()? };
        let (user, group) = (reader.u32()?, reader.u32()?);
        let count = reader.u32()? as usize;
        let groups = Words(reader.take(count.checked_mul(4)?)?);
        Some(Self {
            number,
            descriptors,
            window,
            user,
            group,
            groups,
            program: reader.bytes()?,
            directory: reader.bytes()?,
            arguments: reader.list()?,
            environment: reader.list()?,
        })
    }
}

fn put_bytes(sink: &mut impl Sink, bytes: &[u8]) -> Result<(), Full> {
    sink.put(&u32::try_from(bytes.len()).map_err(|_| Full)?.to_le_bytes())?;
    sink.put(bytes)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    fn list(&mut self) -> Option<List<'a>> {
        let count = self.u32()?;
        let start = self.0;
        for _ in 0..count {
            self.bytes()?;
        }
        let bytes = &start[..start.len() - self.0.len()];
        Some(List { count, bytes })
    }
}

#[cfg(test)]
mod tests;
