//! The changes of a child that its parent learns of.

use crate::signal::Signal;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with a code.
    Exited(u8),
    /// A signal ended it.
    Signaled {
        /// The signal.
        signal: Signal,
        /// A core dump was written.
        core: bool,
    },
}

impl ExitStatus {
    /// The mark of a core dump in a status word.
    const DUMPED: i32 = 0x80;

    /// The status word of wait(2).
    #[must_use]
    pub const fn to_wait_status(self) -> i32 {
        match self {
            Self::Exited(code) => (code as i32) << 8,
            Self::Signaled { signal, core } => signal.number() | if core { Self::DUMPED } else { 0 },
        }
    }

    /// `si_code` and `si_status` of waitid(2).
    #[must_use]
    pub const fn to_child_code(self) -> (i32, i32) {
        match self {
            Self::Exited(code) => (linux_raw_sys::general::CLD_EXITED as i32, code as i32),
            Self::Signaled { signal, core: true } => {
                (linux_raw_sys::general::CLD_DUMPED as i32, signal.number())
            }
            Self::Signaled { signal, core: false } => {
                (linux_raw_sys::general::CLD_KILLED as i32, signal.number())
            }
        }
    }
}

/// The change that the parent has not been told (by `wait4`) yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildChange {
    /// Nothing.
    None,
    /// Stopped by this signal.
    Stopped(Signal),
    /// Gone on.
    Continued,
}
