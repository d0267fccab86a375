//! Requests, guards and the future: the safe face of an acquisition.
#![allow(unsafe_code)] // A guard vouches that it owns its node.

use alloc::sync::Arc;
use core::fmt;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::pin::Pin;
use core::ptr::{self, NonNull};
use core::task::{Context, Poll};

use crate::epoch::{DefaultEpoch, Epoch};
use crate::error::{LockError, TryLockError};
use crate::lock::{Mode, RangeLock};
use crate::node::Node;
use crate::span::Span;

/// A handle to a lock: a reference, or an [`Arc`].
pub trait Handle: Deref<Target = RangeLock<Self::Key, Self::Payload, Self::Epoch>> + sealed::Sealed {
    /// The type of the ranges' bounds.
    type Key: Ord + Copy;
    /// The type of the value that every held range carries.
    type Payload: Copy;
    /// Where participants in reclamation come from.
    type Epoch: Epoch;
}

mod sealed {
    use crate::{Epoch, RangeLock};

    pub trait Sealed {}

    impl<T: Ord + Copy, P: Copy, E: Epoch> Sealed for &RangeLock<T, P, E> {}
    impl<T: Ord + Copy, P: Copy, E: Epoch> Sealed for alloc::sync::Arc<RangeLock<T, P, E>> {}
}

impl<T: Ord + Copy, P: Copy, E: Epoch> Handle for &RangeLock<T, P, E> {
    type Key = T;
    type Payload = P;
    type Epoch = E;
}

impl<T: Ord + Copy, P: Copy, E: Epoch> Handle for Arc<RangeLock<T, P, E>> {
    type Key = T;
    type Payload = P;
    type Epoch = E;
}

type NodeOf<L> = NonNull<Node<<L as Handle>::Key, <L as Handle>::Payload>>;

/// A range that is to be locked.
#[must_use = "a request does nothing until it is told how to acquire"]
pub struct Request<L: Handle> {
    lock: L,
    span: Span<L::Key>,
    payload: L::Payload,
    shared: bool,
}

impl<L: Handle> Request<L> {
    #[inline]
    pub(crate) fn new(lock: L, span: Span<L::Key>, payload: L::Payload) -> Self {
        Self { lock, span, payload, shared: false }
    }

    /// Asks for the range together with others who ask for it shared.
    #[inline]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Locks the range if that is possible at once.
    #[inline]
    pub fn try_lock(self) -> Result<RangeGuard<L>, TryLockError> {
        match self.lock.begin(self.span, self.payload, self.shared, false)? {
            Some((node, _)) => Ok(RangeGuard { node, lock: self.lock }),
            None => Err(TryLockError::Conflict),
        }
    }

    /// [`Self::try_lock`] for a request that is still needed after a conflict, which is `None`; [`Self::granted`] makes
    /// the guard.
    #[cfg(all(feature = "std", not(heddle_loom)))]
    pub(crate) fn try_again(&self) -> Result<Option<NodeOf<L>>, LockError> {
        Ok(self.lock.begin(self.span, self.payload, self.shared, false)?.map(|(node, _)| node))
    }

    /// The guard of a node that this request was granted.
    #[cfg(all(feature = "std", not(heddle_loom)))]
    pub(crate) fn granted(self, node: NodeOf<L>) -> RangeGuard<L> {
        RangeGuard { node, lock: self.lock }
    }

    /// Locks the range as soon as the returned future is polled and nobody else is in the way. Dropping the future
    /// before withdraws the request.
    pub fn lock_async(self) -> LockFuture<L> {
        LockFuture { request: Some(self), node: None }
    }
}

impl<L: Handle> fmt::Debug for Request<L>
where
    L::Key: fmt::Debug,
    L::Payload: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("range", &self.span)
            .field("mode", &if self.shared { Mode::Shared } else { Mode::Exclusive })
            .field("payload", &self.payload)
            .finish()
    }
}

/// A locked range; unlocked on drop.
#[must_use = "the range is unlocked when the guard is dropped"]
pub struct RangeGuard<L: Handle> {
    node: NodeOf<L>,
    lock: L,
}

/// A locked range that borrows its lock.
pub type Guard<'a, T, P = (), E = DefaultEpoch> = RangeGuard<&'a RangeLock<T, P, E>>;
/// A locked range that keeps its lock alive.
pub type OwnedGuard<T, P = (), E = DefaultEpoch> = RangeGuard<Arc<RangeLock<T, P, E>>>;

// SAFETY: a guard may be released by any thread; what it leads to is `Send + Sync` if keys and payloads are.
unsafe impl<L: Handle + Send> Send for RangeGuard<L>
where
    L::Key: Send + Sync,
    L::Payload: Send + Sync,
{
}
// SAFETY: a shared guard only reads its node's immutable fields.
unsafe impl<L: Handle + Sync> Sync for RangeGuard<L>
where
    L::Key: Send + Sync,
    L::Payload: Send + Sync,
{
}

impl<L: Handle> RangeGuard<L> {
    fn node(&self) -> &Node<L::Key, L::Payload> {
        // SAFETY: the guard owns its node until it is dropped.
        unsafe { self.node.as_ref() }
    }

    /// The locked range.
    pub fn range(&self) -> Span<L::Key> {
        self.node().bounds.span()
    }

    /// How it is locked.
    pub fn mode(&self) -> Mode {
        if self.node().is_shared() { Mode::Shared } else { Mode::Exclusive }
    }

    /// The holder's payload, as others see it.
    pub fn payload(&self) -> L::Payload {
        self.node().payload
    }

