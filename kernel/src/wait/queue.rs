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
//! notifies one of them and all others that match; an error or a hang-up notifies all. The waiter that had the turn
//! passes it on when it leaves something ([`Watch::pass_on`]).
//!
//! A wake allocates nothing. Under the lock of a queue it wakes coroutines and tells [`Listener`]s, which note the
//! event and may name a queue of their own ([`RelayQueue`]: an epoll instance's). Those are woken after the lock has
//! been released, one after the other and each once however many ways lead to it, so neither the stack nor the locks
//! held depend on how instances watch one another.

use alloc::sync::Arc;
use alloc::vec::Vec;
use bitflags::bitflags;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};

use crate::error::Errno;
use crate::memory::fallible;
use crate::sched::Budget;
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::forgotten;
use crate::wait::node::WaitNode;

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

    fn is_stale(&self) -> bool {
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
            WatchTarget::Listener(listener) => !listener.relay().queue.is_idle(),
            WatchTarget::Nobody | WatchTarget::NextWaiter => false,
        }
    }
}

/// Events after which every waiter has to look, the exclusive ones too.
const FOR_ALL: Events = Events::ERR.union(Events::HUP).union(Events::RDHUP);

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
        let mut entries = self.entries.lock();
        if entries.len() == entries.capacity() {
            entries.retain(|entry| !entry.watch.is_stale());
            entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        }
        let events = events | Events::ERR | Events::HUP;
        push_reserved(&mut entries, WaitEntry { watch: watch.clone().exclusive_if(is_exclusive), events });
        Ok(())
    }

    /// Forgets every watch. For an owner at its end whose own waits are among them: the entries refer to the waiter,
    /// and it to the owner.
    pub fn clear(&self) {
        let entries = core::mem::take(&mut *self.entries.lock());
        forgotten::forget(entries);
    }

    /// Whether nobody waits.
    fn is_idle(&self) -> bool {
        self.entries.lock().iter().all(|entry| entry.watch.is_stale())
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

    fn notify(&self, events: Events, relays: &mut Relays) {
        let mut entries = self.entries.lock();
        if !entries.is_empty() {
            notify_all(&mut entries, events, relays);
        }
    }

    /// As a wake for [`RELAYED`] events, but does nothing and returns `false` if a listener is registered.
    fn notify_waiters(&self) -> bool {
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
    fn wake_next(&self, events: Events) {
        let mut entries = self.entries.lock();
        if entries.is_empty() {
            return;
        }
        let mut relays = Relays::new();
        notify_one(&mut entries, events, &mut relays);
        drop(entries);
        relays.wake();
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
        notify_one(entries, events, relays);
    }
}

/// Notifies the first exclusive watch for one of `events` behind which somebody waits.
fn notify_one(entries: &mut Vec<WaitEntry>, events: Events, relays: &mut Relays) {
    let mut at = 0;
    while let Some(entry) = entries.get(at) {
        if !entry.watch.is_exclusive || !entry.events.intersects(events) {
            at += 1;
            continue;
        }
        if let WatchTarget::Node(node) = &entry.watch.target {
            // Before the wake: the waiter may be through before this returns.
            if entries[at + 1..]
                .iter()
                .any(|other| other.watch.is_exclusive && other.events.intersects(events))
            {
                node.give_turn();
            }
        }
        let has_waiter = entry.has_waiter();
        let notified = entry.notify(events, relays);
        if notified == Notified::Noted {
            at += 1;
        } else {
            entries.remove(at);
        }
        if has_waiter && notified != Notified::Stale {
            return;
        }
    }
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

/// A queue that is woken because another one was.
pub struct RelayQueue {
    queue: WaitQueue,
    /// The next to wake; only under [`CHAIN`].
    next: SpinLock<Option<Arc<RelayQueue>>>,
    is_chained: AtomicBool,
}

/// The events of a relay.
const RELAYED: Events = Events::IN.union(Events::RDNORM);

/// Held by a walk that has more relays to wake than it can note by itself: a relay is in one chain at a time. It is
/// taken before the lock of any relay's queue.
static CHAIN: SpinLock<()> = SpinLock::new(());

impl RelayQueue {
    /// A queue without watches.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>, Errno> {
        fallible::try_arc(Self {
            queue: WaitQueue::new(),
            next: SpinLock::new(None),
            is_chained: AtomicBool::new(false),
        })
    }

    /// As [`WaitQueue::watch_to_take`].
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch(&self, watch: &Watch, events: Events) -> Result<(), Errno> {
        self.queue.watch_to_take(watch, events)
    }

    /// As [`WaitQueue::clear`].
    pub fn clear(&self) {
        self.queue.clear();
    }

    /// Notifies one exclusive watch and all others.
    pub fn wake(self: &Arc<Self>) {
        let mut relays = Relays::new();
        relays.add(self);
        relays.wake();
    }

    /// Notifies an exclusive watch.
    pub fn wake_next(&self) {
        self.queue.wake_next(RELAYED);
    }
}

/// Relays to wake after a walk: a few are noted here, more are chained.
struct Relays {
    few: [Option<Arc<RelayQueue>>; Self::FEW],
    chain: Option<Chain>,
}

/// Relays in the order in which they are to be woken.
struct Chain {
    head: Option<Arc<RelayQueue>>,
    tail: Option<Arc<RelayQueue>>,
    _held: SpinGuard<'static, ()>,
}

impl Relays {
    const FEW: usize = 2;

    const fn new() -> Self {
        Self { few: [const { None }; Self::FEW], chain: None }
    }

    fn add(&mut self, relay: &Arc<RelayQueue>) {
        if let Some(chain) = &mut self.chain {
            chain.add(relay);
            return;
        }
        for slot in &mut self.few {
            match slot {
                Some(known) if Arc::ptr_eq(known, relay) => return,
                Some(_) => {}
                None => {
                    *slot = Some(relay.clone());
                    return;
                }
            }
        }
        self.chain.get_or_insert_with(Chain::new).add(relay);
    }

    /// Wakes them, and what they lead to.
    #[inline]
    fn wake(self) {
        if self.few[0].is_some() {
            self.wake_all();
        }
    }

    fn wake_all(mut self) {
        let few = core::mem::replace(&mut self.few, [const { None }; Self::FEW]);
        for relay in few.into_iter().flatten() {
            if self.chain.is_none() {
                if relay.queue.notify_waiters() {
                    continue;
                }
                // Another instance watches this one.
                self.chain = Some(Chain::new());
            }
            if let Some(chain) = &mut self.chain {
                chain.add(&relay);
            }
        }
        if self.notify_some() {
            // A wake waits for nobody, so a coroutine goes on with a long chain.
            wake_rest();
        }
    }

    /// Notifies some of the relays in the chain. If there are more, they are left to [`relay_rest`].
    fn notify_some(&mut self) -> bool {
        for _ in 0..RELAYS_AT_ONCE {
            let Some(relay) = self.chain.as_mut().and_then(Chain::take) else { return false };
            relay.queue.notify(RELAYED, self);
        }
        self.chain.as_mut().is_some_and(Chain::leave_rest)
    }
}

/// Relays of a chain that are notified in one go.
const RELAYS_AT_ONCE: usize = 64;
/// The cost of that, in units of a [`Budget`].
const RELAYS_COST: u32 = 64;

/// The rest of long chains; only under [`CHAIN`].
static REST: SpinLock<ChainRest> = SpinLock::new(ChainRest { head: None, tail: None });
static REST_WAKER: spin::Once<Waker> = spin::Once::new();

/// Relays that are still to be woken, chained.
struct ChainRest {
    head: Option<Arc<RelayQueue>>,
    tail: Option<Arc<RelayQueue>>,
}

/// Wakes [`relay_rest`].
pub(super) fn wake_rest() {
    if let Some(waker) = REST_WAKER.get() {
        waker.wake_by_ref();
    }
}

/// The coroutine that notifies what wakes have left, and drops what queues have.
pub async fn relay_rest() {
    let mut budget = Budget::new();
    loop {
        core::future::poll_fn(|context| {
            REST_WAKER.call_once(|| context.waker().clone());
            let is_due = REST.lock().head.is_some() || forgotten::is_any();
            if is_due { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        notify_rest();
        forgotten::drop_some();
        budget.step(RELAYS_COST).await;
    }
}

fn notify_rest() {
    let mut relays = Relays { chain: Some(Chain::of_rest()), ..Relays::new() };
    relays.notify_some();
}

impl Chain {
    fn new() -> Self {
        Self { head: None, tail: None, _held: CHAIN.lock() }
    }

    /// The relays that long chains have left.
    fn of_rest() -> Self {
        let held = CHAIN.lock();
        let mut rest = REST.lock();
        let (head, tail) = (rest.head.take(), rest.tail.take());
        drop(rest);
        Self { head, tail, _held: held }
    }

    /// Leaves all relays to the coroutine. Returns whether there are any.
    fn leave_rest(&mut self) -> bool {
        let Some(head) = self.head.take() else { return false };
        let mut rest = REST.lock();
        match rest.tail.take() {
            Some(last) => *last.next.lock() = Some(head),
            None => rest.head = Some(head),
        }
        rest.tail = self.tail.take();
        true
    }

    fn add(&mut self, relay: &Arc<RelayQueue>) {
        if relay.is_chained.swap(true, Ordering::Relaxed) {
            return;
        }
        match self.tail.replace(relay.clone()) {
            Some(last) => *last.next.lock() = Some(relay.clone()),
            None => self.head = Some(relay.clone()),
        }
    }

    fn take(&mut self) -> Option<Arc<RelayQueue>> {
        let first = self.head.take()?;
        self.head = first.next.lock().take();
        if self.head.is_none() {
            self.tail = None;
        }
        first.is_chained.store(false, Ordering::Relaxed);
        Some(first)
    }
}
