//! A trace of system calls: the record of a call in the kernel's log, and what of a program's memory belongs to it.
//!
//! The kernel copies memory and decides nothing of how it looks; the host tool prints. Both read [`CALLS`]: it says of
//! each argument what it is, and so which memory it stands for, and when.
//!
//! A record is a line: `strace TID START DURATION NAME A B C D E F RESULT MEMORY`. Times are nanoseconds of the
//! machine's clock, in decimal as TID is; arguments and the result are words in hexadecimal, an error as the
//! word that the program gets, and [`UNFINISHED`] for a call that did not return. MEMORY is a list of `ADDRESS:BYTES`,
//! in hexadecimal, each followed by a comma. In place of NAME and what follows there may be [`SIGNAL`] with a signal's
//! number and code, or [`EXIT`] with the status of a thread that ends, as waitpid(2) has it.

mod table;

pub use table::CALLS;

/// The result of a call that did not return.
pub const UNFINISHED: &str = "?";
/// The name of a call that Linux does not have.
pub const UNKNOWN: &str = "unknown";
/// Marks the record of a signal that is delivered.
pub const SIGNAL: &str = "signal";
/// Marks the record of a thread's end.
pub const EXIT: &str = "exit";
/// The most bytes of a string.
pub const TEXT_MAX: usize = 512;
/// The most bytes of a buffer.
pub const BYTES_MAX: usize = 48;
/// The most elements of a list of strings or buffers.
pub const LIST_MAX: usize = 32;
/// Bytes of an iovec.
pub const VECTOR_BYTES: usize = 16;
/// Bytes of a msghdr, in which the name, its length, the iovecs and their number come first.
pub const MESSAGE_BYTES: usize = 56;

/// The time at which memory is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// When the call begins.
    Entry,
    /// When it has returned without an error.
    Exit,
}

/// The kind of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A word, or an address of which nothing is shown.
    Hex,
    /// A signed number of 32 bits.
    Int,
    /// A number.
    Unsigned,
    /// A signed number of 64 bits.
    Offset,
    /// A file descriptor.
    Descriptor,
    /// A file descriptor of a directory, or `AT_FDCWD`.
    Directory,
    /// A string.
    Path,
    /// A list of strings.
    Strings,
    /// A list of strings of which the number is shown.
    Environment,
    /// Bytes that the kernel reads; the argument of this index is their number.
    Input(usize),
    /// Bytes that the kernel writes, as many as the call returns.
    Output,
    /// Buffers that the kernel reads; the argument of this index is their number.
    InputVectors(usize),
    /// Buffers that the kernel writes.
    OutputVectors(usize),
    /// A message that is sent.
    Message,
    /// A message that is received.
    MessageOut,
    /// An address of a socket; the argument of this index is its length.
    Address(usize),
    /// An address of a socket that the kernel writes; the argument of this index points to its length.
    AddressOut(usize),
    /// The bits of a file's mode.
    Octal,
    /// A signal.
    Signal,
    /// Flags, or one of several names.
    Names(Names),
    /// A structure that the kernel reads.
    In(Structure),
    /// A structure that the kernel writes.
    Out(Structure),
    /// Descriptors of poll(2), whose results show when it returns; the argument of this index is their number.
    Poll(usize),
    /// Events of epoll, as many as the call returns.
    Events,
}

/// Sets of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the call or the prefix of the names")]
pub enum Names {
    Access,
    Advice,
    Arch,
    At,
    Clock,
    Clone,
    Domain,
    EpollOperation,
    Fcntl,
    Futex,
    Ioctl,
    Mapping,
    MessageFlags,
    Open,
    Prctl,
    Protection,
    Random,
    Rename,
    Resource,
    SignalHow,
    SocketLevel,
    SocketType,
    Wait,
    Whence,
}

/// Structures of Linux on x86-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named as in the manual")]
pub enum Structure {
    CloneArgs,
    EpollEvent,
    Int,
    IntPair,
    Limit,
    SignalAction,
    SignalSet,
    Stat,
    Statx,
    Timespec,
    TimespecPair,
    Timeval,
    TimerSpec,
    WaitStatus,
}

