//! The interface of every competitor to the workloads and the tests.

/// A range lock over `u64` keys.
pub trait Side: Send + Sync + Sized + 'static {
    /// A held range, without a lifetime so that workloads can keep any number of them.
    type Held: Send;

    /// The name in tables.
    const NAME: &'static str;
    /// Whether shared requests really share; otherwise they are served as exclusive ones.
    const SHARES: bool;

    /// A lock for keys below `space`.
    fn new(space: u64) -> Self;

    /// A lock for so many pages of a storage engine's area.
    fn new_area(pages: u64) -> Self {
        Self::new(pages)
    }

    /// Pages to which places in such an area are rounded, as the side's own engine does it.
    fn area_step() -> u64 {
        1
    }

    /// The tuning, as the paper has it, in words.
    fn parameters(&self) -> String;

    /// Locks `start..end` exclusively if nothing overlaps.
    fn try_lock(&self, start: u64, end: u64) -> Option<Self::Held>;

    /// Locks `start..end` exclusively, waiting the way the competitor waits.
    fn lock(&self, start: u64, end: u64) -> Self::Held;

    /// Locks `start..end` shared, waiting.
    fn lock_shared(&self, start: u64, end: u64) -> Self::Held {
        self.lock(start, end)
    }

    /// Unlocks.
    fn unlock(&self, held: Self::Held);
}

/// Waits a little between two looks: spins first, then lets other threads run, since the holder may be one of them.
pub struct Patience(u32);

impl Patience {
    /// Spins before the processor is given away.
    pub const SPINS: u32 = 64;

    /// Fresh patience.
    pub fn new() -> Self {
        Self(0)
    }

    /// One wait.
    pub fn wait(&mut self) {
        if self.0 < Self::SPINS {
            self.0 += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}
