//! Core dumps: the layout of the ELF file, core(5), and the name that it gets.
//!
//! The file is the ELF header, the program headers, the notes, and the memory of the segments in the order of their
//! addresses, from a page boundary on. Layouts are those of 64-bit processors with `struct user_regs_struct` of
//! [`REGISTER_WORDS`] words.

mod pattern;
mod pieces;
#[cfg(test)]
mod tests;

pub use pattern::{DumpFacts, Pattern};
pub use pieces::Pieces;

use crate::fallible::AllocError;
use crate::mapping::Protection;

/// Bytes of the ELF header, and of a program header.
pub const HEADER_BYTES: usize = 64;
/// See [`HEADER_BYTES`].
pub const PROGRAM_HEADER_BYTES: usize = 56;
/// The words of the general registers.
pub const REGISTER_WORDS: usize = 27;
/// The most bytes of arguments in `NT_PRPSINFO`, without the final zero.
pub const ARGUMENT_BYTES: usize = 79;
/// The unit of segments.
pub const PAGE_BYTES: u64 = 4096;

/// The types of notes.
pub mod note {
    /// Status and general registers of a thread.
    pub const STATUS: u32 = 1;
    /// Floating-point registers in their old layout.
    pub const FLOAT: u32 = 2;
    /// The process.
    pub const PROCESS: u32 = 3;
    /// The auxiliary vector.
    pub const AUXILIARY: u32 = 6;
    /// All vector registers.
    pub const EXTENDED: u32 = 0x202;
    /// The signal.
    pub const SIGNAL: u32 = 0x5349_4749;
    /// The files that are mapped.
    pub const FILES: u32 = 0x4649_4c45;
}

/// The bits of `/proc/PID/coredump_filter`, core(5).
pub mod filter {
    /// Private memory, and pages of private mappings of files that were written to.
    pub const ANONYMOUS_PRIVATE: u32 = 1;
    /// Shared memory.
    pub const ANONYMOUS_SHARED: u32 = 2;
    /// Private mappings of files.
    pub const FILE_PRIVATE: u32 = 4;
    /// Shared mappings of files.
    pub const FILE_SHARED: u32 = 8;
    /// The first page of a file that is a program or a library.
    pub const ELF_HEADERS: u32 = 16;
    /// All bits that there are; the others are about pages of other sizes and devices.
    pub const ALL: u32 = 0x1ff;
    /// The bits at the start.
    pub const DEFAULT: u32 = 0x33;
}

/// A segment of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpedSegment {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// How many bytes of it are in the file.
    pub dumped: u64,
    /// Rights.
    pub protection: Protection,
}

fn put(bytes: &mut [u8], offset: usize, field: &[u8]) {
    bytes[offset..offset + field.len()].copy_from_slice(field);
}

/// The ELF header of a file with `count` program headers.
#[must_use]
pub fn header(machine: u16, count: u16) -> [u8; HEADER_BYTES] {
    const CORE: u16 = 4;
    let mut bytes = [0; HEADER_BYTES];
    // 64 bits, least significant byte first, version 1.
    put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 16, &CORE.to_le_bytes());
    put(&mut bytes, 18, &machine.to_le_bytes());
    put(&mut bytes, 20, &1_u32.to_le_bytes());
    put(&mut bytes, 32, &(HEADER_BYTES as u64).to_le_bytes());
    put(&mut bytes, 52, &(HEADER_BYTES as u16).to_le_bytes());
    put(&mut bytes, 54, &(PROGRAM_HEADER_BYTES as u16).to_le_bytes());
    put(&mut bytes, 56, &count.to_le_bytes());
    bytes
}

/// A program header: `kind`, flags, position, address, sizes in the file and in memory, alignment.
fn program_header(kind: u32, flags: u32, words: [u64; 6]) -> [u8; PROGRAM_HEADER_BYTES] {
    let mut bytes = [0; PROGRAM_HEADER_BYTES];
    put(&mut bytes, 0, &kind.to_le_bytes());
    put(&mut bytes, 4, &flags.to_le_bytes());
    for (index, word) in words.into_iter().enumerate() {
        put(&mut bytes, 8 + 8 * index, &word.to_le_bytes());
    }
    bytes
}

/// The program header of the notes.
#[must_use]
pub fn notes_header(position: u64, size: u64) -> [u8; PROGRAM_HEADER_BYTES] {
    const NOTE: u32 = 4;
    program_header(NOTE, 0, [position, 0, 0, size, 0, 4])
}

