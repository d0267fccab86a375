//! One acquisition: its range, its state, its payload.
#![allow(unsafe_code)] // Nodes live in raw blocks that the epoch module recycles.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use crate::epoch::{Context, Header, OutOfMemory};
use crate::span::Bounds;
use crate::sync::{AtomicPtr, AtomicWaker, Ordering};

/// Not yet granted: it waits for conflicting nodes that arrived earlier.
pub(crate) const WAITING: u32 = 1;
/// Released, or cancelled while it waited. The last bit ever to be set; nothing is cleared after it.
pub(crate) const RELEASED: u32 = 2;
/// Compatible with other shared nodes.
pub(crate) const SHARED: u32 = 4;
/// Some waiter named this node as what it waits for.
pub(crate) const AWAITED: u32 = 8;
/// Another one did, or the same one again: set by whoever finds [`AWAITED`] set.
pub(crate) const CROWDED: u32 = 32;
/// Went into an empty lock by the fast path; read and written by the owner alone.
pub(crate) const LONE: u32 = 16;
/// Went into a slot that it may leave again, of the chunk that `wait` names; read and written by the owner alone.
pub(crate) const PASSING: u32 = 64;
/// The bits from here on are the slot, with [`PASSING`].
const SLOT_SHIFT: u32 = 8;

/// A request for a range, from its arrival to its release. `bounds` and `payload` never change once it is published.
#[repr(C)]
pub(crate) struct Node<T, P> {
    /// `header.state` holds the bits above.
    pub(crate) header: Header,
    pub(crate) bounds: Bounds<T>,
    /// Null unless the node ever had to wait. With [`PASSING`] the owner's note instead, see there.
    pub(crate) wait: AtomicPtr<Wait>,
    pub(crate) payload: P,
}

/// The part of a node that only waiting ones need.
#[repr(C)]
pub(crate) struct Wait {
    header: Header,
    pub(crate) waker: AtomicWaker,
    /// The node this one waits for; compared, never followed.
    pub(crate) blocker: AtomicPtr<Header>,
}

impl<T: Ord + Copy, P: Copy> Node<T, P> {
    const FITS: () =
        assert!(align_of::<Self>() <= 64, "keys and payloads may be aligned to a cache line at most");

    /// A node of the caller's own; nobody sees it yet.
    #[inline]
    pub(crate) fn create(
        context: &Context,
        bounds: Bounds<T>,
        payload: P,
        shared: bool,
    ) -> Result<NonNull<Self>, OutOfMemory> {
        let () = Self::FITS;
        let block = context.alloc(size_of::<Self>())?;
        let node = block.cast::<Self>();
        let raw = node.as_ptr();
        // SAFETY: the block is ours, large enough and aligned; the header is already written, and the projections
        // stay inside the block.
        unsafe {
            (&raw mut (*raw).bounds.start).write(bounds.start);
            (&raw mut (*raw).bounds.end).write(bounds.end);
            (&raw mut (*raw).bounds.open).write(bounds.open);
            (&raw mut (*raw).wait).write(AtomicPtr::new(ptr::null_mut()));
            (&raw mut (*raw).payload).write(payload);
            (*raw).header.state.store(if shared { SHARED } else { 0 }, Ordering::Relaxed);
        }
        Ok(node)
    }

    /// Whether a request for (`span`, `shared`) must wait for this node. Acquire: what the holder of a released
    /// node wrote is seen by whoever goes on because it is released.
    #[inline]
    pub(crate) fn blocks(&self, shared: bool) -> bool {
        let state = self.state(Ordering::Acquire);
        state & RELEASED == 0 && !(shared && state & SHARED != 0)
    }

    /// Whether the node overlaps a request and stands in its way.
    #[inline]
    pub(crate) fn conflicts(&self, bounds: &Bounds<T>, shared: bool) -> bool {
        self.bounds.overlaps(bounds) && self.blocks(shared)
    }

