//! The kernels that a program can run on, and what each wants from the machine.

pub(crate) mod cpio;
pub mod heddle;
pub mod linux;
mod linux_archive;
pub mod share;

use std::path::PathBuf;

use anyhow::Result;
use heddle_image::Image;

use crate::machine::Configuration;

/// Bytes in a mebibyte, the unit of `--memory`.
pub const MIB: u64 = 1 << 20;
/// The default of `--memory`.
pub const MEMORY_DEFAULT_MIB: u64 = 256;

/// A kernel to boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kernel {
    /// Heddle's own.
    Heddle,
    /// Debian's Linux.
    Linux,
}

impl Kernel {
    /// The name as the user writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Heddle => "heddle",
            Self::Linux => "linux",
        }
    }
}

/// Whether programs on Heddle's kernel share one address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Isolation {
    /// They do; the machine is the boundary.
    #[default]
    None,
    /// Each process has its own page table.
    Private,
}

/// The user's choices about the machine and its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices {
    /// The kernel.
    pub kernel: Kernel,
    /// How many processors.
    pub processors: u32,
    /// Memory for the kernel and its programs, the root image not counted.
    pub memory_bytes: u64,
    /// Whether each process of Heddle has an address space of its own.
    pub isolation: Isolation,
    /// Whether each system call is logged.
    pub strace: bool,
    /// Whether the user asked to see the log, and so wants all of it.
    pub verbose_log: bool,
    /// Whether it is the checking build of Heddle's kernel.
    pub checking: bool,
    /// Wait for a debugger on this port.
    pub debugger_port: Option<u16>,
    /// The guest's source of time.
    pub clock: crate::machine::Clock,
    /// Folders of this host that appear in the guest.
    pub shares: Vec<share::Share>,
    /// More for the kernel's command line.
    pub kernel_arguments: String,
}

impl Choices {
    /// The defaults.
    #[must_use]
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            processors: 1,
            memory_bytes: MEMORY_DEFAULT_MIB * MIB,
            isolation: Isolation::None,
            strace: false,
            verbose_log: false,
            checking: false,
            debugger_port: None,
            clock: crate::machine::Clock::Host,
            shares: Vec::new(),
            kernel_arguments: String::new(),
        }
    }
}

/// The machine that runs `image` as chosen.
///
/// # Errors
/// If the kernel is missing and cannot be fetched or built, or the choices contradict each other.
pub fn configure(choices: &Choices, image: &Image) -> Result<Configuration> {
    match choices.kernel {
        Kernel::Heddle => heddle::configure(choices, image),
        Kernel::Linux => linux::configure(choices, image),
    }
}

/// The kernel file with the symbols to explain a panic, where there is one.
///
/// # Errors
/// If this tool is not inside its repository.
pub fn symbols(kernel: Kernel, checking: bool) -> Result<Option<PathBuf>> {
    match kernel {
        Kernel::Heddle => heddle::kernel(checking).map(Some),
        Kernel::Linux => Ok(None),
    }
}
