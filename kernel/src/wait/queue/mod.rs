//! Waiting until something is ready.
//!
//! A file keeps one [`WaitQueue`] and calls [`WaitQueue::wake`] when it becomes readable, writable or broken.
//! Whoever waits (a thread in `read`, a `poll` over many files, an epoll instance) first *registers* a [`Watch`] and
//! then *checks* the file once more, so that a wake between check and registration cannot be lost.
//!
//! Registrations are not removed by hand. A watch carries the generation that its waiter had when it registered; a
//! waiter that has stopped waiting moves to another generation, and its old entries are stale and dropped the next time
//! the queue is walked. So a waiter needs no reference to the queues it is in, and leaving a wait costs one increment
//! however many files were polled.
//!
//! An *exclusive* watch waits for something that one waiter takes: bytes to read, a connection to accept. A wake
//! notifies one of them, the most urgent ([`choice`]), and all others that match; an error or a hang-up notifies all.
//! The waiter that had the turn passes it on when it leaves something ([`Watch::pass_on`]).
//!
//! A wake allocates nothing. Under the lock of a queue it wakes coroutines and tells [`Listener`]s, which note the
//! event and may name a queue of their own ([`RelayQueue`]: an epoll instance's). Those are woken after the lock has
//! been released, one after the other and each once however many ways lead to it, so neither the stack nor the locks
//! held depend on how instances watch one another.
//!
//! A program decides how many watch one object. When a queue has many watches, registering moves the older ones into
//! *groups*, each a listener with a [`RelayQueue`] of so many watches. A wake then walks few watches under the queue's
//! lock and notes the groups, of which a coroutine tells those that are too many for one go: see
//! [`relay`](crate::wait::relay).

mod choice;

use alloc::sync::Arc;
use alloc::vec::Vec;
use bitflags::bitflags;

use crate::error::Errno;
use crate::memory::fallible;
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::forgotten;
use crate::wait::node::{AwaitedThread, WaitNode};
use crate::wait::relay::{RELAYED, Relays};

pub use crate::wait::relay::RelayQueue;

use heddle_kernel_core::fallible::push_reserved;

bitflags! {
    /// Readiness, with the bit values of poll(2) and epoll(7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Events: u32 {
        /// Data to read, or an end of file.
        const IN = linux_raw_sys::general::EPOLLIN;
        /// Urgent data.
        const PRI = linux_raw_sys::general::EPOLLPRI;
        /// Room to write.
        const OUT = linux_raw_sys::general::EPOLLOUT;
        /// Broken, e.g. a pipe without readers; reported whether asked for or not.
        const ERR = linux_raw_sys::general::EPOLLERR;
        /// The other side has closed for good; reported whether asked for or not.
        const HUP = linux_raw_sys::general::EPOLLHUP;
        /// Same as `IN` for the files of this kernel.
        const RDNORM = linux_raw_sys::general::EPOLLRDNORM;
        /// Same as `OUT` for the files of this kernel.
        const WRNORM = linux_raw_sys::general::EPOLLWRNORM;
        /// The other side has shut down its writing half.
        const RDHUP = linux_raw_sys::general::EPOLLRDHUP;
    }
}

/// Something that stays registered at a queue and notes what it is told, in place of a waiter: an epoll interest.
pub trait Listener: Send + Sync {
    /// The generation of its registration; entries of any other are stale.
    fn generation(&self) -> u32;

    /// Notes an event. Called under the queue's lock: it must not wait, allocate or free, nor touch another queue.
    fn notify(self: Arc<Self>, events: Events);

    /// The queue to wake once the walk is over.
    fn relay(&self) -> &Arc<RelayQueue>;
}

#[derive(Clone)]
enum WatchTarget {
    Node(Arc<WaitNode>),
    Listener(Arc<dyn Listener>),
    /// Nobody: see [`Watch::nobody`].
    Nobody,
    /// Nobody: see [`Watch::pass_on`].
    NextWaiter,
}

/// One registration of one waiter.
#[derive(Clone)]
pub struct Watch {
    target: WatchTarget,
    generation: u32,
    is_exclusive: bool,
}

