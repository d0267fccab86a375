//! The ownership of the result of a call in flight: it belongs to the future that waits for it, or, if that has been
//! dropped, to the thread that takes the result out of the ring.

use crate::protocol::{AtomicU32, Ordering};

/// The call is in flight and its future is there.
const FLYING: u32 = 0;
/// The result has come.
const DONE: u32 = 1;
/// The future has been dropped before the result came.
const LEFT: u32 = 2;
/// The call could not be started for want of room; its future tries again.
const REFUSED: u32 = 3;

/// One word that the two parties change.
#[derive(Debug)]
pub struct Phase(AtomicU32);

/// The state of a call, as its future finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing yet.
    Flying,
    /// The result; everything stored before [`Phase::complete`] is visible.
    Done,
    /// The call has not been started.
    Refused,
}

impl Phase {
    /// Of a call that is about to be started.
    #[must_use]
    pub fn new() -> Phase {
        Phase(AtomicU32::new(FLYING))
    }

    /// The result has come and has been stored. `true` if the future is there to take it, and is to be woken.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.0.swap(DONE, Ordering::AcqRel) != LEFT
    }

    /// The future is dropped. `true` if the result has not come: it is the completer's, and the call is to be
    /// cancelled.
    #[must_use]
    pub fn leave(&self) -> bool {
        self.0.compare_exchange(FLYING, LEFT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The call was not started.
    pub fn refuse(&self) {
        self.0.store(REFUSED, Ordering::Release);
    }

    /// The future starts the call again.
    pub fn again(&self) {
        self.0.store(FLYING, Ordering::Relaxed);
    }

    /// The present state.
    #[must_use]
    pub fn look(&self) -> Found {
        match self.0.load(Ordering::Acquire) {
            DONE => Found::Done,
            REFUSED => Found::Refused,
            _ => Found::Flying,
        }
    }
}

impl Default for Phase {
    fn default() -> Phase {
        Phase::new()
    }
}
