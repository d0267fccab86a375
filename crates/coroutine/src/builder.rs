//! How a coroutine is to be spawned.

use crate::sched::Rank;
use core::fmt;

/// The level of coroutines whose spawner names none: the middle.
pub const DEFAULT_PRIORITY: u8 = 32;

/// A description of a coroutine to be spawned.
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    pub(crate) rank: Rank,
    pub(crate) kind: u32,
    pub(crate) cores: u64,
    pub(crate) name: Option<&'static str>,
}

impl Builder {
    /// Level [`DEFAULT_PRIORITY`], any core, kind 0, no name.
    pub const fn new() -> Builder {
        Builder { rank: Rank::new(DEFAULT_PRIORITY, 0), kind: 0, cores: u64::MAX, name: None }
    }

    /// Its level: 0 the most urgent, 63 the least, more is taken as 63.
    pub const fn priority(mut self, level: u8) -> Builder {
        self.rank = Rank::new(level, self.rank.order());
        self
    }

    /// Its place in the order within its level: 0, the default, the most urgent, 7 the least, more is taken as 7.
    pub const fn order(mut self, order: u8) -> Builder {
        self.rank = Rank::new(self.rank.level(), order);
        self
    }

    /// A number for the spawner's own use; other than 0 it costs 24 bytes, with or without a name.
    pub const fn kind(mut self, kind: u32) -> Builder {
        self.kind = kind;
        self
    }

    /// The cores it may run on: bit `n` is core `n` of the machine, of which there are at most
    /// [`MACHINE_CORES`](crate::MACHINE_CORES). The cores from 31 on are not told apart: whoever may run on one of them
    /// may run on all. An executor of one thread ignores it.
    pub const fn cores(mut self, mask: u64) -> Builder {
        self.cores = mask;
        self
    }

    /// A name for statistics and traces. It costs 24 bytes, with or without a kind.
    pub const fn name(mut self, name: &'static str) -> Builder {
        self.name = Some(name);
        self
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

/// Why a coroutine could not be spawned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpawnError {
    /// There is no memory for it.
    NoMemory,
    /// As many coroutines, or executors, as there can be are alive: see [`MAX_COROUTINES`](crate::MAX_COROUTINES) and
    /// [`MAX_CORES`](crate::MAX_CORES).
    TooMany,
    /// No started core is in its mask.
    NoCore,
    /// The executor is ending, or the caller is not on one.
    NoExecutor,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpawnError::NoMemory => "no memory for another coroutine",
            SpawnError::TooMany => "as many coroutines or executors are alive as a process can have",
            SpawnError::NoCore => "no started core may run the coroutine",
            SpawnError::NoExecutor => "no executor takes the coroutine",
        })
    }
}

impl core::error::Error for SpawnError {}

/// Why an executor could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// There is no memory for it.
    NoMemory,
    /// All executors of the process together have [`MAX_CORES`](crate::MAX_CORES) threads.
    TooManyCores,
    /// More threads were asked for than an executor can have, which is [`MACHINE_CORES`](crate::MACHINE_CORES), one in
    /// reserve included.
    TooManyThreads,
    /// The system gives no thread.
    NoThread,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StartError::NoMemory => "no memory for another executor",
            StartError::TooManyCores => {
                "the process has as many threads in executors as it can have (MAX_CORES)"
            }
            StartError::TooManyThreads => "an executor cannot have so many threads (MACHINE_CORES)",
            StartError::NoThread => "the system gives no thread for an executor",
        })
    }
}

impl core::error::Error for StartError {}

impl From<StartError> for SpawnError {
    fn from(error: StartError) -> SpawnError {
        match error {
            StartError::TooManyCores | StartError::TooManyThreads => SpawnError::TooMany,
            StartError::NoMemory | StartError::NoThread => SpawnError::NoMemory,
        }
    }
}