impl Watch {
    /// A watch of a wait that has begun.
    pub(super) const fn new(node: Arc<WaitNode>, generation: u32) -> Self {
        Self { target: WatchTarget::Node(node), generation, is_exclusive: false }
    }

    /// A watch that stays until the listener's generation changes. An exclusive one (`EPOLLEXCLUSIVE`) is told of an
    /// event only if no other exclusive one has been.
    pub fn listener(listener: Arc<dyn Listener>, is_exclusive: bool) -> Self {
        let generation = listener.generation();
        Self { target: WatchTarget::Listener(listener), generation, is_exclusive }
    }

    /// No wait: for a look at what would have to be waited for.
    pub const fn nobody() -> Self {
        Self { target: WatchTarget::Nobody, generation: 0, is_exclusive: false }
    }

    /// No wait: a queue at which this is registered notifies the next of its exclusive watches instead. A waiter that
    /// was notified in place of others hands what it leaves to them so, by asking its file for readiness once more.
    pub const fn pass_on() -> Self {
        Self { target: WatchTarget::NextWaiter, generation: 0, is_exclusive: false }
    }

    /// The same watch, for something that one waiter takes if `is_exclusive`.
    #[must_use]
    pub const fn exclusive_if(mut self, is_exclusive: bool) -> Self {
        self.is_exclusive = is_exclusive;
        self
    }

    /// Whether it is for something that one waiter takes.
    #[must_use]
    pub const fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// Whether there is a wait, which [`Watch::wake`] ends.
    #[must_use]
    pub const fn is_wait(&self) -> bool {
        matches!(self.target, WatchTarget::Node(_))
    }

    /// Where the waiter stands, if there is one.
    pub(super) fn place(&self) -> Option<u8> {
        match &self.target {
            WatchTarget::Node(node) => Some(node.place()),
            WatchTarget::Listener(_) | WatchTarget::Nobody | WatchTarget::NextWaiter => None,
        }
    }

    /// The waiter waits for what this thread does: it lends it its level, if it is an urgent one.
    #[inline]
    pub fn awaits(&self, thread: impl FnOnce() -> AwaitedThread) {
        if let WatchTarget::Node(node) = &self.target
            && node.is_urgent()
        {
            node.set_awaited(thread());
        }
    }

    /// Whether it is a waiter's.
    #[must_use]
    pub fn is_of(&self, waiter: &Arc<WaitNode>) -> bool {
        matches!(&self.target, WatchTarget::Node(node) if Arc::ptr_eq(node, waiter))
    }

    /// Wakes the waiter, if it still waits.
    pub fn wake(&self) {
        if let WatchTarget::Node(node) = &self.target
            && !self.is_stale()
        {
            node.wake_from_queue();
        }
    }

    /// Whether the wait is over.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        match &self.target {
            WatchTarget::Node(node) => node.generation() != self.generation,
            WatchTarget::Listener(listener) => listener.generation() != self.generation,
            WatchTarget::Nobody | WatchTarget::NextWaiter => true,
        }
    }
}

pub(super) struct WaitEntry {
    watch: Watch,
    events: Events,
    /// How often another was notified in its place that came later, and is no realtime one.
    passed: u8,
}

/// The result of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notified {
    /// The waiter no longer waits; the entry goes.
    Stale,
    /// The waiter was woken; the entry goes.
    Woken,
    /// The listener took note; the entry stays.
    Noted,
}

impl WaitEntry {
    /// How many watches are behind it at most.
    pub(super) fn weight(&self) -> usize {
        if self.as_group().is_some() { GROUP } else { 1 }
    }

    /// The queue of its watches, if it is a group.
    fn as_group(&self) -> Option<&Arc<RelayQueue>> {
        match &self.watch.target {
            WatchTarget::Listener(listener) => Some(listener.relay()).filter(|relay| relay.is_group()),
            WatchTarget::Node(_) | WatchTarget::Nobody | WatchTarget::NextWaiter => None,
        }
    }