impl Structure {
    /// Bytes of it that are copied.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Int | Self::WaitStatus => 4,
            Self::IntPair | Self::SignalSet => 8,
            Self::EpollEvent => 12,
            Self::Limit | Self::Timespec | Self::Timeval => 16,
            Self::SignalAction | Self::TimespecPair | Self::TimerSpec => 32,
            Self::Statx => 64,
            Self::CloneArgs => 88,
            Self::Stat => 144,
        }
    }
}

/// Memory that an argument stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// None.
    Nothing,
    /// A string.
    Text,
    /// A list of addresses of strings, with a null behind it.
    Texts,
    /// So many bytes.
    Bytes(usize),
    /// So many iovecs, and the buffers.
    Vectors(usize),
    /// A msghdr, its name and its buffers.
    Message,
}

impl Argument {
    /// The memory to copy for the argument `index` of `arguments` at a moment; `result` is what the call returned.
    #[must_use]
    pub fn memory(self, moment: Moment, arguments: &[usize; 6], result: usize) -> Memory {
        let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
        match (moment, self) {
            (Moment::Entry, Self::Path) => Memory::Text,
            (Moment::Entry, Self::Strings | Self::Environment) => Memory::Texts,
            (Moment::Entry, Self::Input(count)) => Memory::Bytes(argument(count).min(BYTES_MAX)),
            (Moment::Entry, Self::InputVectors(count)) | (Moment::Exit, Self::OutputVectors(count)) => {
                Memory::Vectors(argument(count).min(LIST_MAX))
            }
            (Moment::Entry, Self::Message) | (Moment::Exit, Self::MessageOut) => Memory::Message,
            (Moment::Entry, Self::Address(length)) => Memory::Bytes(argument(length).min(BYTES_MAX * 3)),
            (Moment::Exit, Self::AddressOut(_)) => Memory::Bytes(BYTES_MAX),
            (Moment::Entry, Self::In(structure)) | (Moment::Exit, Self::Out(structure)) => {
                Memory::Bytes(structure.size())
            }
            (Moment::Entry | Moment::Exit, Self::Poll(count)) => {
                Memory::Bytes(8 * argument(count).min(LIST_MAX))
            }
            (Moment::Exit, Self::Output) => Memory::Bytes(result.min(BYTES_MAX)),
            (Moment::Exit, Self::Events) => {
                Memory::Bytes(Structure::EpollEvent.size() * result.min(LIST_MAX))
            }
            _ => Memory::Nothing,
        }
    }
}

/// The arguments of the call with this name; `None` if the table does not have it: six words.
#[must_use]
pub fn arguments(name: &str) -> Option<&'static [Argument]> {
    CALLS
        .binary_search_by(|(known, _)| (*known).cmp(name))
        .ok()
        .and_then(|index| CALLS.get(index))
        .map(|call| call.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_refers_to_its_own_arguments() {
        assert!(CALLS.is_sorted_by(|(a, _), (b, _)| a < b));
        for (name, arguments) in CALLS {
            assert!(arguments.len() <= 6, "{name}");
            for argument in *arguments {
                if let Argument::Input(index) | Argument::Address(index) | Argument::Poll(index) = argument {
                    assert!(*index < arguments.len(), "{name}");
                }
            }
        }
    }

    #[test]
    fn an_argument_stands_for_memory_at_its_moment() {
        let arguments = [1, 0x1000, 3, 0, 0, 0];
        assert_eq!(Argument::Input(2).memory(Moment::Entry, &arguments, 0), Memory::Bytes(3));
        assert_eq!(Argument::Input(2).memory(Moment::Exit, &arguments, 0), Memory::Nothing);
        assert_eq!(Argument::Output.memory(Moment::Exit, &arguments, 1 << 40), Memory::Bytes(BYTES_MAX));
        assert_eq!(Argument::Poll(2).memory(Moment::Exit, &arguments, 1), Memory::Bytes(24));
    }
}
