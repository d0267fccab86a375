//! How a process ended and what a thread is doing.

use heddle_kernel_core::signal::Signal;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with a code.
    Exited(u8),
    /// A signal ended it.
    Signaled {
        /// Which.
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

    /// What a shell shows: the code, or 128 + the signal.
    #[must_use]
    pub const fn to_shell_status(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled { signal, .. } => 128 + signal.number() as u8,
        }
    }
}

/// What a thread is doing, as `/proc/PID/stat` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Running or ready.
    Running,
    /// Waiting.
    Sleeping,
    /// Stopped by a signal.
    Stopped,
    /// Ended, not yet waited for.
    Zombie,
}

impl RunState {
    /// The letter of proc(5).
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Running => 'R',
            Self::Sleeping => 'S',
            Self::Stopped => 'T',
            Self::Zombie => 'Z',
        }
    }
}