    /// Whether it is one of those of which one is notified of `events`.
    fn may_take(&self, events: Events) -> bool {
        self.watch.is_exclusive && self.events.intersects(events)
    }

    /// Whether it may go into a group. Exclusive waits may not: the first of them is told at once.
    fn is_loose(&self) -> bool {
        match self.watch.target {
            WatchTarget::Node(_) => !self.watch.is_exclusive,
            WatchTarget::Listener(_) => self.as_group().is_none(),
            WatchTarget::Nobody | WatchTarget::NextWaiter => false,
        }
    }

    fn notify(&self, events: Events, relays: &mut Relays) -> Notified {
        if self.watch.is_stale() {
            return Notified::Stale;
        }
        match &self.watch.target {
            WatchTarget::Node(node) => {
                node.wake_from_queue();
                Notified::Woken
            }
            WatchTarget::Listener(listener) => {
                listener.clone().notify(events);
                relays.add(listener.relay());
                Notified::Noted
            }
            WatchTarget::Nobody | WatchTarget::NextWaiter => Notified::Stale,
        }
    }

    /// Whether a notification reaches somebody who waits.
    fn has_waiter(&self) -> bool {
        match &self.watch.target {
            WatchTarget::Node(_) => true,
            WatchTarget::Listener(listener) => listener.relay().has_waiter(),
            WatchTarget::Nobody | WatchTarget::NextWaiter => false,
        }
    }
}

/// Events after which every waiter has to look, the exclusive ones too.
pub(super) const FOR_ALL: Events = Events::ERR.union(Events::HUP).union(Events::RDHUP);

/// The watches on one object.
pub struct WaitQueue {
    entries: SpinLock<Vec<WaitEntry>>,
}

impl WaitQueue {
    /// A queue without watches; allocates nothing.
    #[must_use]
    #[cfg_attr(feature = "checking", track_caller)]
    pub const fn new() -> Self {
        Self { entries: SpinLock::new(Vec::new()) }
    }

