//! Figures of a core that an executor shows, read-only.

use crate::sched::CoreState;

/// The counters of one core. Anybody may read them; they are hints, as the core goes on meanwhile.
#[derive(Clone, Copy)]
pub struct Statistics<'a>(pub(crate) &'a CoreState);

impl Statistics<'_> {
    /// The levels that have a ready coroutine here: bit `n` for level `n`.
    #[inline(always)]
    pub fn ready_levels(&self) -> u64 {
        self.0.ready().bitmap()
    }

    /// Whether a coroutine is ready here or a request waits.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.0.has_work()
    }

    /// How many coroutines were picked so far.
    pub fn picks(&self) -> u64 {
        self.0.ready().picks()
    }

    /// How many coroutines of `level` were picked so far.
    pub fn picks_of(&self, level: u8) -> u64 {
        self.0.ready().picks_of(level)
    }

    /// For how many picks of other levels `level` has now been waiting; 0 if it is empty.
    pub fn waiting(&self, level: u8) -> u32 {
        self.0.ready().waiting(level)
    }

    /// The longest that `level` ever waited while it was not empty, in picks of other levels.
    pub fn longest_wait(&self, level: u8) -> u32 {
        self.0.ready().longest_wait(level)
    }

    /// How often the core looked for a coroutine and none was ready.
    pub fn idles(&self) -> u64 {
        self.0.idles()
    }

    /// How many wakes made a waiting coroutine ready here.
    pub fn wakes(&self) -> u64 {
        self.0.wakes()
    }

    /// How many requests came from other cores, threads and handlers.
    pub fn posts(&self) -> u64 {
        self.0.posts()
    }

    /// How many coroutines this core took from others.
    pub fn steals(&self) -> u32 {
        self.0.steals()
    }
}

impl core::fmt::Debug for Statistics<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Statistics")
            .field("ready_levels", &self.ready_levels())
            .field("picks", &self.picks())
            .field("idles", &self.idles())
            .field("wakes", &self.wakes())
            .field("posts", &self.posts())
            .field("steals", &self.steals())
            .finish()
    }
}
