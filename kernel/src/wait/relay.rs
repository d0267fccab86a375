//! Queues that are woken because another was: those of epoll instances, and groups of a queue's own watches.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use core::task::{Poll, Waker};

use crate::error::Errno;
use crate::memory::fallible;
use crate::sched::Budget;
use crate::sync::{SpinGuard, SpinLock};
use crate::wait::forgotten;
use crate::wait::node::WaitNode;
use crate::wait::queue::{Events, FOR_ALL, WaitEntry, WaitQueue, Watch};

/// A queue that is woken because another one was.
pub struct RelayQueue {
    queue: WaitQueue,
    /// The next to wake; only under [`CHAIN`].
    next: SpinLock<Option<Arc<RelayQueue>>>,
    is_chained: AtomicBool,
    /// See [`RelayQueue::place`].
    place: AtomicU8,
    group: Option<RelayedGroup>,
}

/// The part of a queue that is a group of the watches of another one.
struct RelayedGroup {
    /// The events that the group is to be told of.
    pending: AtomicU32,
    /// The events of which one exclusive watch of any group is to be told: the groups of a queue share it, and each
    /// leaves it to the next unless it has a watch behind which somebody waits.
    turn: Arc<AtomicU32>,
    is_exclusive: bool,
    /// All of its watches have gone, and no others will come.
    is_over: AtomicBool,
}