    /// Registers a watch for any of `events`; `ERR` and `HUP` are always included. Check readiness *after* this. All
    /// who wait are notified.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch(&self, watch: &Watch, events: Events) -> Result<(), Errno> {
        self.register(watch, events, false)
    }

    /// As [`WaitQueue::watch`], for events after which one of those who wait takes what there is: of exclusive watches
    /// one is notified. Only for a queue whose waiters all wait for the same.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch_to_take(&self, watch: &Watch, events: Events) -> Result<(), Errno> {
        self.register(watch, events, watch.is_exclusive)
    }

    fn register(&self, watch: &Watch, events: Events, is_exclusive: bool) -> Result<(), Errno> {
        match watch.target {
            WatchTarget::Node(_) | WatchTarget::Listener(_) => {}
            WatchTarget::Nobody => return Ok(()),
            WatchTarget::NextWaiter => {
                self.wake_next(events);
                return Ok(());
            }
        }
        let events = events | Events::ERR | Events::HUP;
        let mut entries = self.entries.lock();
        if entries.len() == entries.capacity() {
            let thinned = make_room(&mut entries)?;
            drop(entries);
            // A group's lock is not taken under that of its queue.
            thinned.iter().flatten().for_each(|group| group.drop_stale());
            return self.register(watch, events, is_exclusive);
        }
        let watch = watch.clone().exclusive_if(is_exclusive);
        push_reserved(&mut entries, WaitEntry { watch, events, passed: 0 });
        Ok(())
    }

    /// Whether no more than one waits for something that one takes.
    pub fn has_one_taker(&self) -> bool {
        let takes = |entry: &&WaitEntry| entry.watch.is_exclusive && !entry.watch.is_stale();
        self.entries.lock().iter().filter(takes).nth(1).is_none()
    }

    /// Forgets every watch. For an owner at its end whose own waits are among them: the entries refer to the waiter,
    /// and it to the owner.
    pub fn clear(&self) {
        let entries = core::mem::take(&mut *self.entries.lock());
        forgotten::forget(entries);
    }

    /// Whether nobody waits.
    pub(super) fn is_idle(&self) -> bool {
        self.entries.lock().iter().all(|entry| entry.watch.is_stale())
    }

    /// Whether nobody is registered.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }

    /// A queue of these watches.
    #[cfg_attr(feature = "checking", track_caller)]
    pub(super) const fn of(entries: Vec<WaitEntry>) -> Self {
        Self { entries: SpinLock::new(entries) }
    }

    /// Takes an entry in, for which there is room.
    pub(super) fn take_in(&mut self, entry: WaitEntry) {
        push_reserved(self.entries.get_mut(), entry);
    }

    /// Drops stale entries. Returns whether none is left.
    pub(super) fn drop_stale(&self) -> bool {
        let mut entries = self.entries.lock();
        entries.retain(|entry| !entry.watch.is_stale());
        entries.is_empty()
    }

    /// Notifies every watch that asked for one of `events`, and of the exclusive ones the first; all of them if an
    /// error or a hang-up is among the events.
    #[inline]
    pub fn wake(&self, events: Events) {
        let entries = self.entries.lock();
        if !entries.is_empty() {
            wake_watches(entries, events);
        }
    }

    /// As a wake whose relays the caller wakes.
    pub(super) fn notify(&self, events: Events, relays: &mut Relays) {
        let mut entries = self.entries.lock();
        if !entries.is_empty() {
            notify_all(&mut entries, events, relays);
        }
    }

    /// As [`WaitQueue::notify`] for one exclusive watch. Returns whether there is one behind which somebody waits.
    pub(super) fn notify_one(&self, events: Events, relays: &mut Relays) -> bool {
        let mut entries = self.entries.lock();
        relays.spend(entries.len());
        notify_one(&mut entries, events, relays)
    }

    /// As a wake for [`RELAYED`] events, but does nothing and returns `false` if a listener is registered.
    pub(super) fn notify_waiters(&self) -> bool {
        let has_listener = |entry: &WaitEntry| {
            matches!(entry.watch.target, WatchTarget::Listener(_)) && !entry.watch.is_stale()
        };
        let mut entries = self.entries.lock();
        if entries.iter().any(has_listener) {
            return false;
        }
        notify_all(&mut entries, RELAYED, &mut Relays::new());
        true
    }

    /// Notifies the next exclusive watch for one of `events`.
    pub(super) fn wake_next(&self, events: Events) {
        let mut entries = self.entries.lock();
        if entries.is_empty() {
            return;
        }
        let mut relays = Relays::new();
        let _ = notify_one(&mut entries, events, &mut relays);
        drop(entries);
        relays.wake();
    }
}

/// Watches of a group.
pub(super) const GROUP: usize = 64;
/// Groups in which stale watches are looked for when another is made. With two, those that are full of them become no
/// more than the others.
const THINNED: usize = 2;

/// Makes room for another entry, where stale ones have to go first. Where there are many watches, the oldest become a
/// group. Returns groups in which stale ones are to be looked for.
#[cold]
fn make_room(entries: &mut Vec<WaitEntry>) -> Result<[Option<Arc<RelayQueue>>; THINNED], Errno> {
    let mut thinned = [const { None }; THINNED];
    entries.retain(|entry| !entry.watch.is_stale());
    if entries.len() < GROUP {
        entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        return Ok(thinned);
    }
    let loose = |is_exclusive| {
        let is_like = |entry: &&WaitEntry| entry.watch.is_exclusive == is_exclusive && entry.is_loose();
        entries.iter().filter(is_like).count()
    };
    let (others, exclusive) = (loose(false), loose(true));
    if others.max(exclusive) < GROUP {
        // Few more, so that few more can be loose.
        entries.try_reserve_exact(GROUP).map_err(|_| Errno::ENOMEM)?;
        return Ok(thinned);
    }
    make_group(entries, exclusive > others)?;
    for thinned in &mut thinned {
        if let Some(at) = entries.iter().position(|entry| entry.as_group().is_some()) {
            entries[at..].rotate_left(1);
            *thinned = entries.last().and_then(WaitEntry::as_group).cloned();
        }
    }
    Ok(thinned)
}

