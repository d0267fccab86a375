//! The end of a call that is in flight in the kernel: cancellation, and the moment when its memory is the program's
//! again.

use crate::protocol::{AtomicU8, Ordering};

const CANCELLED: u8 = 1;
const KILLED: u8 = 2;
const OVER: u8 = 4;
const BUSY: u8 = 8;

/// A call's fate. It is ended once, by its own coroutine; any thread may ask it to end.
#[derive(Debug)]
pub struct Fate(AtomicU8);

impl Fate {
    /// Of a call in flight.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Its coroutine begins to work: whoever cancels it from here on waits until [`Fate::pause`].
    pub fn work(&self) {
        self.0.fetch_or(BUSY, Ordering::Acquire);
    }

    /// Its coroutine stops working, for now or because it has ended.
    pub fn pause(&self) {
        self.0.fetch_and(!BUSY, Ordering::Release);
    }

    /// Whether its coroutine works, and may not have seen a cancellation. If not, all that it took it took before.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.0.load(Ordering::Acquire) & BUSY != 0
    }

    /// Ends its interruptible waits; the caller then wakes it.
    pub fn cancel(&self) {
        self.0.fetch_or(CANCELLED, Ordering::Release);
    }

    /// Ends its waits, uninterruptible ones excepted; the caller then wakes it.
    pub fn kill(&self) {
        self.0.fetch_or(CANCELLED | KILLED, Ordering::Release);
    }

    /// Whether it is to end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// Whether it is to end whatever it does.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.0.load(Ordering::Acquire) & KILLED != 0
    }

    /// Its result is in the ring, and it touches none of the program's memory from here on.
    pub fn end(&self) {
        self.0.fetch_or(OVER, Ordering::Release);
    }

    /// Whether it has ended: all that it did to memory is visible.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire) & OVER != 0
    }
}

impl Default for Fate {
    fn default() -> Self {
        Self::new()
    }
}
