//! How a program's executor is made.

use crate::{heddle, place};
use heddle_coroutine::{
    Builder as SpawnBuilder, DEFAULT_PRIORITY, Executor, LocalExecutor, MACHINE_CORES, SpawnError,
    current_id, set_priority,
};
use std::thread;

/// Settings of a program's executor.
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    threads: usize,
    priority: u8,
    strict: bool,
}

impl Builder {
    /// As many threads as there are processors, but at most 63, and `main` at the default priority.
    #[must_use]
    pub fn new() -> Builder {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MACHINE_CORES - 1);
        Builder { threads, priority: DEFAULT_PRIORITY, strict: false }
    }

    /// How many threads run coroutines: at most 64, or 63 with the one below. If there are several, or the order is
    /// [strict](Builder::strict), Heddle has one more in reserve, for what becomes ready while all of them run
    /// something less urgent, and for when all are blocked.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Builder {
        self.threads = threads.max(1);
        self
    }

    /// The level of the first coroutine, 0 to 63.
    #[must_use]
    pub fn priority(mut self, level: u8) -> Builder {
        self.priority = level;
        self
    }

    /// Whether each executor yields, before each turn, to anything more urgent elsewhere in the machine; otherwise
    /// the kernel preempts it at its clock ticks. Only Heddle has one order of priorities.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Builder {
        self.strict = strict;
        self
    }

    /// Runs `main` as the first coroutine, on the calling thread, to its end. Coroutines that it has spawned are
    /// dropped then.
    ///
    /// # Panics
    /// If there is no memory or no thread for the executor, or it was to have more than it can.
    pub fn run<F: Future>(self, main: F) -> F::Output {
        // Before the executor's threads look for a host.
        let is_heddle = heddle::is_here();
        if is_heddle {
            place::set_strict(self.strict);
        }
        let _leave = Leave;
        if self.threads == 1 && !(self.strict && is_heddle) {
            // Without other threads there is nothing to share, and turns are cheaper.
            return LocalExecutor::new().block_on_with(SpawnBuilder::new().priority(self.priority), main);
        }
        Executor::with_reserve(self.threads).block_on(async move {
            if let (Some(id), true) = (current_id(), self.priority != DEFAULT_PRIORITY) {
                set_priority(id, self.priority);
            }
            main.await
        })
    }
}

/// The calling thread stops being an executor, also when a panic comes out of it.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        place::leave();
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

/// The papers' one entry: makes `main` a coroutine of level `priority`. Within a coroutine it is spawned beside it, and
/// the call returns at once. Elsewhere it is the first of an executor on the calling thread: the call returns when
/// `main` and everything spawned by it have ended.
///
/// # Errors
/// There is no memory.
pub fn coroutine_run(
    main: impl Future<Output = ()> + Send + 'static,
    priority: u8,
) -> Result<(), SpawnError> {
    heddle::is_here();
    let _leave = current_id().is_none().then_some(Leave);
    heddle_coroutine::coroutine_run(main, priority)
}
