//! ELF headers.

use alloc::vec::Vec;
use object::Endianness;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::exec::PAGE_BYTES;
use crate::fallible::push_reserved;

/// Why a file can't be run; `ENOEXEC`, but for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// No ELF file.
    NotElf,
    /// For another processor, or for 32 bits.
    WrongMachine,
    /// An ELF file that is no program.
    NotExecutable,
    /// Headers that contradict themselves or lie beyond the first page.
    Malformed,
    /// No memory for the list of segments.
    OutOfMemory,
}

/// Where a program can be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// `ET_EXEC`: only at the addresses it names.
    Fixed,
    /// `ET_DYN`: anywhere.
    PositionIndependent,
}

/// The permitted accesses to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "one word each")]
pub struct SegmentProtection {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
}

/// A part of the file that is mapped; `PT_LOAD`. Addresses are the file's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first address.
    pub address: u64,
    /// Where its contents start in the file; congruent to `address` modulo the page size.
    pub offset: u64,
    /// Bytes from the file.
    pub file_bytes: u64,
    /// Bytes in memory, the rest zero.
    pub memory_bytes: u64,
    /// The permitted accesses.
    pub protection: SegmentProtection,
}

impl Segment {
    /// The address after the last.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.address + self.memory_bytes
    }
}

/// The contents of the headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where it can be put.
    pub kind: ImageKind,
    /// The first instruction's address.
    pub entry: u64,
    /// The segments to map, by rising address; at least one.
    pub segments: Vec<Segment>,
    /// Address of the program headers in memory (`AT_PHDR`), if a segment holds them.
    pub headers: Option<u64>,
    /// Their number (`AT_PHNUM`).
    pub header_count: u16,
    /// Their size (`AT_PHENT`).
    pub header_bytes: u16,
    /// Where the path of the dynamic loader is in the file: offset and length, with the final zero.
    pub interpreter: Option<(u64, u64)>,
    /// The base address must be a multiple of this.
    pub alignment: u64,
    /// Whether the program wants an executable stack.
    pub executable_stack: bool,
}

/// The longest path of a dynamic loader.
const INTERPRETER_BYTES_MAX: u64 = 4096;
/// Addresses are below this: the lower half of a 48-bit space.
const ADDRESS_LIMIT: u64 = 1 << 47;

impl Image {
    /// Reads the headers at the start of a file of `file_bytes` for a processor of ELF machine number `machine`.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn parse(start: &[u8], file_bytes: u64, machine: u16) -> Result<Self, ImageError> {
        if !start.starts_with(&elf::ELFMAG) {
            return Err(ImageError::NotElf);
        }
        if start.get(4) != Some(&elf::ELFCLASS64.0) {
            return Err(ImageError::WrongMachine);
        }
        let header = elf::FileHeader64::<Endianness>::parse(start).map_err(|_| ImageError::Malformed)?;
        let endian = header.endian().map_err(|_| ImageError::Malformed)?;
        if endian != Endianness::Little || header.e_machine(endian).0 != machine {
            return Err(ImageError::WrongMachine);
        }
        let kind = match header.e_type(endian) {
            elf::ET_EXEC => ImageKind::Fixed,
            elf::ET_DYN => ImageKind::PositionIndependent,
            _ => return Err(ImageError::NotExecutable),
        };
        let headers = header.program_headers(endian, start).map_err(|_| ImageError::Malformed)?;
        let mut image = Self {
            kind,
            entry: header.e_entry(endian),
            segments: Vec::new(),
            headers: None,
            header_count: header.e_phnum(endian),
            header_bytes: header.e_phentsize(endian),
            interpreter: None,
            alignment: PAGE_BYTES,
            executable_stack: false,
        };
        image.segments.try_reserve_exact(headers.len()).map_err(|_| ImageError::OutOfMemory)?;
        for each in headers {
            image.add(each, endian, file_bytes)?;
        }
        image.headers = image.find_headers(header.e_phoff(endian));
        if image.segments.is_empty() || image.entry >= ADDRESS_LIMIT {
            return Err(ImageError::Malformed);
        }
        Ok(image)
    }

    fn add(
        &mut self,
        header: &elf::ProgramHeader64<Endianness>,
        endian: Endianness,
        file_bytes: u64,
    ) -> Result<(), ImageError> {
        let flags = header.p_flags(endian);
        let (offset, size) = (header.p_offset(endian), header.p_filesz(endian));
        match header.p_type(endian) {
            elf::PT_LOAD if header.p_memsz(endian) > 0 => {
                let segment = Segment {
                    address: header.p_vaddr(endian),
                    offset,
                    file_bytes: size,
                    memory_bytes: header.p_memsz(endian),
                    protection: SegmentProtection {
                        read: flags.0 & elf::PF_R.0 != 0,
                        write: flags.0 & elf::PF_W.0 != 0,
                        execute: flags.0 & elf::PF_X.0 != 0,
                    },
                };
                let previous_end = self.segments.last().map_or(0, Segment::end);
                let end = segment.address.checked_add(segment.memory_bytes);
                let is_sound = segment.file_bytes <= segment.memory_bytes
                    && segment.offset.checked_add(segment.file_bytes).is_some_and(|end| end <= file_bytes)
                    && end.is_some_and(|end| end < ADDRESS_LIMIT)
                    && segment.address % PAGE_BYTES == segment.offset % PAGE_BYTES
                    && segment.address >= previous_end;
                if !is_sound {
                    return Err(ImageError::Malformed);
                }
                let alignment = header.p_align(endian);
                if alignment.is_power_of_two() && alignment < ADDRESS_LIMIT {
                    self.alignment = self.alignment.max(alignment);
                }
                push_reserved(&mut self.segments, segment);
            }
            elf::PT_INTERP if self.interpreter.is_none() => {
                if !(2..=INTERPRETER_BYTES_MAX).contains(&size) {
                    return Err(ImageError::Malformed);
                }
                self.interpreter = Some((offset, size));
            }
            elf::PT_GNU_STACK => self.executable_stack = flags.0 & elf::PF_X.0 != 0,
            _ => {}
        }
        Ok(())
    }

    fn find_headers(&self, offset: u64) -> Option<u64> {
        let holder = self
            .segments
            .iter()
            .find(|segment| (segment.offset..segment.offset + segment.file_bytes).contains(&offset))?;
        Some(holder.address + (offset - holder.offset))
    }

    /// The page-aligned range of addresses that the segments cover.
    #[must_use]
    pub fn span(&self) -> (u64, u64) {
        let start = self.segments.first().map_or(0, |segment| segment.address);
        let end = self.segments.last().map_or(0, Segment::end);
        (start & !(PAGE_BYTES - 1), end.next_multiple_of(PAGE_BYTES))
    }
}
