//! One participant per thread.

use core::cell::Cell;
use std::thread_local;

use super::{Context, Domain, Epoch, OutOfMemory, Participant};

/// A thread's claim to a participant; given back when the thread ends. The building block of thread-local epochs.
#[derive(Debug)]
pub struct ThreadSlot {
    domain: &'static Domain,
    participant: &'static Participant,
}

impl ThreadSlot {
    /// Claims a participant of `domain`.
    pub fn claim(domain: &'static Domain) -> Result<Self, OutOfMemory> {
        Ok(Self { domain, participant: domain.claim()? })
    }

    /// The claimed participant.
    pub fn participant(&self) -> &'static Participant {
        self.participant
    }
}

impl Drop for ThreadSlot {
    fn drop(&mut self) {
        // SAFETY: this value holds the claim, and it is dropped outside of every closure of `Epoch::with`.
        unsafe { self.domain.release(self.participant) }
    }
}

/// The participants of threads, claimed at first use and given back at the thread's end.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadEpoch;

static DOMAIN: Domain = Domain::new();

impl ThreadEpoch {
    /// The domain of all threads of the program.
    pub fn domain() -> &'static Domain {
        &DOMAIN
    }
}

thread_local! {
    /// The variable that every operation reads: no destructor, so no check whether one is registered.
    static CURRENT: Cell<Option<&'static Participant>> = const { Cell::new(None) };
    /// Gives the claim back at the thread's end.
    static SLOT: Cell<Option<Leave>> = const { Cell::new(None) };
}

struct Leave(#[allow(dead_code)] ThreadSlot);

impl Drop for Leave {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.set(None));
    }
}

#[inline]
fn current() -> Option<&'static Participant> {
    CURRENT.try_with(Cell::get).ok().flatten()
}

#[cold]
fn register() -> Result<(), OutOfMemory> {
    let slot = ThreadSlot::claim(ThreadEpoch::domain())?;
    let participant = slot.participant();
    // A thread whose locals are being torn down keeps no claim: the slot drops here, and `current` stays empty.
    if SLOT.try_with(|place| place.set(Some(Leave(slot)))).is_ok() {
        let _ = CURRENT.try_with(|current| current.set(Some(participant)));
    }
    Ok(())
}

// SAFETY: a thread's participant is claimed by that thread alone until its end, and all belong to `DOMAIN`.
unsafe impl Epoch for ThreadEpoch {
    #[inline]
    fn with<R>(f: impl FnOnce(Context) -> R) -> Result<R, OutOfMemory> {
        if current().is_none() {
            register()?;
        }
        Ok(Self::with_any(f))
    }

    #[inline]
    fn at_hand() -> Option<Context> {
        // SAFETY: the running thread's own participant.
        current().map(|participant| unsafe { Context::new(Self::domain(), participant) })
    }

    #[inline]
    fn with_any<R>(f: impl FnOnce(Context) -> R) -> R {
        match current() {
            // SAFETY: the running thread's own participant.
            Some(participant) => f(unsafe { Context::new(Self::domain(), participant) }),
            None => Self::domain().with_idle(f),
        }
    }
}
