//! The waiter's part of a wait.
//!
//! Every wait has a kind. An interruptible wait ends with [`Interrupted`] when a signal is to be delivered to the
//! thread, a killable one only when the thread is to die, an uninterruptible one never. An asynchronous request knows
//! no signals; its cancellation ends interruptible waits, and the end of its process killable ones too. Nothing drops a
//! future that waits: the wait returns, and the call decides what to report (a partial count, `EINTR`, one of the
//! restart codes of [`Errno`]).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use core::task::Waker;

use crate::error::Errno;
use crate::memory::fallible;
use crate::wait::queue::Watch;

/// Events that end a wait early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// Nothing.
    Uninterruptible,
    /// The thread's death.
    Killable,
    /// A signal.
    Interruptible,
}

/// The wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl From<Interrupted> for Errno {
    /// The usual answer of a call that a signal interrupted: restart if the handler says so.
    fn from(_: Interrupted) -> Self {
        Self::ERESTARTSYS
    }
}

/// A waiter: it has one node, and something may end its waits.
pub trait Waiter: Send + Sync {
    /// Its node.
    fn node(&self) -> &Arc<WaitNode>;

    /// Whether a wait of this kind has to end.
    fn is_interrupted(&self, kind: WaitKind) -> bool;

    /// Whether nobody wants the result of its interruptible waits any more. A signal ends a wait that has no answer;
    /// this one ends also a wait whose answer has just come, because that is left to others.
    fn is_withdrawn(&self) -> bool {
        false
    }

    /// A level that it has lent: dropping this takes it back.
    type Donation: Send;

    /// It waits for what a thread does, and lends that its level if it has one to lend.
    fn donate(&self, server: AwaitedThread) -> Option<Self::Donation>;
}

/// The generation of a node that waits for nothing is even, of one that waits odd.
const WAITING: u32 = 1;

/// A wait queue's view of a waiter: how to wake it, and whether it still waits.
///
/// A thread, a request and a waiting coroutine of the kernel have one each, whatever the number of queues they are in.
/// A queue that is never walked again keeps the node and nothing else of its waiter.
pub struct WaitNode {
    waker: spin::Once<Waker>,
    generation: AtomicU32,
    /// The last wake was meant for one waiter of several: see [`WaitNode::take_turn`].
    has_turn: AtomicBool,
    /// A queue has woken it since [`WaitNode::begin_in_steps`].
    was_woken: AtomicBool,
    /// It is more urgent than ordinary threads, so that it matters whom it waits for.
    is_urgent: AtomicBool,
    /// See [`WaitNode::place`].
    place: AtomicU8,
    /// Whom it waits for, if it is urgent: the mark of an [`AwaitedThread`], 0 for nobody known, with [`CHOSEN`].
    awaited: AtomicU64,
    /// It has lent its level, which the wake takes back.
    lends: AtomicBool,
}

/// The hook that is called when a waiter that lends its level is woken, perhaps with a queue locked.
static TAKE_BACK: spin::Once<fn(&WaitNode)> = spin::Once::new();

/// Has `hook` called when a waiter that lends its level is woken. It must not wait, allocate or free.
pub fn set_take_back(hook: fn(&WaitNode)) {
    TAKE_BACK.call_once(|| hook);
}

/// A thread's number in the first namespace, in the lower half, and one that no later thread of that number has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadMark(pub u64);

impl ThreadMark {
    /// No thread.
    pub const NOBODY: Self = Self(0);

    /// The mark of a thread; `serial` counts those that have been made.
    #[must_use]
    pub const fn new(tid: i32, serial: u32) -> Self {
        Self((serial as u64) << 32 | tid.unsigned_abs() as u64)
    }

    /// The thread's number.
    #[must_use]
    pub const fn tid(self) -> i32 {
        self.0 as u32 as i32
    }
}

/// Beside a mark, whose lower half is a positive number: the waiter chose whom it asks.
const CHOSEN: u64 = 1 << 31;

/// A thread that has to do something before a wait ends, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedThread {
    /// Its mark.
    pub mark: ThreadMark,
    /// The waiter chose whom it asks, as a client does by connect(2). If not, only a thread of the same user counts.
    pub is_chosen: bool,
}

impl WaitNode {
    /// The first place that is not a realtime thread's.
    pub const PLACE_SHARED: u8 = 100;
    /// The place of a thread with a nice value of 0.
    pub const PLACE_ORDINARY: u8 = 120;