    /// Lets shared requests in. They see all writes made under the exclusive lock; waiting exclusive
    /// requests go on waiting.
    pub fn downgrade(&mut self) {
        // SAFETY: the guard owns its node.
        unsafe { self.lock.downgrade(self.node) }
    }

    /// Unlocks everything outside of `range`, which must lie within the locked range.
    ///
    /// # Errors
    /// [`LockError::Empty`] if `range` is empty or not within; nothing is changed then, nor if memory runs out.
    pub fn shrink(&mut self, range: impl Into<Span<L::Key>>) -> Result<(), LockError> {
        let range = range.into();
        if !self.range().covers(&range) {
            return Err(LockError::Empty);
        }
        // SAFETY: the guard owns its node, and takes over the new one.
        let divided = unsafe { self.lock.divide(self.node, [range])? };
        [self.node] = divided.nodes;
        self.lock.wake_after(divided.awaited);
        Ok(())
    }

    /// Parts the guard in two at `key`, which must lie behind the range's first key and before its end.
    ///
    /// # Errors
    /// Gives the guard back unchanged if a part would be empty, or if memory runs out.
    pub fn split(mut self, key: L::Key) -> Result<(Self, Self), (Self, LockError)>
    where
        L: Clone,
    {
        let Span { start, end } = self.range();
        let parts = [Span { start, end: Some(key) }, Span { start: Some(key), end }];
        if !parts.iter().all(|part| self.range().covers(part)) {
            return Err((self, LockError::Empty));
        }
        // SAFETY: the guard owns its node, and gives it up for the new ones.
        match unsafe { self.lock.divide(self.node, parts) } {
            Ok(divided) => {
                let [lower, upper] = divided.nodes;
                self.node = lower;
                let other = Self { node: upper, lock: self.lock.clone() };
                self.lock.wake_after(divided.awaited);
                Ok((self, other))
            }
            Err(error) => Err((self, error)),
        }
    }

    /// The node and the handle, without unlocking.
    pub(crate) fn into_parts(self) -> (NodeOf<L>, L) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so the handle is moved out once.
        (this.node, unsafe { ptr::read(&this.lock) })
    }

    /// A guard that owns `node` from now on.
    pub(crate) fn from_parts(node: NodeOf<L>, lock: L) -> Self {
        Self { node, lock }
    }
}

impl<L: Handle> Drop for RangeGuard<L> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard owns its node, and is gone afterwards.
        unsafe { self.lock.release(self.node) }
    }
}

impl<L: Handle> fmt::Debug for RangeGuard<L>
where
    L::Key: fmt::Debug,
    L::Payload: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeGuard")
            .field("range", &self.range())
            .field("mode", &self.mode())
            .field("payload", &self.payload())
            .finish()
    }
}

/// A request that is being waited for. Resolves to the guard, or to why there will be none.
#[must_use = "futures do nothing unless polled"]
pub struct LockFuture<L: Handle> {
    /// Taken when the future resolves.
    request: Option<Request<L>>,
    /// The queued node, once there is one.
    node: Option<NodeOf<L>>,
}

// SAFETY: as for the guard: the node may be polled, granted and withdrawn by any thread.
unsafe impl<L: Handle + Send> Send for LockFuture<L>
where
    L::Key: Send + Sync,
    L::Payload: Send + Sync,
{
}

impl<L: Handle> Unpin for LockFuture<L> {}

impl<L: Handle> fmt::Debug for LockFuture<L>
where
    L::Key: fmt::Debug,
    L::Payload: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockFuture")
            .field("request", &self.request)
            .field("is_queued", &self.node.is_some())
            .finish()
    }
}

impl<L: Handle> LockFuture<L> {
    /// Withdraws the request if it is queued, and hands it back.
    fn withdraw(&mut self) -> Option<Request<L>> {
        let request = self.request.take()?;
        if let Some(node) = self.node.take() {
            // SAFETY: the future owns the queued node and has just forgotten it.
            unsafe { request.lock.cancel(node) }
        }
        Some(request)
    }
}

impl<L: Handle> Future for LockFuture<L> {
    type Output = Result<RangeGuard<L>, LockError>;

    /// # Panics
    /// If polled again after it has resolved.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.node.is_none()
            && let Some(outcome) = this.arrive()
        {
            return Poll::Ready(outcome);
        }
        let request = this.request.as_ref().expect("polled after it resolved");
        let Some(node) = this.node else { unreachable!("a request that has arrived has a node") };
        // SAFETY: the future owns the queued node.
        match unsafe { request.lock.poll_queued(node, context.waker()) } {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(this.granted(node)),
            Err(error) => {
                this.withdraw();
                Poll::Ready(Err(error.into()))
            }
        }
    }
}

impl<L: Handle> LockFuture<L> {
    /// Queues the request; `Some` if that already decides it.
    ///
    /// # Panics
    /// If the request was decided before.
    pub(crate) fn arrive(&mut self) -> Option<Result<RangeGuard<L>, LockError>> {
        let request = self.request.as_ref().expect("polled after it resolved");
        match request.lock.begin(request.span, request.payload, request.shared, true) {
            Ok(Some((node, true))) => Some(self.granted(node)),
            Ok(Some((node, false))) => {
                self.node = Some(node);
                None
            }
            // A request that queues is not refused.
            Ok(None) => None,
            Err(error) => {
                self.request = None;
                Some(Err(error))
            }
        }
    }

    fn granted(&mut self, node: NodeOf<L>) -> Result<RangeGuard<L>, LockError> {
        self.node = None;
        let request = self.request.take().ok_or(LockError::Empty)?;
        Ok(RangeGuard { node, lock: request.lock })
    }
}

impl<L: Handle> Drop for LockFuture<L> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
