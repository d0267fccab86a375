//! The lock itself: acquiring, waiting and releasing over the table.
#![allow(unsafe_code)] // Owns the nodes of its guards through raw pointers.

use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::task::{Poll, Waker};

use crate::epoch::{Context, DefaultEpoch, Epoch, OutOfMemory};
use crate::error::{LockError, TryLockError};
use crate::node::{AWAITED, CROWDED, LONE, Node, PASSING, RELEASED, SHARED, WAITING, Wait, Waiters, follow};
use crate::request::Request;
use crate::span::{Bounds, Span};
use crate::sync::{Ordering, const_fn};
use crate::table::{Arrival, Table};
use crate::wakers::{Batch, contained};

/// A node that is in the lock, and whether it is held; it waits otherwise. `None` is a refusal.
type Begun<T, P> = Result<Option<(NonNull<Node<T, P>>, bool)>, LockError>;

/// How a range is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Together with no other range that overlaps.
    Exclusive,
    /// Together with other shared ranges only.
    Shared,
}

/// Locks on ranges of `T`: any number of disjoint ones at once, overlapping ones only if all of them are shared.
///
/// Each held range carries a payload `P` that others can read, to know who holds it. `E` tells how the running
/// context finds its part in memory reclamation: the thread's own under `std`.
///
/// # Behaviour
/// - **Order.** Overlapping, conflicting requests that wait are served in the order in which they joined the queue;
///   nobody who comes later is served before. `try_lock` does not overtake a waiter that overlaps it either. A future
///   joins when it is first polled; a thread tries for a while before.
/// - **Locking twice.** The lock does not know who asks. A context that requests a range overlapping one that it
///   holds conflicts with itself: `try_lock` is refused, `lock` waits for ever, unless both are shared and no
///   exclusive request waits in between.
/// - **Panics.** A guard dropped by unwinding releases its range. There is no poisoning. A waker that panics is
///   contained (with `std`): the panic's message is printed, the others are woken, and the release goes on. A
///   comparison of keys that panics unwinds out of the operation; a release that it interrupts may leave waiters
///   asleep.
/// - **An order that contradicts itself** costs exclusion, not memory safety.
/// - **Forgetting** a guard keeps its range locked as long as the lock exists.
pub struct RangeLock<T: Ord + Copy, P: Copy = (), E: Epoch = DefaultEpoch> {
    table: Table<T, P>,
    _epoch: PhantomData<fn() -> E>,
}

// SAFETY: nodes, chunks and buckets are shared under the protocol of the table; keys and payloads are copied out
// of them by other threads, hence `Send + Sync`.
unsafe impl<T: Ord + Copy + Send + Sync, P: Copy + Send + Sync, E: Epoch> Send for RangeLock<T, P, E> {}
// SAFETY: as above.
unsafe impl<T: Ord + Copy + Send + Sync, P: Copy + Send + Sync, E: Epoch> Sync for RangeLock<T, P, E> {}

// Every step leaves the table whole, so an unwinding thread leaves nothing behind that others could trip over.
impl<T: Ord + Copy, P: Copy, E: Epoch> core::panic::RefUnwindSafe for RangeLock<T, P, E> {}
impl<T: Ord + Copy, P: Copy, E: Epoch> core::panic::UnwindSafe for RangeLock<T, P, E> {}

impl<T: Ord + Copy, P: Copy, E: Epoch> RangeLock<T, P, E> {
    /// Locks `range` exclusively if that is possible at once.
    #[inline]
    pub fn try_lock(&self, range: impl Into<Span<T>>) -> Result<crate::Guard<'_, T, P, E>, TryLockError>
    where
        P: Default,
    {
        self.request(range).try_lock()
    }

    /// Locks `range` shared if that is possible at once.
    pub fn try_lock_shared(
        &self,
        range: impl Into<Span<T>>,
    ) -> Result<crate::Guard<'_, T, P, E>, TryLockError>
    where
        P: Default,
    {
        self.request(range).shared().try_lock()
    }

    /// Locks `range` exclusively, suspending the coroutine that awaits it until that is possible.
    pub fn lock_async(&self, range: impl Into<Span<T>>) -> crate::LockFuture<&Self>
    where
        P: Default,
    {
        self.request(range).lock_async()
    }

    /// Locks `range` shared, suspending the coroutine that awaits it until that is possible.
    pub fn lock_shared_async(&self, range: impl Into<Span<T>>) -> crate::LockFuture<&Self>
    where
        P: Default,
    {
        self.request(range).shared().lock_async()
    }

    /// A request for `range`, exclusive with a default payload until told otherwise.
    #[inline]
    pub fn request(&self, range: impl Into<Span<T>>) -> Request<&Self>
    where
        P: Default,
    {
        Request::new(self, range.into(), P::default())
    }

