//! The stack that a program starts with: strings, auxiliary vector, `envp`, `argv`, `argc`.

use alloc::vec::Vec;
use heddle_abi::user_sched::{AT_HEDDLE_PROCESS, AT_HEDDLE_SYSTEM};
use linux_raw_sys::auxvec;

use crate::exec::Strings;
use crate::fallible::resize_reserved;

/// Values of the auxiliary vector, see getauxval(3). Pointers to strings on the stack are added by the plan.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of getauxval(3)")]
pub struct Auxiliary {
    pub headers: u64,
    pub header_bytes: u64,
    pub header_count: u64,
    pub base: u64,
    pub entry: u64,
    pub uid: u32,
    pub euid: u32,
    pub gid: u32,
    pub egid: u32,
    pub hardware_capabilities: u64,
    pub hardware_capabilities2: u64,
    pub secure: bool,
    /// Address of the vDSO, 0 if there is none.
    pub vdso: u64,
    /// Address of Heddle's system page, 0 if there is none.
    pub system_page: u64,
    /// Address of the pages that the process shares with the kernel, 0 if there are none.
    pub process_pages: u64,
    /// Smallest stack for a signal handler.
    pub minimum_signal_stack: u64,
}

/// The contents of the stack.
#[derive(Clone, Copy, Debug)]
pub struct StackPlan<'a> {
    /// The address after the stack's last byte, a multiple of 16.
    pub top: u64,
    /// The most bytes that arguments and environment may take with their pointers.
    pub limit_bytes: u64,
    /// The path the program was called by.
    pub path: &'a [u8],
    /// `argv`.
    pub arguments: &'a Strings,
    /// `envp`.
    pub environment: &'a Strings,
    /// Bits for the C library's stack protector and pointer guard.
    pub random: [u8; 16],
    /// The processor's name.
    pub platform: &'a [u8],
    /// The auxiliary vector.
    pub auxiliary: Auxiliary,
}

/// Why there is no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramStackError {
    /// `E2BIG`.
    TooBig,
    /// `ENOMEM`.
    OutOfMemory,
}

/// A program's first stack.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The stack pointer, a multiple of 16; where `bytes` go.
    pub pointer: u64,
    /// The contents from `pointer` to the top.
    pub bytes: Vec<u8>,
    /// Where the argument strings are, for `/proc/PID/cmdline`: start and end.
    pub arguments: (u64, u64),
    /// Where the environment strings are: start and end.
    pub environment: (u64, u64),
}

/// Bytes above the strings that stay zero.
const TOP_BYTES: u64 = 8;
/// Pairs in the auxiliary vector, the final one included.
const AUXILIARY_PAIRS: u64 = 23;
/// Bytes of the auxiliary vector.
pub const AUXILIARY_BYTES: usize = AUXILIARY_PAIRS as usize * 16;
const CLOCK_TICKS: u64 = 100;

impl StackPlan<'_> {
    /// Lays the stack out.
    ///
    /// # Errors
    /// See [`ProgramStackError`].
    pub fn build(&self) -> Result<Stack, ProgramStackError> {
        let (argument_bytes, environment_bytes) =
            (self.arguments.total_bytes() as u64, self.environment.total_bytes() as u64);
        let pointer_bytes = (self.arguments.len() as u64 + self.environment.len() as u64 + 3) * 8;
        if argument_bytes + environment_bytes + pointer_bytes + self.path.len() as u64 > self.limit_bytes {
            return Err(ProgramStackError::TooBig);
        }
        let path_at = self.top - TOP_BYTES - (self.path.len() as u64 + 1);
        let environment_at = path_at - environment_bytes;
        let arguments_at = environment_at - argument_bytes;
        let platform_at = arguments_at - (self.platform.len() as u64 + 1);
        let random_at = platform_at - self.random.len() as u64;
        let pointer = (random_at - AUXILIARY_PAIRS * 16 - pointer_bytes) & !15;

        let length = (self.top - pointer) as usize;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| ProgramStackError::OutOfMemory)?;
        resize_reserved(&mut bytes, length, 0);
        let mut writer = StackWriter { bytes: &mut bytes, base: pointer };
        writer.put(path_at, self.path);
        writer.put(platform_at, self.platform);
        writer.put(random_at, &self.random);

        let mut at = writer.word(pointer, self.arguments.len() as u64);
        for (list, mut string_at) in [(self.arguments, arguments_at), (self.environment, environment_at)] {
            for string in list.iter() {
                writer.put(string_at, string);
                at = writer.word(at, string_at);
                string_at += string.len() as u64;
            }
            at = writer.word(at, 0);
        }
        for (kind, value) in self.vector(path_at, platform_at, random_at) {
            at = writer.word(at, u64::from(kind));
            at = writer.word(at, value);
        }
        Ok(Stack {
            pointer,
            bytes,
            arguments: (arguments_at, environment_at),
            environment: (environment_at, path_at),
        })
    }

    fn vector(&self, path: u64, platform: u64, random: u64) -> [(u32, u64); AUXILIARY_PAIRS as usize] {
        let a = &self.auxiliary;
        // A pair that doesn't apply is skipped by its reader.
        let unless_zero = |kind, value| if value == 0 { (auxvec::AT_IGNORE, 0) } else { (kind, value) };
        [
            unless_zero(auxvec::AT_SYSINFO_EHDR, a.vdso),
            unless_zero(AT_HEDDLE_SYSTEM, a.system_page),
            unless_zero(AT_HEDDLE_PROCESS, a.process_pages),
            (auxvec::AT_HWCAP, a.hardware_capabilities),
            (auxvec::AT_PAGESZ, crate::exec::PAGE_BYTES),
            (auxvec::AT_CLKTCK, CLOCK_TICKS),
            (auxvec::AT_PHDR, a.headers),
            (auxvec::AT_PHENT, a.header_bytes),
            (auxvec::AT_PHNUM, a.header_count),
            (auxvec::AT_BASE, a.base),
            (auxvec::AT_FLAGS, 0),
            (auxvec::AT_ENTRY, a.entry),
            (auxvec::AT_UID, u64::from(a.uid)),
            (auxvec::AT_EUID, u64::from(a.euid)),
            (auxvec::AT_GID, u64::from(a.gid)),
            (auxvec::AT_EGID, u64::from(a.egid)),
            (auxvec::AT_SECURE, u64::from(a.secure)),
            (auxvec::AT_RANDOM, random),
            (auxvec::AT_HWCAP2, a.hardware_capabilities2),
            (auxvec::AT_EXECFN, path),
            (auxvec::AT_PLATFORM, platform),
            (auxvec::AT_MINSIGSTKSZ, a.minimum_signal_stack),
            (auxvec::AT_NULL, 0),
        ]
    }
}

struct StackWriter<'a> {
    bytes: &'a mut [u8],
    base: u64,
}

impl StackWriter<'_> {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        let start = (address - self.base) as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes a word and returns the address after it.
    fn word(&mut self, address: u64, value: u64) -> u64 {
        self.put(address, &value.to_le_bytes());
        address + 8
    }
}
