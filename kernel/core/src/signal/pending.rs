//! Signals that were sent and not delivered yet.

use alloc::collections::VecDeque;

use crate::fallible::push_back_reserved;
use crate::signal::{Detail, Information, Signal, SignalSet};

/// A realtime signal found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// The pending signals of a thread or a process.
///
/// A standard signal is pending at most once, a realtime signal as often as it was sent. A bit may be set without
/// an entry in the queue: the signal counts, its information was lost to a lack of memory.
#[derive(Debug, Default)]
pub struct Pending {
    set: SignalSet,
    queue: VecDeque<Information>,
}

impl Pending {
    /// Nothing pending; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { set: SignalSet::EMPTY, queue: VecDeque::new() }
    }

    /// The set of pending signals.
    #[must_use]
    pub const fn set(&self) -> SignalSet {
        self.set
    }

    /// The number of queued entries, for `RLIMIT_SIGPENDING`.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// An entry of the queue, the oldest first.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Information> {
        self.queue.get(index)
    }

    /// Adds a signal. `limit` is the most entries that realtime signals may bring the queue to.
    ///
    /// # Errors
    /// [`Overflow`] for a realtime signal of sigqueue(3) that finds no room; any other is pending without its
    /// information then.
    pub fn push(&mut self, information: Information, limit: usize) -> Result<(), Overflow> {
        let signal = information.signal;
        if let Detail::Timer { id, .. } = information.detail {
            // A timer's signal is queued beside others and once: what comes meanwhile is its overrun.
            let is_same = |entry: &Information| {
                entry.signal == signal
                    && matches!(entry.detail, Detail::Timer { id: other, .. } if other == id)
            };
            if self.queue.iter().any(is_same) {
                return Ok(());
            }
        } else if !signal.is_realtime() && self.set.contains(signal) {
            return Ok(());
        }
        let is_queueing = signal.is_realtime() && information.code != linux_raw_sys::general::SI_USER as i32;
        let has_room = (!is_queueing || self.queue.len() < limit) && self.queue.try_reserve(1).is_ok();
        if has_room {
            push_back_reserved(&mut self.queue, information);
        } else if is_queueing {
            return Err(Overflow);
        }
        self.set = self.set.with(signal);
        Ok(())
    }

    /// Takes the next signal of those in `wanted`.
    pub fn take(&mut self, wanted: SignalSet) -> Option<Information> {
        let signal = self.set.intersection(wanted).first()?;
        let position = self.queue.iter().position(|entry| entry.signal == signal);
        let information = position.and_then(|position| self.queue.remove(position));
        if !self.queue.iter().any(|entry| entry.signal == signal) {
            self.set = self.set.without(signal);
        }
        Some(information.unwrap_or(Information::lost(signal)))
    }

    /// Forgets the signals in `signals`.
    pub fn remove(&mut self, signals: SignalSet) {
        if !self.set.intersection(signals).is_empty() {
            self.set = self.set.difference(signals);
            self.queue.retain(|entry| !signals.contains(entry.signal));
        }
    }

    /// Forgets everything, memory included.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Whether one of `signals` is pending.
    #[must_use]
    pub const fn has(&self, signals: SignalSet) -> bool {
        !self.set.intersection(signals).is_empty()
    }

    /// Whether `signal` is pending.
    #[must_use]
    pub const fn contains(&self, signal: Signal) -> bool {
        self.set.contains(signal)
    }
}
