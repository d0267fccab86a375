//! The kernels that a program can run on, and what each wants from the machine.

pub(crate) mod cpio;
pub mod heddle;
pub mod linux;
mod linux_archive;
pub mod share;

use std::path::PathBuf;

use anyhow::Result;
use heddle_image::Image;

use crate::machine::accelerator::{self, Accelerator};
use crate::machine::{Clock, Configuration};
use crate::network::Network;

/// Bytes in a mebibyte, the unit of `--memory`.
pub const MIB: u64 = 1 << 20;
/// The default of `--memory`.
pub const MEMORY_DEFAULT_MIB: u64 = 256;

/// The default of `--cpu`: all that the accelerator has.
pub const CPU_DEFAULT: &str = "max";

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

/// Which programs on Heddle's kernel may reach one another's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Isolation {
    /// `none` while there is one user, `user` from the first program of a second one on.
    #[default]
    Default,
    /// All of them: only the kernel is protected, and the machine is the boundary.
    None,
    /// Those with the same credentials.
    User,
    /// None of them.
    Private,
    /// Those with the same credentials, on purpose: each of up to 14 programs has a protection key of its processor, so
    /// that a stray pointer into another program faults. On a processor without keys as `private`.
    Keys,
    /// All of them, and the kernel's: programs run at its privilege level, and most system calls become jumps.
    Direct,
}

impl Isolation {
    /// The value of the kernel's option; `None` if the kernel decides.
    #[must_use]
    pub const fn value(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::None => Some("none"),
            Self::User => Some("user"),
            Self::Private => Some("private"),
            Self::Keys => Some("keys"),
            Self::Direct => Some("direct"),
        }
    }
}

/// Whether the guest's kernel takes measures against processors that run ahead of their checks (Spectre and the like).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mitigations {
    /// Those that the processor asks for and offers.
    Auto,
    /// None.
    Off,
}

impl Mitigations {
    /// The default of a kernel: Linux is here to compare with, and its measures are not.
    #[must_use]
    pub const fn of(kernel: Kernel) -> Self {
        match kernel {
            Kernel::Heddle => Self::Auto,
            Kernel::Linux => Self::Off,
        }
    }

    /// The kernels' option, with a space before it.
    #[must_use]
    pub const fn kernel_argument(self) -> &'static str {
        match self {
            Self::Auto => "",
            Self::Off => " mitigations=off",
        }
    }
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
    /// Measures against processors' faults.
    pub mitigations: Mitigations,
    /// Whether each system call is logged.
    pub strace: bool,
    /// Whether the user asked to see the log, and so wants all of it.
    pub verbose_log: bool,
    /// Whether it is the checking build of Heddle's kernel.
    pub checking: bool,
    /// Wait for a debugger on this port.
    pub debugger_port: Option<u16>,
    /// The guest's source of time.
    pub clock: Clock,
    /// The start of the emulator's random numbers, where instructions are counted.
    pub seed: usize,
    /// How instructions are executed.
    pub accelerator: accelerator::Choice,
    /// The processor's model and features.
    pub cpu: String,
    /// Folders of this host that appear in the guest.
    pub shares: Vec<share::Share>,
    /// The network.
    pub network: Network,
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
            isolation: Isolation::Default,
            mitigations: Mitigations::of(kernel),
            strace: false,
            verbose_log: false,
            checking: false,
            debugger_port: None,
            clock: Clock::Host,
            seed: 1,
            accelerator: accelerator::choice(),
            cpu: CPU_DEFAULT.to_owned(),
            shares: Vec::new(),
            network: Network::default(),
            kernel_arguments: String::new(),
        }
    }

    /// The accelerator for this machine.
    ///
    /// # Errors
    /// If KVM was asked for and is not to be had.
    pub fn accelerator(&self) -> Result<Accelerator> {
        match self.clock {
            Clock::Host => Accelerator::decide(self.accelerator),
            Clock::Instructions => Ok(Accelerator::tcg("only the emulator counts instructions")),
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