    /// A request for `range` that others see under `payload`.
    #[inline]
    pub fn request_as(&self, range: impl Into<Span<T>>, payload: P) -> Request<&Self> {
        Request::new(self, range.into(), payload)
    }

    /// Like [`Self::request_as`], with guards and futures that keep the lock alive instead of borrowing it.
    pub fn request_owned(self: &Arc<Self>, range: impl Into<Span<T>>, payload: P) -> Request<Arc<Self>> {
        Request::new(self.clone(), range.into(), payload)
    }

    /// Makes a node and publishes it, or gives it back if it is refused.
    #[inline]
    pub(crate) fn begin(&self, span: Span<T>, payload: P, shared: bool, queue: bool) -> Begun<T, P> {
        if span.is_empty() {
            return Err(LockError::Empty);
        }
        match E::at_hand() {
            Some(context) => self.begin_with(context, span, payload, shared, queue),
            None => self.begin_afar(span, payload, shared, queue),
        }
    }

    #[inline(never)]
    fn begin_afar(&self, span: Span<T>, payload: P, shared: bool, queue: bool) -> Begun<T, P> {
        E::with(|context| self.begin_with(context, span, payload, shared, queue))?
    }

    #[inline(always)]
    fn begin_with(
        &self,
        context: Context,
        span: Span<T>,
        payload: P,
        shared: bool,
        queue: bool,
    ) -> Begun<T, P> {
        let node = Node::create(&context, Bounds::of(span), payload, shared)?;
        if self.table.insert_alone(node, shared) {
            return Ok(Some((node, true)));
        }
        match self.publish(context, node, shared, queue) {
            Ok(Arrival::Held) => Ok(Some((node, true))),
            Ok(Arrival::Queued) => Ok(Some((node, false))),
            Ok(Arrival::Refused) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    // Not inlined: the fast path's range stays in registers that way.
    #[inline(never)]
    fn publish(
        &self,
        context: Context,
        node: NonNull<Node<T, P>>,
        shared: bool,
        queue: bool,
    ) -> Result<Arrival, OutOfMemory> {
        let unpublished = Unpublished { context, nodes: &[node] };
        let arrival = self.table.insert(&context.pin(), node, shared, queue);
        core::mem::forget(unpublished);
        if matches!(arrival, Ok(Arrival::Refused) | Err(_)) {
            // SAFETY: the table did not take the node.
            unsafe { context.free(node.cast()) };
        }
        arrival
    }

    /// Looks whether a queued node is granted by now; if not, `waker` is woken when looking again makes sense.
    ///
    /// # Safety
    /// The caller owns the node, which this lock queued and which was not granted before.
    pub(crate) unsafe fn poll_queued(
        &self,
        node: NonNull<Node<T, P>>,
        waker: &Waker,
    ) -> Result<Poll<()>, OutOfMemory> {
        let outcome = E::with(|context| {
            let pin = context.pin();
            // SAFETY: the caller owns the node.
            let mine: &Node<T, P> = unsafe { follow(node.as_ptr(), PhantomData) };
            while let Some(blocker) = self.table.blocker(&pin, node)? {
                if mine.wait.load(Ordering::Relaxed).is_null() {
                    // Release: a waker reads it through the pointer.
                    mine.wait.store(Wait::create(&context)?.as_ptr(), Ordering::Release);
                }
                // SAFETY: set above, and retired with the node only.
                let wait = unsafe { &*mine.wait.load(Ordering::Relaxed) };
                let theirs = &blocker.header.state;
                // Before it is named: a release that finds one bit alone wakes the only waiter it can find. Relaxed:
                // who finds the node released looks again.
                if theirs.fetch_or(AWAITED, Ordering::Relaxed) & AWAITED != 0
                    && theirs.fetch_or(CROWDED, Ordering::Relaxed) & RELEASED != 0
                {
                    continue;
                }
                // Before it registers: a node that comes to the address of the one named before is not meant.
                wait.blocker.store(core::ptr::null_mut(), Ordering::Relaxed);
                wait.waker.register(waker);
                wait.blocker.store(blocker.header_ptr(), Ordering::Relaxed);
                // Release: the registration, for the blocker's release. Acquire: the blocker's doings, if it is gone.
                let state = theirs.fetch_or(AWAITED, Ordering::AcqRel);
                if state & RELEASED == 0 && !(mine.is_shared() && state & SHARED != 0) {
                    return Ok(Poll::Pending);
                }
            }
            mine.header.state.fetch_and(!WAITING, Ordering::Relaxed);
            Ok(Poll::Ready(take_waker(mine)))
        })?;
        // Outside of the pin: dropping a waker runs code of the executor's.
        outcome.map(|poll| poll.map(|waker| contained(|| drop(waker))))
    }

    /// Withdraws a queued node, and lets those go on that queued behind it.
    ///
    /// # Safety
    /// The caller owns the node, which this lock queued, and does not use it afterwards.
    pub(crate) unsafe fn cancel(&self, node: NonNull<Node<T, P>>) {
        // SAFETY: the caller owns the node.
        let waker = take_waker(unsafe { follow(node.as_ptr(), PhantomData) });
        // SAFETY: see the contract; for those behind, a cancelled request is a released one.
        unsafe { self.release(node) };
        contained(|| drop(waker));
    }

    /// Releases a held node. Never allocates, and searches only if someone waits for the node.
    ///
    /// # Safety
    /// The caller owns the node, which this lock granted, and does not use it afterwards.
    #[inline]
    pub(crate) unsafe fn release(&self, node: NonNull<Node<T, P>>) {
        // SAFETY: the caller owns the node.
        let (bounds, state) = unsafe { ((*node.as_ptr()).bounds, (*node.as_ptr()).state(Ordering::Relaxed)) };
        if state & LONE != 0 && self.table.remove_alone(node) {
            // SAFETY: nobody followed the node while the word was untouched, and it is out of the lock.
            let free = |context: Context| unsafe { context.free_sized(node) };
            match E::at_hand() {
                Some(context) => free(context),
                None => E::with_any(free),
            }
        } else if state & PASSING == 0 || !Self::leave(node) {
            self.wake(&bounds.span(), node, Table::release(node));
        }
    }

    /// Takes a node out of the slot that it may leave, if nobody has followed it since it went in.
    #[inline(never)]
    fn leave(node: NonNull<Node<T, P>>) -> bool {
        let leave = |context: Context| {
            // SAFETY: the caller of `release` owns the node.
            let is_out =
                unsafe { node.as_ref() }.place().is_some_and(|place| Table::leave(&context, node, place));
            context.note_passing(is_out);
            if is_out {
                // SAFETY: nobody followed the node while the slot was untouched, and it is out of the lock.
                unsafe { context.free_sized(node) };
            }
            is_out
        };
        match E::at_hand() {
            Some(context) => leave(context),
            None => E::with_any(leave),
        }
    }

    /// Lets shared requests in beside a held exclusive node.
    ///
    /// # Safety
    /// The caller owns the node, which this lock granted.
    pub(crate) unsafe fn downgrade(&self, node: NonNull<Node<T, P>>) {
        // SAFETY: the caller owns the node.
        let mine: &Node<T, P> = unsafe { follow(node.as_ptr(), PhantomData) };
        // Release: what was written under the exclusive lock. Acquire: the waiters' registrations.
        let state = mine.header.state.fetch_or(SHARED, Ordering::AcqRel);
        self.wake(&mine.bounds.span(), node, Waiters::of(state));
    }

    /// Exchanges a held node for nodes of the same mode and payload over `parts`, which lie within its range and
    /// do not overlap. On failure nothing has changed. On success `whole` is gone, and whoever waited for it is to be
    /// woken by [`Self::wake_after`] once the new nodes have their guards: waking may unwind.
    ///
    /// # Safety
    /// The caller owns `whole`, which this lock granted, and on success owns the new nodes in its place.
    pub(crate) unsafe fn divide<const N: usize>(
        &self,
        whole: NonNull<Node<T, P>>,
        parts: [Span<T>; N],
    ) -> Result<Divided<T, P, N>, LockError> {
        if parts.iter().any(Span::is_empty) {
            return Err(LockError::Empty);
        }
        E::with(|context| {
            // SAFETY: the caller owns the node.
            let (span, payload, shared) = unsafe {
                ((*whole.as_ptr()).bounds.span(), (*whole.as_ptr()).payload, (*whole.as_ptr()).is_shared())
            };
            let mut nodes = [NonNull::dangling(); N];
            let mut made = 0;
            let done = (|| {
                for part in parts {
                    nodes[made] = Node::create(&context, Bounds::of(part), payload, shared)?;
                    made += 1;
                }
                let unpublished = Unpublished { context, nodes: &nodes };
                let waiters = self.table.substitute(&context.pin(), whole, &nodes);
                core::mem::forget(unpublished);
                waiters
            })();
            match done {
                Ok(waiters) => Ok(Divided { nodes, awaited: (span, whole, waiters) }),
                Err(error) => {
                    // SAFETY: made above, and the table did not take them.
                    nodes[..made].iter().for_each(|node| unsafe { context.free(node.cast()) });
                    Err(error.into())
                }
            }
        })?
    }

    /// Wakes whoever waited for a node that was divided.
    pub(crate) fn wake_after(&self, (span, whole, waiters): Awaited<T, P>) {
        self.wake(&span, whole, waiters);
    }

    /// Wakes those who named `blocker`, whose range was `span`, as what they wait for.
    #[inline]
    fn wake(&self, span: &Span<T>, blocker: NonNull<Node<T, P>>, waiters: Waiters) {
        if waiters.are_any() {
            self.wake_some(span, blocker, waiters);
        }
    }

    #[cold]
    fn wake_some(&self, span: &Span<T>, blocker: NonNull<Node<T, P>>, waiters: Waiters) {
        let names_it = |wait: &Wait| wait.blocker.load(Ordering::Relaxed) == blocker.as_ptr().cast();
        while !self.take_wakers(span, names_it, waiters.is_one()).wake() {}
    }

    /// Takes the wakers of a few waiters in the buckets of `span`, or of only one.
    fn take_wakers(&self, span: &Span<T>, wanted: impl Fn(&Wait) -> bool, one: bool) -> Batch {
        let (mut batch, mut is_over) = (Batch::default(), false);
        E::with_any(|context| {
            let pin = context.pin();
            let walked = self.table.walk(&pin, span, false, |chunk| {
                let waiting =
                    chunk.standing(&pin).filter(|node| node.state(Ordering::Relaxed) & WAITING != 0);
                for node in waiting {
                    // Acquire: the record, which the waiter may have made since its node was found here: neither the
                    // slot nor the pin orders that.
                    let wait = NonNull::new(node.wait.load(Ordering::Acquire));
                    // SAFETY: retired with the node only, which was read under the pin.
                    let Some(wait) = wait.map(|wait| unsafe { Wait::follow(wait) }) else { continue };
                    if !wanted(wait) {
                        continue;
                    }
                    let waker = wait.waker.take();
                    // A waiter registers before it names what it waits for. If it has named another since, it is woken
                    // for nothing, and it is not the one.
                    let is_found = waker.is_some() && wanted(wait);
                    batch.add(waker);
                    if batch.is_full() || (one && is_found) {
                        is_over = one && is_found;
                        return false;
                    }
                }
                true
            });
            batch.is_last = is_over || !batch.is_full();
            debug_assert!(walked.is_ok(), "a walk that unfolds nothing allocates nothing");
        });
        batch
    }

    pub(crate) fn table(&self) -> &Table<T, P> {
        &self.table
    }
}

impl<T: Ord + Copy, P: Copy, E: Epoch> RangeLock<T, P, E> {
    const_fn! {
        /// A lock with nothing locked; takes no memory until something is.
        pub fn new() -> Self {
            Self { table: Table::new(), _epoch: PhantomData }
        }
    }
}

/// Takes out what the waiter registered, so that a retired node holds nothing that needs a destructor.
fn take_waker<T, P>(node: &Node<T, P>) -> Option<Waker> {
    // SAFETY: the wait record belongs to the node and is retired with it only.
    unsafe { node.wait.load(Ordering::Relaxed).as_ref() }.and_then(|wait| wait.waker.take())
}

/// Nodes that came of one, and what [`RangeLock::wake_after`] needs.
pub(crate) struct Divided<T, P, const N: usize> {
    pub(crate) nodes: [NonNull<Node<T, P>>; N],
    pub(crate) awaited: Awaited<T, P>,
}

/// The range and the address of a node that is gone, and who waited for it.
type Awaited<T, P> = (Span<T>, NonNull<Node<T, P>>, Waiters);

/// Frees the caller's own nodes if a comparison of keys unwinds before they are published. None is made after that:
/// what follows an exchange of the table compares pointers and states.
struct Unpublished<'a, T, P> {
    context: Context,
    nodes: &'a [NonNull<Node<T, P>>],
}

impl<T, P> Drop for Unpublished<'_, T, P> {
    fn drop(&mut self) {
        // SAFETY: the caller owns the nodes, and the table does not have them.
        self.nodes.iter().for_each(|node| unsafe { self.context.free(node.cast()) });
    }
}

impl<T: Ord + Copy, P: Copy, E: Epoch> Default for RangeLock<T, P, E> {
    fn default() -> Self {
        Self::new()
    }
}

/// Lists who holds and who waits for what.
impl<T: Ord + Copy + fmt::Debug, P: Copy + fmt::Debug, E: Epoch> fmt::Debug for RangeLock<T, P, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("RangeLock");
        match self.holders() {
            Ok(holders) => fields.field("holders", &holders).finish(),
            Err(_) => fields.finish_non_exhaustive(),
        }
    }
}

impl<T: Ord + Copy, P: Copy, E: Epoch> Drop for RangeLock<T, P, E> {
    fn drop(&mut self) {
        // Forgotten futures leave their wakers behind. Dropped outside of the pin.
        while !self.take_wakers(&Span::from(..), |_| true, false).clear() {}
        // SAFETY: guards and futures borrow the lock or keep it alive, and raw handles end with it by contract.
        E::with_any(|context| unsafe { self.table.clear(&context) });
    }
}