    /// Whether the node is neither released nor cancelled.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.state(Ordering::Acquire) & RELEASED == 0
    }

    /// The node's address, to compare.
    pub(crate) fn header_ptr(&self) -> *mut Header {
        ptr::from_ref(self).cast_mut().cast()
    }

    #[inline]
    pub(crate) fn state(&self, order: Ordering) -> u32 {
        self.header.state.load(order)
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.state(Ordering::Relaxed) & SHARED != 0
    }

    /// Before the node is published in a slot that it may leave again, in an epoch in which the chunk was current.
    #[inline]
    pub(crate) fn arrive_passing(&self, chunk: NonNull<Header>, slot: usize, epoch: usize, shared: bool) {
        self.wait.store(chunk.as_ptr().cast(), Ordering::Relaxed);
        self.header.note(epoch);
        let mode = if shared { SHARED } else { 0 };
        self.header.state.store(mode | PASSING | (slot as u32) << SLOT_SHIFT, Ordering::Relaxed);
    }

    /// The chunk and the slot that the owner's node went into as one that may leave, and the epoch.
    #[inline]
    pub(crate) fn place(&self) -> Option<(NonNull<Header>, usize, usize)> {
        let chunk = NonNull::new(self.wait.load(Ordering::Relaxed).cast())?;
        Some((chunk, (self.state(Ordering::Relaxed) >> SLOT_SHIFT) as usize, self.header.noted()))
    }

    /// Takes back what the owner noted: the node stays where it is, or has not gone anywhere.
    #[inline]
    pub(crate) fn settle(&self) {
        self.wait.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// The record that the node needed to wait, to be freed with it.
    pub(crate) fn wait_record(&self) -> Option<NonNull<Wait>> {
        let is_note = self.state(Ordering::Relaxed) & PASSING != 0;
        NonNull::new(self.wait.load(Ordering::Relaxed)).filter(|_| !is_note)
    }

    /// Before the node is published: whether it arrives as a waiter.
    #[inline]
    pub(crate) fn arrive(&self, waiting: bool) {
        let state = self.state(Ordering::Relaxed) & SHARED;
        self.header.state.store(if waiting { state | WAITING } else { state }, Ordering::Relaxed);
    }
}

/// The waiter that is to be woken, by a node's state at its release.
#[derive(Clone, Copy)]
pub(crate) struct Waiters(u32);

impl Waiters {
    #[inline]
    pub(crate) fn of(state: u32) -> Self {
        Self(state)
    }

    /// Whether anyone waits for the node.
    #[inline]
    pub(crate) fn are_any(self) -> bool {
        self.0 & AWAITED != 0
    }

    /// Whether one waiter at most has named it.
    pub(crate) fn is_one(self) -> bool {
        self.0 & CROWDED == 0
    }
}

impl Wait {
    /// Follows a node's wait record.
    ///
    /// # Safety
    /// The node was read under a pin that outlives `'g`.
    pub(crate) unsafe fn follow<'g>(wait: NonNull<Self>) -> &'g Self {
        // SAFETY: see the contract: the record is retired with the node only.
        let wait: &Self = unsafe { &*wait.as_ptr() };
        #[cfg(heddle_loom)]
        wait.header.contents.with(|_| ());
        wait
    }

    pub(crate) fn create(context: &Context) -> Result<NonNull<Self>, OutOfMemory> {
        let wait = context.alloc(size_of::<Self>())?.cast::<Self>();
        let raw = wait.as_ptr();
        // SAFETY: as in `Node::create`.
        unsafe {
            (&raw mut (*raw).waker).write(AtomicWaker::new());
            (&raw mut (*raw).blocker).write(AtomicPtr::new(ptr::null_mut()));
        }
        Ok(wait)
    }
}

/// Follows a node pointer for as long as a pin lasts.
///
/// # Safety
/// The pointer was read from the table under a pin that outlives `'g`, or belongs to a node that the caller owns
/// for `'g`.
#[inline]
pub(crate) unsafe fn follow<T, P>(node: *mut Node<T, P>, _pinned: PhantomData<&()>) -> &Node<T, P> {
    // SAFETY: see the contract: nodes are not reused while such a pin stands.
    let node = unsafe { &*node };
    #[cfg(heddle_loom)]
    node.header.contents.with(|_| ());
    node
}
