//! The events that a mark wants, and those that it ignores.

use core::sync::atomic::{AtomicU32, Ordering};

use heddle_kernel_core::fanotify::{event, mark};

/// The events that a mark wants.
#[derive(Default)]
pub struct FanMask {
    wanted: AtomicU32,
    ignored: AtomicU32,
    /// `FAN_MARK_IGNORED_SURV_MODIFY`, and whether what is ignored has modifiers of its own (`FAN_MARK_IGNORE`).
    flags: AtomicU32,
}

impl FanMask {
    const SURVIVES: u32 = mark::IGNORED_SURVIVES;

    /// Adds bits.
    pub(super) fn add(&self, mask: u32, flags: u32) {
        if flags & (mark::IGNORED_MASK | mark::IGNORE) != 0 {
            self.ignored.fetch_or(mask, Ordering::Relaxed);
            self.flags.fetch_or(flags & (Self::SURVIVES | mark::IGNORE), Ordering::Relaxed);
        } else {
            self.wanted.fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// Takes bits away; whether none are left.
    pub(super) fn remove(&self, mask: u32, flags: u32) -> bool {
        let bits =
            if flags & (mark::IGNORED_MASK | mark::IGNORE) != 0 { &self.ignored } else { &self.wanted };
        bits.fetch_and(!mask, Ordering::Relaxed);
        (self.wanted.load(Ordering::Relaxed) | self.ignored.load(Ordering::Relaxed)) & !event::MODIFIERS == 0
    }

    /// The wanted and the ignored bits for an event about a file itself, or if not `is_own` about a child.
    pub(super) fn look(&self, what: u32, is_own: bool) -> (u32, u32) {
        if what & event::MODIFY != 0 && self.flags.load(Ordering::Relaxed) & Self::SURVIVES == 0 {
            self.ignored.store(0, Ordering::Relaxed);
        }
        let applies = |mask: u32| {
            (is_own || mask & event::ON_CHILD != 0) && (what & event::ONDIR == 0 || mask & event::ONDIR != 0)
        };
        let (wanted, ignored) = (self.wanted.load(Ordering::Relaxed), self.ignored.load(Ordering::Relaxed));
        let has_modifiers = self.flags.load(Ordering::Relaxed) & mark::IGNORE != 0;
        let counts = if has_modifiers { applies(ignored) } else { is_own || applies(wanted) };
        (if applies(wanted) { wanted } else { 0 }, if counts { ignored } else { 0 })
    }
}
