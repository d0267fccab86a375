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
        /// Whether Linux would count it as one that leaves a core file.
        core: bool,
    },
}

impl ExitStatus {
    /// The status word of wait(2). No core file is ever written, so its bit stays clear.
    #[must_use]
    pub const fn to_wait_status(self) -> i32 {
        match self {
            Self::Exited(code) => (code as i32) << 8,
            Self::Signaled { signal, .. } => signal.number(),
        }
    }
}

impl ExitStatus {
    /// `si_code` and `si_status` of waitid(2).
    #[must_use]
    pub const fn to_child_code(self) -> (i32, i32) {
        match self {
            Self::Exited(code) => (linux_raw_sys::general::CLD_EXITED as i32, code as i32),
            Self::Signaled { signal, .. } => (linux_raw_sys::general::CLD_KILLED as i32, signal.number()),
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