/// Makes a group of the oldest entries that may be in one, of exclusive ones or of others. All memory is there before
/// any of them is moved.
fn make_group(entries: &mut Vec<WaitEntry>, is_exclusive: bool) -> Result<(), Errno> {
    let members = fallible::try_with_capacity(GROUP)?;
    let is_like = |entry: &&WaitEntry| entry.watch.is_exclusive == is_exclusive;
    let sibling = entries.iter().filter(is_like).find_map(WaitEntry::as_group);
    let queue = RelayQueue::group(members, is_exclusive, sibling.map(|sibling| &**sibling))?;
    let mut group = fallible::try_arc(WatchGroup(queue))?;
    let (mut left, mut events) = (GROUP, Events::empty());
    let is_taken = |entry: &mut WaitEntry| {
        let is_taken = left > 0 && entry.watch.is_exclusive == is_exclusive && entry.is_loose();
        left -= usize::from(is_taken);
        is_taken
    };
    for entry in entries.extract_if(.., is_taken) {
        events |= entry.events;
        // Nobody else knows it yet.
        if let Some(queue) = Arc::get_mut(&mut group).and_then(|group| Arc::get_mut(&mut group.0)) {
            queue.take_in(entry);
        }
    }
    let watch = Watch::listener(group, is_exclusive);
    push_reserved(entries, WaitEntry { watch, events, passed: 0 });
    Ok(())
}

/// A group, as the queue that it belongs to knows it.
struct WatchGroup(Arc<RelayQueue>);

impl Listener for WatchGroup {
    fn generation(&self) -> u32 {
        u32::from(self.0.is_over())
    }

    fn notify(self: Arc<Self>, events: Events) {
        self.0.note(events);
    }

    fn relay(&self) -> &Arc<RelayQueue> {
        &self.0
    }
}

/// Notifies watches under the queue's lock, and wakes what they relay to without it.
fn wake_watches(mut entries: SpinGuard<'_, Vec<WaitEntry>>, events: Events) {
    let mut relays = Relays::new();
    notify_all(&mut entries, events, &mut relays);
    drop(entries);
    relays.wake();
}

/// Notifies the watches for one of `events`: see [`WaitQueue::wake`].
fn notify_all(entries: &mut Vec<WaitEntry>, events: Events, relays: &mut Relays) {
    let for_all = events.intersects(FOR_ALL);
    let mut has_exclusive = false;
    relays.spend(entries.len());
    entries.retain(|entry| {
        if !entry.events.intersects(events) {
            return !entry.watch.is_stale();
        }
        if entry.watch.is_exclusive && !for_all {
            has_exclusive = true;
            return !entry.watch.is_stale();
        }
        entry.notify(events, relays) == Notified::Noted
    });
    if has_exclusive {
        let _ = notify_one(entries, events, relays);
    }
}

/// Notifies an exclusive watch for one of `events` behind which somebody waits: the most urgent one's. Returns whether
/// there is one.
fn notify_one(entries: &mut Vec<WaitEntry>, events: Events, relays: &mut Relays) -> bool {
    let mut at = 0;
    while let Some(entry) = entries.get(at) {
        if !entry.may_take(events) {
            at += 1;
            continue;
        }
        if entries[at + 1..].iter().any(|other| other.may_take(events)) {
            return choice::notify_most_urgent(entries, events, relays);
        }
        let has_waiter = entry.has_waiter();
        let notified = entry.notify(events, relays);
        if notified == Notified::Noted {
            at += 1;
        } else {
            entries.remove(at);
        }
        if has_waiter && notified != Notified::Stale {
            return true;
        }
    }
    false
}

impl Drop for WaitQueue {
    fn drop(&mut self) {
        let entries = core::mem::take(self.entries.get_mut());
        if !entries.is_empty() {
            forgotten::forget(entries);
        }
    }
}

impl Default for WaitQueue {
    #[cfg_attr(feature = "checking", track_caller)]
    fn default() -> Self {
        Self::new()
    }
}
