//! The sides of an experiment in machines: a kernel, and its options.

use heddle_abi::boot::{KEY_ISOLATION, KEY_PCID, KEY_SLOTS, KEY_SPACE_LOCK};

use super::record::Scale;
use crate::guest::{Choices, Kernel, Mitigations};
use crate::machine::Clock;

/// Memory of the machines, for all sides alike.
pub const MEMORY_BYTES: u64 = 512 << 20;

/// A side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Its name in the results.
    pub name: &'static str,
    /// The kernel.
    pub kernel: Kernel,
    /// A key of the kernel's command line and its value.
    argument: Option<(&'static str, &'static str)>,
    /// Words added to each item, for a side that differs in what runs and not in the kernel.
    pub words: &'static str,
}

/// Heddle as it is.
pub const HEDDLE: Side = Side { name: "heddle", kernel: Kernel::Heddle, argument: None, words: "" };
/// Heddle with each process out of reach of all others.
pub const HEDDLE_PRIVATE: Side =
    Side { name: "heddle-private", argument: Some((KEY_ISOLATION, "private")), ..HEDDLE };
/// Heddle with no program protected from another, whoever their users are.
pub const HEDDLE_NONE: Side = Side { name: "heddle-none", argument: Some((KEY_ISOLATION, "none")), ..HEDDLE };
/// Heddle with programs of other credentials out of reach from the start.
pub const HEDDLE_USER: Side = Side { name: "heddle-user", argument: Some((KEY_ISOLATION, "user")), ..HEDDLE };
/// Heddle with a protection key for each of up to 14 programs.
pub const HEDDLE_KEYS: Side = Side { name: "heddle-keys", argument: Some((KEY_ISOLATION, "keys")), ..HEDDLE };
/// Heddle with programs at the kernel's privilege level, and jumps in place of most system calls.
pub const HEDDLE_DIRECT: Side =
    Side { name: "heddle-direct", argument: Some((KEY_ISOLATION, "direct")), ..HEDDLE };
/// Heddle with all programs in one slot, so that each switch changes the page table.
pub const HEDDLE_ONE_SLOT: Side =
    Side { name: "heddle-one-slot", argument: Some((KEY_SLOTS, "1")), ..HEDDLE };
/// Heddle as on a processor with PCID, but that loads of page tables flush: what it costs in instructions, and what
/// would be kept.
pub const HEDDLE_TAGS: Side = Side { name: "heddle-tags", argument: Some((KEY_PCID, "dry-run")), ..HEDDLE };
/// Heddle with one lock in place of each range lock.
pub const HEDDLE_ONE_LOCK: Side =
    Side { name: "heddle-one-lock", argument: Some((KEY_SPACE_LOCK, "one")), ..HEDDLE };
/// Debian's Linux, which in so little memory would allow fewer threads than the papers have.
pub const LINUX: Side = Side {
    name: "linux",
    kernel: Kernel::Linux,
    argument: Some(("sysctl.kernel.threads-max", "32000")),
    words: "",
};
/// Coroutines in place of threads, on Heddle.
pub const HEDDLE_COROUTINES: Side = HEDDLE.with("heddle-coroutines", "as=coroutine");
/// The same program on Linux.
pub const LINUX_COROUTINES: Side = LINUX.with("linux-coroutines", "as=coroutine");

impl Side {
    /// The same kernel under another name, with words added to each item.
    #[must_use]
    pub const fn with(self, name: &'static str, words: &'static str) -> Self {
        Self { name, words, ..self }
    }

    /// Whether both run in the same machine, and differ in words only.
    #[must_use]
    pub fn shares_machine(&self, other: &Self) -> bool {
        self.kernel == other.kernel && self.argument == other.argument
    }

    /// The words of an item on this side.
    #[must_use]
    pub fn item(&self, words: &str) -> String {
        format!("{words} {}", self.words).trim_end().to_owned()
    }

    /// The machine for this side.
    #[must_use]
    pub fn choices(&self, clock: Clock, processors: u32) -> Choices {
        Choices {
            processors,
            memory_bytes: MEMORY_BYTES,
            clock,
            // Both sides without, so that the comparison is fair on any processor.
            mitigations: Mitigations::Off,
            kernel_arguments: self.argument.map_or_else(String::new, |(key, value)| format!("{key}={value}")),
            ..Choices::new(self.kernel)
        }
    }
}

/// By what a machine with this clock measures.
#[must_use]
pub fn scale(clock: Clock) -> Scale {
    match clock {
        Clock::Host => Scale::Emulated,
        Clock::Instructions => Scale::Instructions,
    }
}
