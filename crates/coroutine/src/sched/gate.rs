//! The gate: a lock that its owner takes without a read-modify-write.
//!
//! A core's queue state is touched by its owner at every step and by a thief seldom, so the lock is biased. The
//! owner stores `busy`, passes a *light* barrier and looks at `thief`; a thief sets `thief`, passes a *heavy*
//! barrier and waits until `busy` is clear. Of the two at least one sees the other (Dekker), provided that the two
//! barriers order as two full fences would. Either both are ([`Stealing::Fenced`]), or the light one is a compiler
//! fence and the heavy one makes every core of the machine pass a fence ([`Stealing::Barrier`]: `membarrier` on
//! Linux).
//!
//! `busy` also tells a handler (interrupt, signal) that it interrupted the owner within the gate: then it must not
//! touch the queue, and posts to the inbox. A handler that finds the gate open passes through it as the owner,
//! which the interrupted code cannot notice, because the handler is done before it goes on.

use crate::sync::{AtomicU32, Ordering, compiler_fence, fence, maybe_const, spin_hint};

/// How often a thief looks at a closed gate before it gives up: an owner that was descheduled inside its gate must
/// not be waited for.
const THIEF_SPINS: u32 = if cfg!(heddle_loom) {
    2
} else if cfg!(miri) {
    20
} else {
    1000
};

/// How often an owner looks at its gate before it leaves the processor to the thief inside.
#[cfg(all(feature = "std", not(any(heddle_loom, heddle_shuttle, miri))))]
const OWNER_SPINS: u32 = 1000;

/// Waits a little; now and then away from the processor, where there are threads.
#[cfg(all(feature = "std", not(any(heddle_loom, heddle_shuttle, miri))))]
#[cold]
fn rest(spins: &mut u32) {
    *spins += 1;
    if (*spins).is_multiple_of(OWNER_SPINS) {
        std::thread::sleep(core::time::Duration::from_micros(20));
    } else {
        spin_hint();
    }
}

#[cfg(not(all(feature = "std", not(any(heddle_loom, heddle_shuttle, miri)))))]
#[inline(always)]
fn rest(_: &mut u32) {
    spin_hint();
}

/// Which barrier the owner passes on its way in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Stealing {
    /// None, because there are no thieves.
    Never = 0,
    /// A compiler fence: the thieves' barrier reaches every core.
    Barrier = 1,
    /// A full fence, as the thieves do.
    Fenced = 2,
}

/// The owner's half and the others' half of a core's lock.
#[repr(C)]
pub struct Gate {
    busy: AtomicU32,
    stealing: AtomicU32,
    thief: Thief,
}

/// The thief's half, on a cache line that the owner only reads.
#[repr(C, align(128))]
struct Thief(AtomicU32);

impl Gate {
    maybe_const! {
        /// An open gate of a core from which nobody steals.
        pub fn new() -> Gate {
            Gate { busy: AtomicU32::new(0), stealing: AtomicU32::new(0), thief: Thief(AtomicU32::new(0)) }
        }
    }

    /// Chooses the owner's barrier. Before the core runs.
    #[inline]
    pub fn set_stealing(&self, stealing: Stealing) {
        self.stealing.store(stealing as u32, Ordering::Relaxed);
    }

    /// Owner: enters if it is not inside already and no thief is. Never waits, so handlers may call it.
    #[inline(always)]
    pub(super) fn try_enter(&self) -> bool {
        if self.busy.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.busy.store(1, Ordering::Relaxed);
        let stealing = self.stealing.load(Ordering::Relaxed);
        // Also for handlers, which must find `busy` set before the queue is touched.
        compiler_fence();
        if stealing == Stealing::Never as u32 {
            return true;
        }
        if stealing == Stealing::Fenced as u32 {
            fence(Ordering::SeqCst);
        }
        // Acquire: what the last thief did under the gate is visible to what the owner does now.
        if self.thief.0.load(Ordering::Acquire) != 0 {
            // Release, for `Stealing::Barrier`: a thief that reads this store and not the last `leave` must see what
            // that published. The models don't notice, because there the light barrier is a fence.
            self.busy.store(0, Ordering::Release);
            return false;
        }
        true
    }

    /// Owner, not from a handler: enters, waiting for a thief to leave. Thieves stay for a bounded time, on a
    /// processor: one that a more urgent owner has preempted goes on when the owner rests.
    #[inline(always)]
    pub(super) fn enter(&self) {
        let mut spins = 0;
        while !self.try_enter() {
            rest(&mut spins);
        }
    }

    /// Owner: leaves.
    #[inline(always)]
    pub(super) fn leave(&self) {
        // Release: a thief that sees the gate open sees the queue as the owner left it.
        self.busy.store(0, Ordering::Release);
    }

    /// Owner: keeps thieves out while its process forks.
    #[cfg(all(feature = "std", feature = "scheduler", not(heddle_loom)))]
    pub(crate) fn hold(&self) {
        self.enter();
    }

    /// Owner: ends [`Gate::hold`]. In the child, who was about to enter is gone.
    #[cfg(all(feature = "std", feature = "scheduler", not(heddle_loom)))]
    pub(crate) fn release(&self, is_child: bool) {
        if is_child {
            self.thief.0.store(0, Ordering::Relaxed);
        }
        self.leave();
    }

    /// Thief: enters unless another thief is inside or the owner stays too long. `heavy` is the heavy barrier.
    #[inline]
    pub(super) fn thief_enter(&self, heavy: impl FnOnce()) -> bool {
        if self.thief.0.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        // With the exchange it also acquires what the last thief did, and whatever is stored below releases it.
        heavy();
        let mut spins = 0;
        while self.busy.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins > THIEF_SPINS {
                self.thief.0.store(0, Ordering::Relaxed);
                return false;
            }
            spin_hint();
        }
        true
    }

    /// Thief: leaves.
    #[inline]
    pub(super) fn thief_leave(&self) {
        self.thief.0.store(0, Ordering::Release);
    }
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}
