//! Which of several exclusive watches is notified: that of the most urgent waiter, among equals of the one that came
//! first.
//!
//! The order is that of realtime priorities, which is exact, and behind them that of nice values and of the levels of
//! calls that go on by themselves ([`WaitNode::set_place`]). A nice value is no right to all that there is, so a waiter
//! that was passed over [`PASSES_MAX`] times is the first of those that are not realtime ones. An epoll instance stands
//! where the most urgent of its waiters does, and a group of watches where the most urgent was when it was made.

use alloc::vec::Vec;

use crate::wait::node::WaitNode;
use crate::wait::queue::{Events, GROUP, Notified, WaitEntry, WatchTarget};
use crate::wait::relay::Relays;

/// So often others go before a waiter only because of their nice values.
const PASSES_MAX: u8 = 32;

impl WaitEntry {
    /// Where who waits behind it stands; nobody does as far as is known for `None`.
    fn place(&self) -> Option<u8> {
        let place = match &self.watch.target {
            WatchTarget::Node(node) => node.place(),
            WatchTarget::Listener(listener) => listener.relay().place()?,
            WatchTarget::Nobody | WatchTarget::NextWaiter => return None,
        };
        let is_over = self.passed >= PASSES_MAX;
        Some(if is_over { place.min(WaitNode::PLACE_SHARED) } else { place })
    }
}

/// Where the most urgent of those stands that wait.
pub(super) fn most_urgent(entries: &[WaitEntry]) -> Option<u8> {
    entries.iter().filter(|entry| !entry.watch.is_stale()).filter_map(WaitEntry::place).min()
}

/// Where the most urgent of those stands that a new group may take, which takes the oldest of them.
pub(super) fn most_urgent_loose(entries: &[WaitEntry], is_exclusive: bool) -> Option<u8> {
    let loose = entries.iter().filter(|entry| entry.watch.is_exclusive == is_exclusive && entry.is_loose());
    loose.take(GROUP).filter_map(WaitEntry::place).min()
}

/// As [`super::notify_one`], where there are several.
#[cold]
pub(super) fn notify_most_urgent(entries: &mut Vec<WaitEntry>, events: Events, relays: &mut Relays) -> bool {
    loop {
        entries.retain(|entry| !entry.watch.is_stale());
        let best = most_urgent_known(entries, events);
        notify_before(entries, events, best, relays);
        let Some((place, chosen)) = best else { return false };
        let entry = &entries[chosen];
        if let WatchTarget::Node(node) = &entry.watch.target
            && entries.iter().filter(|entry| entry.may_take(events)).nth(1).is_some()
        {
            // Before the wake: the waiter may be through before this returns.
            node.give_turn();
        }
        let notified = entry.notify(events, relays);
        if notified != Notified::Noted {
            entries.remove(chosen);
        }
        if notified == Notified::Stale {
            // It has just stopped waiting.
            continue;
        }
        if place >= WaitNode::PLACE_SHARED {
            for entry in entries[..chosen].iter_mut().filter(|entry| entry.may_take(events)) {
                entry.passed = entry.passed.saturating_add(1);
            }
        }
        return true;
    }
}

/// The place of the most urgent waiter outside of groups, and its index.
fn most_urgent_known(entries: &[WaitEntry], events: Events) -> Option<(u8, usize)> {
    let takers = entries.iter().enumerate();
    let takers = takers.filter(|(_, entry)| entry.may_take(events) && entry.as_group().is_none());
    takers.filter_map(|(at, entry)| Some((entry.place()?, at))).min()
}

/// Notifies those that go before the waiter that was found, and behind which it is not known that somebody waits:
/// groups, the most urgent first, and instances.
fn notify_before(entries: &[WaitEntry], events: Events, best: Option<(u8, usize)>, relays: &mut Relays) {
    let first = first_group(entries, events, best);
    if let Some(first) = first {
        entries[first].notify(events, relays);
    }
    for (at, entry) in entries.iter().enumerate() {
        if !entry.may_take(events) || first == Some(at) {
            continue;
        }
        let goes_before = match best {
            None => true,
            Some(best) if entry.as_group().is_some() => entry.place().is_some_and(|place| (place, at) < best),
            // An instance that nobody waits for takes note, as if it had been asked first.
            Some((_, chosen)) => at < chosen && entry.place().is_none(),
        };
        if goes_before {
            entry.notify(events, relays);
        }
    }
}

/// The group with the most urgent watch, if that goes before the waiter that was found.
fn first_group(entries: &[WaitEntry], events: Events, best: Option<(u8, usize)>) -> Option<usize> {
    let groups =
        entries.iter().enumerate().filter(|(_, entry)| entry.may_take(events) && entry.as_group().is_some());
    let first = groups.filter_map(|(at, entry)| Some((entry.place()?, at))).min()?;
    best.is_none_or(|best| first < best).then_some(first.1)
}