/// The events of a relay that is no group.
pub(super) const RELAYED: Events = Events::IN.union(Events::RDNORM);

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
            place: AtomicU8::new(WaitNode::PLACE_ORDINARY),
            group: None,
        })
    }

    /// A group with room for the watches of `members`, of the same queue as a sibling.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn group(
        members: Vec<WaitEntry>,
        is_exclusive: bool,
        sibling: Option<&Self>,
    ) -> Result<Arc<Self>, Errno> {
        let turn = match sibling.and_then(|sibling| sibling.group.as_ref()) {
            Some(sibling) => sibling.turn.clone(),
            None => fallible::try_arc(AtomicU32::new(0))?,
        };
        let (pending, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
        fallible::try_arc(Self {
            queue: WaitQueue::of(members),
            next: SpinLock::new(None),
            is_chained: AtomicBool::new(false),
            place: AtomicU8::new(WaitNode::PLACE_ORDINARY),
            group: Some(RelayedGroup { pending, turn, is_exclusive, is_over }),
        })
    }

    /// Takes a watch into a group that has room for it.
    pub(super) fn take_in(&mut self, entry: WaitEntry) {
        self.queue.take_in(entry);
    }

    /// Whether it is a group.
    pub(super) const fn is_group(&self) -> bool {
        self.group.is_some()
    }

    /// Whether all watches of a group have gone.
    pub(super) fn is_over(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.is_over.load(Ordering::Acquire))
    }

    /// Drops the stale watches of a group.
    pub(super) fn drop_stale(&self) {
        if self.queue.drop_stale()
            && let Some(group) = &self.group
        {
            group.is_over.store(true, Ordering::Release);
        }
    }

    /// Notes what a group is to be told of when it has its turn. Of two events before that one exclusive watch is told:
    /// it finds what both have brought.
    pub(super) fn note(&self, events: Events) {
        if let Some(group) = &self.group {
            let one_takes = group.is_exclusive && !events.intersects(FOR_ALL);
            let noted = if one_takes { &*group.turn } else { &group.pending };
            noted.fetch_or(events.bits(), Ordering::AcqRel);
        }
    }

    /// Whether somebody waits for what is relayed. It is not known of a group.
    pub(super) fn has_waiter(&self) -> bool {
        !self.is_group() && !self.queue.is_idle()
    }

    /// Where the one stood who began to wait for what is relayed last.
    pub(super) fn place(&self) -> u8 {
        self.place.load(Ordering::Relaxed)
    }

    /// Notifies the watches; under [`CHAIN`].
    fn notify(&self, relays: &mut Relays) {
        let Some(group) = &self.group else {
            self.queue.notify(RELAYED, relays);
            return;
        };
        let events = Events::from_bits_retain(group.pending.swap(0, Ordering::AcqRel));
        if !events.is_empty() {
            self.queue.notify(events, relays);
        }
        if group.is_exclusive {
            let turn = Events::from_bits_retain(group.turn.swap(0, Ordering::AcqRel));
            if !turn.is_empty() && !self.queue.notify_one(turn, relays) {
                group.turn.fetch_or(turn.bits(), Ordering::AcqRel);
            }
        }
        if self.queue.is_empty() {
            group.is_over.store(true, Ordering::Release);
        }
    }

    /// As [`WaitQueue::notify_waiters`]; `false` for a group too.
    fn notify_waiters(&self) -> bool {
        !self.is_group() && self.queue.notify_waiters()
    }

    /// As [`WaitQueue::watch_to_take`].
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch(&self, watch: &Watch, events: Events) -> Result<(), Errno> {
        if let Some(place) = watch.place() {
            self.place.store(place, Ordering::Relaxed);
        }
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
pub(super) struct Relays {
    few: [Option<Arc<RelayQueue>>; Self::FEW],
    chain: Option<Chain>,
    /// Watches that are still to be looked at in this go.
    left: usize,
}

/// Relays in the order in which they are to be woken.
struct Chain {
    head: Option<Arc<RelayQueue>>,
    tail: Option<Arc<RelayQueue>>,
    _held: SpinGuard<'static, ()>,
}

impl Relays {
    const FEW: usize = 2;

    pub(super) const fn new() -> Self {
        Self { few: [const { None }; Self::FEW], chain: None, left: WATCHES_AT_ONCE }
    }

    /// So many watches are looked at.
    #[inline]
    pub(super) const fn spend(&mut self, watches: usize) {
        self.left = self.left.saturating_sub(watches);
    }

    pub(super) fn add(&mut self, relay: &Arc<RelayQueue>) {
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
    pub(super) fn wake(self) {
        if self.few[0].is_some() {
            self.wake_all();
        }
    }

    fn wake_all(mut self) {
        let few = core::mem::replace(&mut self.few, [const { None }; Self::FEW]);
        for relay in few.into_iter().flatten() {
            if self.chain.is_none() {
                if relay.notify_waiters() {
                    continue;
                }
                // Another instance watches this one, or it is a group.
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
        while self.left > 0 {
            let Some(relay) = self.chain.as_mut().and_then(Chain::take) else { return false };
            relay.notify(self);
            self.spend(1);
        }
        self.chain.as_mut().is_some_and(Chain::leave_rest)
    }
}

/// Watches and relays that are notified in one go, about: a group or a queue is walked whole.
const WATCHES_AT_ONCE: usize = 64;
/// The cost of that, in units of a [`Budget`].
const WATCHES_COST: u32 = 64;

/// The rest of long chains; only under [`CHAIN`].
static REST: SpinLock<ChainRest> = SpinLock::new(ChainRest { head: None, tail: None });
static REST_WAKER: spin::Once<Waker> = spin::Once::new();
/// Wakes have left some, which may be in the midst of being notified. Written under [`CHAIN`].
static IS_BEHIND: AtomicBool = AtomicBool::new(false);

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
        budget.step(WATCHES_COST).await;
    }
}

fn notify_rest() {
    let mut relays = Relays { chain: Some(Chain::of_rest()), ..Relays::new() };
    if !relays.notify_some() {
        IS_BEHIND.store(false, Ordering::Release);
    }
}

/// Whether some who watch have not been told yet of what has happened before.
pub fn is_behind() -> bool {
    IS_BEHIND.load(Ordering::Acquire)
}

/// Tells some of them. For a call whose answer rests on what has been told.
pub fn catch_up() {
    notify_rest();
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
        IS_BEHIND.store(true, Ordering::Release);
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