    /// The node of a waiter whose coroutine has not run yet.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>, Errno> {
        let (waker, generation) = (spin::Once::new(), AtomicU32::new(0));
        let (has_turn, was_woken) = (AtomicBool::new(false), AtomicBool::new(false));
        let (is_urgent, awaited, lends) = (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::new(false));
        let place = AtomicU8::new(Self::PLACE_ORDINARY);
        fallible::try_arc(Self { waker, generation, has_turn, was_woken, is_urgent, place, awaited, lends })
    }

    /// Says how the waiter is woken: its coroutine calls this in each poll, and the first counts.
    #[inline]
    pub fn set_waker(&self, waker: &Waker) {
        self.waker.call_once(|| waker.clone());
    }

    /// The waiter's waker, once its coroutine has run.
    pub fn waker(&self) -> Option<&Waker> {
        self.waker.get()
    }

    /// Makes the waiter's coroutine ready. Before its first turn it is ready anyway.
    #[inline]
    pub fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// As [`WaitNode::wake`], by a queue or in place of one: [`WaitNode::was_woken`] tells of it.
    #[inline]
    pub fn wake_from_queue(&self) {
        // The waiter sees it in the turn that the wake brings, or in a later one.
        self.was_woken.store(true, Ordering::Release);
        if self.lends() {
            self.take_back();
        }
        self.wake();
    }

    /// Says whether the waiter lends its level.
    pub fn set_lends(&self, lends: bool) {
        self.lends.store(lends, Ordering::Release);
    }

    /// Whether the waiter lends its level to whom it waits for.
    #[inline]
    pub fn lends(&self) -> bool {
        self.lends.load(Ordering::Relaxed)
    }

    /// Whoever wakes the waiter has done what it was lent a level for, and goes on without it.
    #[cold]
    fn take_back(&self) {
        if self.lends.swap(false, Ordering::AcqRel)
            && let Some(hook) = TAKE_BACK.get()
        {
            hook(self);
        }
    }

    /// As [`WaitNode::begin`], for a waiter that gives way while it registers: a wake that comes meanwhile is noted,
    /// because the turn that it brings may be one of those.
    pub fn begin_in_steps(self: &Arc<Self>) -> Watch {
        self.was_woken.store(false, Ordering::Relaxed);
        self.begin()
    }

    /// Whether a queue has woken the waiter since [`WaitNode::begin_in_steps`].
    pub fn was_woken(&self) -> bool {
        self.was_woken.load(Ordering::Acquire)
    }

    /// Starts a wait on any number of queues; ends the one before.
    pub fn begin(self: &Arc<Self>) -> Watch {
        let generation = self.generation.load(Ordering::Relaxed);
        let next = (generation | WAITING).wrapping_add(2);
        self.generation.store(next, Ordering::Release);
        Watch::new(self.clone(), next)
    }

    /// Says whether it matters whom the waiter waits for.
    pub fn set_urgent(&self, is_urgent: bool) {
        self.is_urgent.store(is_urgent, Ordering::Relaxed);
    }

    /// Says where the waiter stands among those who wait for the same.
    pub fn set_place(&self, place: u8) {
        self.place.store(place, Ordering::Relaxed);
    }

    /// Where the waiter stands among those who wait for the same, as Linux counts priorities: the smaller goes first.
    /// Realtime priority 99 is 0, and 1 is 98; from [`WaitNode::PLACE_SHARED`] on are nice values, -20 to 19.
    pub(super) fn place(&self) -> u8 {
        self.place.load(Ordering::Relaxed)
    }

    /// Whether it matters.
    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent.load(Ordering::Relaxed)
    }

    /// The wait that is under way is for what a thread does. The first counts, of several that it may be.
    pub(super) fn set_awaited(&self, thread: AwaitedThread) {
        if self.awaited.load(Ordering::Relaxed) == 0 {
            let chosen = if thread.is_chosen { CHOSEN } else { 0 };
            self.awaited.store(thread.mark.0 | chosen, Ordering::Relaxed);
        }
    }

    /// The thread that the wait under way is for.
    #[inline]
    pub(super) fn awaited(&self) -> Option<AwaitedThread> {
        match self.awaited.load(Ordering::Relaxed) {
            0 | CHOSEN => None,
            word => Some(AwaitedThread { mark: ThreadMark(word & !CHOSEN), is_chosen: word & CHOSEN != 0 }),
        }
    }

    /// Ends the wait: registrations that are left in queues are stale from here on.
    pub fn end(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store((generation | WAITING).wrapping_add(1), Ordering::Release);
        self.awaited.store(0, Ordering::Relaxed);
    }

    /// The generation of the wait that is under way; registrations of any other are stale.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The next wake is for this waiter while others wait for the same.
    pub(super) fn give_turn(&self) {
        self.has_turn.store(true, Ordering::Release);
        // Before the look whether it still waits, as the waiter's fence is after the end of its wait: one of the two
        // sees the other.
        fence(Ordering::SeqCst);
    }

    /// Whether this waiter was woken in place of others ([`Watch::exclusive_if`]). It then has to wake the next of them
    /// when it leaves something, which [`Watch::pass_on`] does: what it was woken for may be more than it takes, and
    /// it may take nothing, because a signal ended its wait too.
    pub fn take_turn(&self) -> bool {
        fence(Ordering::SeqCst);
        self.has_turn.load(Ordering::Relaxed) && self.has_turn.swap(false, Ordering::AcqRel)
    }
}
