//! The state of a thread.

/// The state of a thread, as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Running or ready.
    Running,
    /// Waiting.
    Sleeping,
    /// Waiting for the host, or for something else, until that comes or the thread is killed.
    Uninterruptible,
    /// Stopped by a signal.
    Stopped,
    /// Stopped for its tracer.
    Traced,
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
            Self::Uninterruptible => 'D',
            Self::Stopped => 'T',
            Self::Traced => 't',
            Self::Zombie => 'Z',
        }
    }
}