/// The program header of a segment whose bytes are at `position`.
#[must_use]
pub fn segment_header(segment: &DumpedSegment, position: u64) -> [u8; PROGRAM_HEADER_BYTES] {
    const LOAD: u32 = 1;
    let flags = [(Protection::READ, 4), (Protection::WRITE, 2), (Protection::EXECUTE, 1)]
        .into_iter()
        .filter(|&(right, _)| segment.protection.contains(right))
        .fold(0, |flags, (_, flag)| flags | flag);
    let size = segment.end - segment.start;
    program_header(LOAD, flags, [position, segment.start, 0, segment.dumped, size, PAGE_BYTES])
}

/// The owner of a note.
const fn owner(kind: u32) -> &'static [u8] {
    if kind == note::EXTENDED { b"LINUX\0" } else { b"CORE\0" }
}

const fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// Bytes of a note with a description of this length.
#[must_use]
pub const fn note_bytes(kind: u32, length: usize) -> usize {
    12 + padded(owner(kind).len()) + padded(length)
}

/// Adds the head of a note; its description follows, then [`end_note`].
///
/// # Errors
/// [`AllocError`].
pub fn begin_note(pieces: &mut Pieces<u8>, kind: u32, length: usize) -> Result<(), AllocError> {
    let owner = owner(kind);
    for word in [owner.len() as u32, length as u32, kind] {
        pieces.push(&word.to_le_bytes())?;
    }
    pieces.push(owner)?;
    pieces.pad(4)
}

/// Adds a note.
///
/// # Errors
/// [`AllocError`].
pub fn add_note(pieces: &mut Pieces<u8>, kind: u32, description: &[u8]) -> Result<(), AllocError> {
    begin_note(pieces, kind, description.len())?;
    pieces.push(description)?;
    pieces.pad(4)
}

/// The state of a thread, for `NT_PRSTATUS`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub struct ThreadStatus {
    /// The signal of the dump, its code and error number.
    pub signal: [i32; 3],
    pub pending: u64,
    pub blocked: u64,
    /// Thread, parent, process group, session.
    pub ids: [i32; 4],
    /// Times in microseconds: user and system, its own and those of children.
    pub times_us: [u64; 4],
    pub registers: [u64; REGISTER_WORDS],
}

/// Bytes of [`ThreadStatus::to_bytes`].
pub const STATUS_BYTES: usize = 336;

impl ThreadStatus {
    /// `struct elf_prstatus`.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; STATUS_BYTES] {
        const MICROSECONDS: u64 = 1_000_000;
        let mut bytes = [0; STATUS_BYTES];
        for (index, word) in self.signal.into_iter().enumerate() {
            put(&mut bytes, 4 * index, &word.to_le_bytes());
        }
        put(&mut bytes, 12, &(self.signal[0] as i16).to_le_bytes());
        put(&mut bytes, 16, &self.pending.to_le_bytes());
        put(&mut bytes, 24, &self.blocked.to_le_bytes());
        for (index, id) in self.ids.into_iter().enumerate() {
            put(&mut bytes, 32 + 4 * index, &id.to_le_bytes());
        }
        for (index, time) in self.times_us.into_iter().enumerate() {
            put(&mut bytes, 48 + 16 * index, &(time / MICROSECONDS).to_le_bytes());
            put(&mut bytes, 56 + 16 * index, &(time % MICROSECONDS).to_le_bytes());
        }
        for (index, word) in self.registers.into_iter().enumerate() {
            put(&mut bytes, 112 + 8 * index, &word.to_le_bytes());
        }
        // The floating-point registers have a note of their own.
        put(&mut bytes, 328, &1_u32.to_le_bytes());
        bytes
    }
}

/// The process, for `NT_PRPSINFO`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub struct ProcessStatus<'a> {
    pub nice: i8,
    pub uid: u32,
    pub gid: u32,
    /// Process, parent, process group, session.
    pub ids: [i32; 4],
    /// The name of the program.
    pub name: &'a [u8],
    /// The arguments, each with a zero behind it.
    pub arguments: &'a [u8],
}

/// Bytes of [`ProcessStatus::to_bytes`].
pub const PROCESS_BYTES: usize = 136;

impl ProcessStatus<'_> {
    /// `struct elf_prpsinfo`.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PROCESS_BYTES] {
        const NAME_BYTES: usize = 15;
        let mut bytes = [0; PROCESS_BYTES];
        // It runs.
        bytes[1] = b'R';
        bytes[3] = self.nice as u8;
        put(&mut bytes, 16, &self.uid.to_le_bytes());
        put(&mut bytes, 20, &self.gid.to_le_bytes());
        for (index, id) in self.ids.into_iter().enumerate() {
            put(&mut bytes, 24 + 4 * index, &id.to_le_bytes());
        }
        put(&mut bytes, 40, &self.name[..self.name.len().min(NAME_BYTES)]);
        for (place, &byte) in bytes[56..].iter_mut().zip(self.arguments).take(ARGUMENT_BYTES) {
            *place = if byte == 0 { b' ' } else { byte };
        }
        bytes
    }
}
