//! Which of several exclusive watches is notified: that of the most urgent waiter, among equals of the one that came
//! first.
//!
//! The order is that of realtime priorities, which is exact, and behind them that of nice values and of the levels of
//! calls that go on by themselves ([`WaitNode::set_place`]). A nice value is no right to all that there is, so a waiter
//! that was passed over [`PASSES_MAX`] times is the first of those that are not realtime ones.
//!
//! An epoll instance stands where the one stands who began to wait at it last, which it knows without a lock. Nobody
//! knows who waits behind a group of watches, so groups are told beside the waiter that was chosen.

use alloc::vec::Vec;

use crate::wait::node::WaitNode;
use crate::wait::queue::{Events, Notified, WaitEntry, WatchTarget};
use crate::wait::relay::Relays;

/// So often others go before a waiter only because of their nice values.
const PASSES_MAX: u8 = 32;

impl WaitEntry {
    /// Where who waits behind it stands; nobody does as far as is known for `None`.
    fn place(&self) -> Option<u8> {
        let place = match &self.watch.target {
            WatchTarget::Node(node) => node.place(),
            // Of a group it is not known.
            WatchTarget::Listener(listener) if listener.relay().has_waiter() => listener.relay().place(),
            _ => return None,
        };
        let is_over = self.passed >= PASSES_MAX;
        Some(if is_over { place.min(WaitNode::PLACE_SHARED) } else { place })
    }
}

/// As [`super::notify_one`], where there are several.
#[cold]
pub(super) fn notify_most_urgent(entries: &mut Vec<WaitEntry>, events: Events, relays: &mut Relays) -> bool {
    loop {
        entries.retain(|entry| !entry.watch.is_stale());
        let best = most_urgent(entries, events);
        notify_beside(entries, events, best.map(|(_, chosen)| chosen), relays);
        let Some((place, chosen)) = best else { return false };
        let entry = &entries[chosen];
        if let WatchTarget::Node(node) = &entry.watch.target
            && entries.iter().filter(|entry| entry.may_take(events)).nth(1).is_some()
        {
            // Before the wake: the waiter may be through before this returns.
            node.give_turn();
        }
        match entry.notify(events, relays) {
            Notified::Noted => entries[chosen].passed = 0,
            Notified::Woken => drop(entries.remove(chosen)),
            Notified::Stale => {
                // It has just stopped waiting.
                entries.remove(chosen);
                continue;
            }
        }
        if place >= WaitNode::PLACE_SHARED {
            let passed = entries[..chosen].iter_mut();
            for entry in passed.filter(|entry| entry.may_take(events) && entry.place().is_some()) {
                entry.passed = entry.passed.saturating_add(1);
            }
        }
        return true;
    }
}

/// The place of the most urgent waiter that is known, and its index.
fn most_urgent(entries: &[WaitEntry], events: Events) -> Option<(u8, usize)> {
    let takers = entries.iter().enumerate().filter(|(_, entry)| entry.may_take(events));
    takers.filter_map(|(at, entry)| Some((entry.place()?, at))).min()
}

/// Notifies all groups, and instances that nobody waits at and that come before the one that was chosen: they take
/// note, as if they had been asked first.
fn notify_beside(entries: &[WaitEntry], events: Events, chosen: Option<usize>, relays: &mut Relays) {
    for (at, entry) in entries.iter().enumerate() {
        let is_beside =
            entry.as_group().is_some() || chosen.is_none_or(|chosen| at < chosen && entry.place().is_none());
        if entry.may_take(events) && is_beside {
            entry.notify(events, relays);
        }
    }
}
