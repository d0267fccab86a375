//! The Heddle host tool as a library: `run`, `test` and `bench` are thin users of the same parts.
//!
//! [`image`] turns a request into a cached root image; [`guest`] says what kernel boots and with which command
//! line; [`network`] says what it is connected to; [`machine`] is QEMU with its sockets; [`session`] moves the
//! program's streams, terminal and signals between the host and the machine until the program ends; [`crash`] explains
//! a machine that ended otherwise.

/// Writes a line about this tool's own work to standard error. A standard error that cannot be written to (full,
/// closed) costs the line and nothing else, where `eprintln!` would panic.
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "heddle: {}", format_args!($($argument)*));
    }};
}

/// Writes a line to standard output; an error ends the calling function, which a panic would not explain.
#[macro_export]
macro_rules! out {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let written = writeln!(std::io::stdout().lock(), $($argument)*);
        written.map_err(|error| anyhow::anyhow!("standard output: {error}"))?;
    }};
}

pub mod bench;
pub mod bundled;
pub mod cache;
pub mod commands;
pub mod crash;
pub mod exchange;
pub mod guest;
pub mod image;
pub mod log;
pub mod machine;
pub mod machines;
pub mod network;
pub mod oci;
pub mod paths;
pub mod session;
pub mod signals;
pub mod sink;
pub mod strace;
pub mod terminal;
pub mod testing;
pub mod tsc;
pub mod user;

/// Exit status when the tool itself failed.
pub const STATUS_TOOL_FAILED: u8 = 125;
/// Exit status when the program was found but could not be executed.
pub const STATUS_NOT_EXECUTABLE: u8 = 126;
/// Exit status when the program was not found.
pub const STATUS_NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended the program, or this tool, to form the exit status.
pub const STATUS_SIGNAL_BASE: u8 = 128;
/// Exit status after a panic or crash of the guest's kernel.
pub const STATUS_KERNEL_PANIC: u8 = 255;
