//! Why a range was not locked: each way to ask has the reasons that it can have.

use core::error::Error;
use core::fmt;

use crate::epoch::OutOfMemory;

/// Why a range was not locked, or not looked at, by an operation that does not mind waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockError {
    /// The range holds no key, or reaches beyond what it is to be a part of.
    Empty,
    /// No memory for the request; nothing was changed.
    OutOfMemory,
}

/// Why a range was not locked at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TryLockError {
    /// The range holds no key, or reaches beyond what it is to be a part of.
    Empty,
    /// Someone holds, or waits for, a range that overlaps in a conflicting mode.
    Conflict,
    /// No memory for the request; nothing was changed.
    OutOfMemory,
}

/// Why a range was not locked in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutError {
    /// The range holds no key, or reaches beyond what it is to be a part of.
    Empty,
    /// The time was up before the range was free.
    TimedOut,
    /// No memory for the request; nothing was changed.
    OutOfMemory,
}

const EMPTY: &str = "the range is empty";
const OUT_OF_MEMORY: &str = "out of memory";

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => EMPTY,
            Self::OutOfMemory => OUT_OF_MEMORY,
        })
    }
}

impl fmt::Display for TryLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => EMPTY,
            Self::Conflict => "a conflicting range is held or waited for",
            Self::OutOfMemory => OUT_OF_MEMORY,
        })
    }
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => EMPTY,
            Self::TimedOut => "the time was up before the range was free",
            Self::OutOfMemory => OUT_OF_MEMORY,
        })
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(OUT_OF_MEMORY)
    }
}

impl Error for LockError {}
impl Error for TryLockError {}
impl Error for TimeoutError {}
impl Error for OutOfMemory {}

impl From<OutOfMemory> for LockError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<LockError> for TryLockError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Empty => Self::Empty,
            LockError::OutOfMemory => Self::OutOfMemory,
        }
    }
}

impl From<LockError> for TimeoutError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Empty => Self::Empty,
            LockError::OutOfMemory => Self::OutOfMemory,
        }
    }
}
