//! Who deals with the result of a call under way: the future that waits for it, or, if that has been dropped, whoever
//! takes the result out of the ring.

#[cfg(not(heddle_loom))]
use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(heddle_loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

/// The call is under way and its future is there.
const FLYING: u32 = 0;
/// The result has come.
const DONE: u32 = 1;
/// The future has been dropped before the result came.
const LEFT: u32 = 2;
/// The call could not be started for want of room; its future tries again.
const REFUSED: u32 = 3;

/// One word that the two parties change.
#[derive(Debug)]
pub(crate) struct Phase(AtomicU32);

/// What the future finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Nothing yet.
    Flying,
    /// The result; everything stored before [`Phase::complete`] is visible.
    Done,
    /// The call has not been started.
    Refused,
}

impl Phase {
    pub fn new() -> Phase {
        Phase(AtomicU32::new(FLYING))
    }

    /// The result has come and has been stored. `true` if the future is there to take it, and is to be woken.
    pub fn complete(&self) -> bool {
        self.0.swap(DONE, Ordering::AcqRel) != LEFT
    }

    /// The future is dropped. `true` if the result has not come: it is the completer's, and the call is to be
    /// cancelled.
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

    /// What has happened.
    pub fn look(&self) -> Found {
        match self.0.load(Ordering::Acquire) {
            DONE => Found::Done,
            REFUSED => Found::Refused,
            _ => Found::Flying,
        }
    }
}

#[cfg(all(test, heddle_loom))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    struct Call {
        phase: Phase,
        result: UnsafeCell<u64>,
        taken: AtomicUsize,
    }

    // In the model the cell is guarded by the phase, which is what is checked.
    #[allow(unsafe_code)]
    // SAFETY: loom reports any access to the cell that is not ordered by the phase.
    unsafe impl Sync for Call {}

    /// A result is taken exactly once, by a drop of the future or by the completer, and is seen whole.
    #[test]
    fn completion_against_drop() {
        loom::model(|| {
            let call = Arc::new(Call {
                phase: Phase::new(),
                result: UnsafeCell::new(0),
                taken: AtomicUsize::new(0),
            });
            let take = |call: &Call| {
                #[allow(unsafe_code)]
                // SAFETY: as above.
                call.result.with(|result| assert_eq!(unsafe { *result }, 7));
                call.taken.fetch_add(1, Ordering::Relaxed);
            };
            let completer = thread::spawn({
                let call = call.clone();
                move || {
                    #[allow(unsafe_code)]
                    // SAFETY: as above.
                    call.result.with_mut(|result| unsafe { *result = 7 });
                    if !call.phase.complete() {
                        take(&call);
                    }
                }
            });
            if !call.phase.leave() {
                assert_eq!(call.phase.look(), Found::Done);
                take(&call);
            }
            completer.join().unwrap();
            assert_eq!(call.taken.load(Ordering::Relaxed), 1);
        });
    }
}
