//! The parts of a program or library that the loader needs to know.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use heddle_erofs::write::Source;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};

/// Machines that guests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// 64-bit x86.
    X86_64,
    /// 64-bit RISC-V.
    Riscv64,
}

impl Architecture {
    /// The machine this program was built for.
    pub const HOST: Architecture =
        if cfg!(target_arch = "riscv64") { Architecture::Riscv64 } else { Architecture::X86_64 };

    /// Debian's name of it.
    #[must_use]
    pub fn debian(self) -> &'static str {
        match self {
            Architecture::X86_64 => "amd64",
            Architecture::Riscv64 => "riscv64",
        }
    }

    /// The name in paths of libraries.
    #[must_use]
    pub fn triplet(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64-linux-gnu",
            Architecture::Riscv64 => "riscv64-linux-gnu",
        }
    }

    fn machine(self) -> elf::Machine {
        match self {
            Architecture::X86_64 => elf::EM_X86_64,
            Architecture::Riscv64 => elf::EM_RISCV,
        }
    }
}

/// The dynamic side of an ELF file.
#[derive(Debug, Default)]
pub struct Dynamic {
    /// The program's loader, if it wants one.
    pub interpreter: Option<Vec<u8>>,
    /// The library's own name.
    pub soname: Option<Vec<u8>>,
    /// Names of needed libraries.
    pub needed: Vec<Vec<u8>>,
    /// Search path for all libraries below this one; void where there is a `runpath`.
    pub rpath: Option<Vec<u8>>,
    /// Search path for the libraries this one needs.
    pub runpath: Option<Vec<u8>>,
}

/// The defect of an ELF file.
#[derive(Debug)]
pub enum Fault {
    /// It isn't one, or a damaged one.
    NotElf,
    /// It is for another machine.
    Machine(String),
    /// It can't be read.
    Io(io::Error),
}

/// Reads the dynamic side of an ELF file.
pub fn dynamic(source: &Source, architecture: Architecture) -> Result<Dynamic, Fault> {
    let mut reader = Reader::open(source).map_err(Fault::Io)?;
    let mut identification = [0; 20];
    if reader.read_exact(&mut identification).is_err() || identification[..4] != elf::ELFMAG {
        return Err(Fault::NotElf);
    }
    let (class, encoding) = (elf::FileClass(identification[4]), elf::DataEncoding(identification[5]));
    let machine = elf::Machine(u16::from_le_bytes([identification[18], identification[19]]));
    if class != elf::ELFCLASS64 || encoding != elf::ELFDATA2LSB || machine != architecture.machine() {
        let class = if class == elf::ELFCLASS32 { "32-bit" } else { "64-bit" };
        return Err(Fault::Machine(format!("{class} {}", machine_name(machine))));
    }
    parse(&ReadCache::new(reader)).map_err(|_| Fault::NotElf)
}

fn machine_name(machine: elf::Machine) -> String {
    let name = match machine {
        elf::EM_386 => "i386",
        elf::EM_X86_64 => "x86-64",
        elf::EM_ARM => "ARM",
        elf::EM_AARCH64 => "AArch64",
        elf::EM_RISCV => "RISC-V",
        elf::EM_PPC64 => "PowerPC",
        elf::EM_S390 => "S/390",
        elf::EM_MIPS => "MIPS",
        elf::EM_LOONGARCH => "LoongArch",
        _ => return format!("machine {}", machine.0),
    };
    name.to_owned()
}

fn parse<'data, R: ReadRef<'data>>(data: R) -> object::Result<Dynamic> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    let mut dynamic = Dynamic::default();
    for segment in segments {
        if let Some(interpreter) = segment.interpreter(endian, data)? {
            dynamic.interpreter = Some(interpreter.to_vec());
        }
    }
    let mut entries = None;
    for segment in segments {
        entries = entries.or(segment.dynamic(endian, data)?);
    }
    let entries = entries.unwrap_or(&[]);
    let address = entries.iter().find(|entry| entry.d_tag(endian) == elf::DT_STRTAB);
    let Some(address) = address.map(|entry| entry.d_val(endian)) else {
        return Ok(dynamic);
    };
    // The dynamic section names its strings by address: the segment there tells where they are in the file.
    let start =
        segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).find_map(|segment| {
            let skipped = address.checked_sub(segment.p_vaddr(endian))?;
            (skipped < segment.p_filesz(endian)).then(|| segment.p_offset(endian).checked_add(skipped))?
        });
    let Some(start) = start else {
        return Ok(dynamic);
    };
    let end = data.len().unwrap_or(u64::MAX);
    let string = |entry: &elf::Dyn64<Endianness>| {
        let from = start.checked_add(entry.d_val(endian))?;
        data.read_bytes_at_until(from..end, 0).ok().map(<[u8]>::to_vec)
    };
    for entry in entries {
        match entry.d_tag(endian) {
            elf::DT_NULL => break,
            elf::DT_NEEDED => dynamic.needed.extend(string(entry)),
            elf::DT_SONAME => dynamic.soname = string(entry),
            elf::DT_RPATH => dynamic.rpath = string(entry),
            elf::DT_RUNPATH => dynamic.runpath = string(entry),
            _ => {}
        }
    }
    Ok(dynamic)
}

/// The bytes of a [`Source`], to read from.
#[derive(Debug)]
pub struct Reader {
    bytes: Bytes,
    start: u64,
    size: u64,
    position: u64,
}

#[derive(Debug)]
enum Bytes {
    Memory(Vec<u8>),
    File(Arc<File>),
}

impl Reader {
    /// Opens a source.
    pub fn open(source: &Source) -> io::Result<Self> {
        let (bytes, start) = match source {
            Source::Bytes(bytes) => (Bytes::Memory(bytes.clone()), 0),
            Source::Path { path, .. } => (Bytes::File(Arc::new(File::open(path)?)), 0),
            Source::Part { file, offset, .. } => (Bytes::File(file.clone()), *offset),
        };
        Ok(Reader { bytes, start, size: source.size(), position: 0 })
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.size.saturating_sub(self.position);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = match &self.bytes {
            Bytes::Memory(bytes) => {
                let start = usize::try_from(self.position).unwrap_or(usize::MAX).min(bytes.len());
                Read::read(&mut &bytes[start..], &mut buffer[..length])?
            }
            Bytes::File(file) => file.read_at(&mut buffer[..length], self.start + self.position)?,
        };
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Reader {
    fn seek(&mut self, target: SeekFrom) -> io::Result<u64> {
        let position = match target {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(change) => self.position.checked_add_signed(change),
            SeekFrom::End(change) => self.size.checked_add_signed(change),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
