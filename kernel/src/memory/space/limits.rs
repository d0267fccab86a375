//! How large a space may become: `RLIMIT_AS`, `RLIMIT_DATA`, `RLIMIT_STACK`, and what may be promised.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use heddle_kernel_core::mapping::Totals;

use crate::error::Errno;
use crate::memory::overcommit;
use crate::memory::space::layout::STACK_MAX_BYTES;
use crate::memory::space::{Space, SpaceState};

/// Whether new mappings count as locked: `MCL_FUTURE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FutureLocks {
    /// They don't.
    Off,
    /// They do, and their pages are brought in.
    Populated,
    /// They do.
    OnFault,
}

/// The limits of the process, in bytes.
pub(super) struct SpaceLimits {
    all: AtomicUsize,
    data: AtomicUsize,
    stack: AtomicUsize,
    future_locks: AtomicU8,
    /// The program wants no large pages: `PR_SET_THP_DISABLE`.
    pub(super) large_pages_are_off: AtomicBool,
}

impl SpaceLimits {
    /// No limits but that of a stack.
    pub(super) const fn new(stack: usize) -> Self {
        Self {
            all: AtomicUsize::new(usize::MAX),
            data: AtomicUsize::new(usize::MAX),
            stack: AtomicUsize::new(stack),
            future_locks: AtomicU8::new(FutureLocks::Off as u8),
            large_pages_are_off: AtomicBool::new(false),
        }
    }

    /// The same for a child, which locks nothing.
    pub(super) fn for_child(&self) -> Self {
        let copy = |limit: &AtomicUsize| AtomicUsize::new(limit.load(Ordering::Relaxed));
        let large_pages_are_off = AtomicBool::new(self.large_pages_are_off.load(Ordering::Relaxed));
        Self { all: copy(&self.all), data: copy(&self.data), large_pages_are_off, ..Self::new(self.stack()) }
    }

    /// How far a stack may grow.
    pub(super) fn stack(&self) -> usize {
        self.stack.load(Ordering::Relaxed)
    }
}

impl SpaceState {
    /// To be called before the mappings are unlocked after a change of their sums.
    pub(super) fn note_promises(&mut self) {
        self.promise.set(self.mappings.totals().promised);
    }
}

impl Space {
    /// Whether mappings made from now on count as locked.
    pub fn lock_future(&self, locks: FutureLocks) {
        self.limits.future_locks.store(locks as u8, Ordering::Relaxed);
    }

    /// Whether new mappings count as locked.
    #[must_use]
    pub fn future_locks(&self) -> FutureLocks {
        match self.limits.future_locks.load(Ordering::Relaxed) {
            1 => FutureLocks::Populated,
            2 => FutureLocks::OnFault,
            _ => FutureLocks::Off,
        }
    }

    /// Sets `RLIMIT_AS`, `RLIMIT_DATA` and `RLIMIT_STACK`, in bytes.
    pub fn set_limits(&self, all: usize, data: usize, stack: usize) {
        self.limits.all.store(all, Ordering::Relaxed);
        self.limits.data.store(data, Ordering::Relaxed);
        self.limits.stack.store(stack.min(STACK_MAX_BYTES), Ordering::Relaxed);
    }

    /// Checks that mappings of these sums may take the place of others. Nothing that does not grow is refused.
    pub(super) fn check_growth(&self, state: &SpaceState, gone: Totals, added: Totals) -> Result<(), Errno> {
        let after = state.mappings.totals().minus(gone).plus(added);
        let exceeds = |gone: usize, added: usize, after: usize, limit: &AtomicUsize| {
            added > gone && after > limit.load(Ordering::Relaxed)
        };
        if exceeds(gone.all, added.all, after.all, &self.limits.all)
            || exceeds(gone.data, added.data, after.data, &self.limits.data)
        {
            return Err(Errno::ENOMEM);
        }
        overcommit::check(added.promised.saturating_sub(gone.promised))
    }
}
