//! How a thread that runs a core sleeps and is woken.

use crate::core_entry::{CoreEntry, Hooks};
use crate::registry::shrink_if_due;
use crate::sync::{Ordering, spin_hint};
use crate::{os, reactor};
use core::ptr;
use core::time::Duration;
use std::time::Instant;

/// The parker's word: nobody has kicked since the thread last looked.
const CALM: u32 = 0;
const KICKED: u32 = 1;

/// Cores whose own thread sleeps on the entry's word.
pub(crate) static THREAD_HOOKS: Hooks = Hooks { kick, is_here, left: |_, _| {} };

fn is_here(entry: &CoreEntry) -> bool {
    crate::threads::here().is_some_and(|here| ptr::eq(here, entry))
}

/// Wakes the thread that sleeps in [`sleep`], or makes its next sleep end at once. Safe in signal handlers on Linux.
pub(crate) fn kick(entry: &CoreEntry) {
    if entry.parker.swap(KICKED, Ordering::AcqRel) == CALM {
        if entry.polling.load(Ordering::Relaxed) != 0 {
            return reactor::notify();
        }
        // The thread itself does not sleep: it takes results out on its way from a sleep, or to one. A handler that
        // interrupts it there changes the word, which the sleep compares when it begins or is restarted.
        if !is_here(entry) {
            os::wake_word(&entry.parker);
        }
    }
}

/// Sleeps until a kick or for `limit`; the kick is used up. May return early.
pub(crate) fn sleep(entry: &'static CoreEntry, limit: Option<Duration>) {
    let kicked = || entry.parker.swap(CALM, Ordering::AcqRel) == KICKED;
    if let Some(host) = crate::host::host() {
        if !kicked() {
            host.sleep(&entry.parker, CALM, limit);
            entry.parker.store(CALM, Ordering::Relaxed);
        }
        return;
    }
    if reactor::sleep_in(entry, limit, kicked) || kicked() {
        return;
    }
    os::sleep_on(&entry.parker, CALM, limit);
    entry.parker.store(CALM, Ordering::Relaxed);
}

/// How long a core spins before it sleeps: long if its sleeps turn out short, because then a poster pays for a system
/// call that the spinning would have spared both.
pub(crate) struct Patience {
    spins: u32,
}

/// In looks at the inbox; the longest spin is some microseconds, about what a wake costs.
const SPINS_MIN: u32 = 4;
const SPINS_MAX: u32 = 100;

/// A sleep below this was not worth it.
const SHORT: Duration = Duration::from_micros(50);

impl Patience {
    pub fn new() -> Patience {
        Patience { spins: SPINS_MIN }
    }

    /// Waits a little for a post; `true` if there was one.
    pub fn spin(&self, entry: &CoreEntry) -> bool {
        for _ in 0..self.spins {
            if !entry.state.inbox().is_empty() {
                return true;
            }
            spin_hint();
        }
        false
    }

    /// Sleeps like [`sleep`], and learns from it.
    pub fn sleep(&mut self, entry: &'static CoreEntry, limit: Option<Duration>) {
        shrink_if_due(&entry.state);
        let start = Instant::now();
        sleep(entry, limit);
        let short = !entry.state.inbox().is_empty() && start.elapsed() < SHORT;
        self.spins = if short { SPINS_MAX } else { (self.spins / 2).max(SPINS_MIN) };
    }
}
