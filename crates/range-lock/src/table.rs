//! The buckets: a sorted list that cuts the key space, each with one chunk at a time.
//!
//! Every live node lies wholly inside one bucket, so two requests that overlap always meet in the same chunk. A
//! bucket is cut in two only where no live node is cut, and two neighbours become one when a request spans both.
//! [`PROTOCOL.md`](../PROTOCOL.md) has the rules and the proof.
#![allow(unsafe_code)] // Buckets, chunks and nodes are reached through tagged pointers under a pin.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use crate::append::Append;
use crate::chunk::{ChunkRef, Tail, UNSEEN};
use crate::epoch::{Context, Header, OutOfMemory, Pin};
use crate::index::Index;
use crate::node::{LONE, Node, PASSING, RELEASED, SHARED, Waiters, follow};
use crate::span::{Bounds, Span, below};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering, const_fn};

/// The bucket is being merged into its left neighbour; its word does not change any more.
const DEAD: usize = 1;
/// The word of an otherwise empty lock points to the only node instead of a chunk; no one has followed it yet.
const ALONE: usize = 2;

/// The word of a bucket: null (empty), a tagged pointer to a node ([`ALONE`]), or to a chunk (perhaps [`DEAD`]).
pub(crate) type Word = *mut Header;

/// A cut of the key space and what is above it, up to the next cut.
#[repr(C)]
pub(crate) struct Bucket<T, P> {
    header: Header,
    /// The smallest key of the bucket.
    pub(crate) lo: T,
    pub(crate) word: AtomicPtr<Header>,
    /// The next bucket in the graveyard.
    pub(crate) buried: AtomicPtr<Bucket<T, P>>,
    _nodes: PhantomData<P>,
}

impl<T, P> Bucket<T, P> {
    pub(crate) fn create(context: &Context, lo: T, word: Word) -> Result<NonNull<Self>, OutOfMemory> {
        let bucket = context.alloc(size_of::<Self>())?.cast::<Self>();
        let raw = bucket.as_ptr();
        // SAFETY: the block is ours and large enough; the header is written by the allocation.
        unsafe {
            (&raw mut (*raw).lo).write(lo);
            (&raw mut (*raw).word).write(AtomicPtr::new(word));
            (&raw mut (*raw).buried).write(AtomicPtr::new(ptr::null_mut()));
        }
        Ok(bucket)
    }

    /// Follows a bucket pointer.
    ///
    /// # Safety
    /// It was read from the table or its index under a pin that outlives `'g`.
    #[inline]
    pub(crate) unsafe fn follow<'g>(bucket: *mut Self) -> &'g Self {
        // SAFETY: see the contract.
        let bucket = unsafe { &*bucket };
        #[cfg(heddle_loom)]
        bucket.header.contents.with(|_| ());
        bucket
    }
}

pub(crate) fn is_dead(word: Word) -> bool {
    word.addr() & DEAD != 0
}

pub(crate) fn is_alone(word: Word) -> bool {
    word.addr() & ALONE != 0
}

fn untagged(word: Word) -> Word {
    word.map_addr(|addr| addr & !(DEAD | ALONE))
}

/// The chunk in a word that holds one, dead or not.
///
/// # Safety
/// The word was read from the table under a pin that outlives `'g`.
#[inline]
pub(crate) unsafe fn chunk_of<'g, T: Ord + Copy, P: Copy>(word: Word) -> Option<ChunkRef<'g, T, P>> {
    if is_alone(word) {
        return None;
    }
    // SAFETY: see the contract.
    NonNull::new(untagged(word)).map(|chunk| unsafe { ChunkRef::from_header(chunk) })
}

/// Where a search ended: a bucket's word and the value it was seen with.
pub(crate) struct Place<'g> {
    pub(crate) cell: &'g AtomicPtr<Header>,
    pub(crate) word: Word,
}

/// How an insertion ended, unless memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Held,
    Queued,
    Refused,
}

/// The lock's memory: everything but the choice of the epoch.
pub(crate) struct Table<T, P> {
    /// The first bucket's word; that bucket has no lower bound.
    pub(crate) head: AtomicPtr<Header>,
    pub(crate) index: AtomicPtr<Index<T, P>>,
    /// Unlinked buckets that the index may still name.
    pub(crate) graveyard: AtomicPtr<Bucket<T, P>>,
    /// Cuts made and unmade since the index was built, and searches that it led astray, see `note_stray`.
    pub(crate) changes: AtomicUsize,
    /// Buckets beyond the first, roughly.
    pub(crate) buckets: AtomicUsize,
    _nodes: PhantomData<*mut Node<T, P>>,
}

impl<T: Ord + Copy, P: Copy> Table<T, P> {
    const_fn! {
        pub(crate) fn new() -> Self {
            Self {
                head: AtomicPtr::new(ptr::null_mut()),
                index: AtomicPtr::new(ptr::null_mut()),
                graveyard: AtomicPtr::new(ptr::null_mut()),
                changes: AtomicUsize::new(0),
                buckets: AtomicUsize::new(0),
                _nodes: PhantomData,
            }
        }
    }

    /// The bucket that `start` falls in, alive and with the chunk it was seen with; merges dead ones on the way.
    pub(crate) fn locate<'g>(&'g self, pin: &'g Pin, start: Option<T>) -> Result<Place<'g>, OutOfMemory> {
        'restart: loop {
            let mut cell = self.nearest(pin, start);
            loop {
                let word = pin.read(cell);
                if is_dead(word) {
                    continue 'restart;
                }
                // SAFETY: read under `pin`.
                let Some(chunk) = (unsafe { chunk_of::<T, P>(word) }) else {
                    return Ok(Place { cell, word });
                };
                if below(start, chunk.hi()) {
                    return Ok(Place { cell, word });
                }
                // SAFETY: a chunk with an upper bound has a next bucket; read under `pin`.
                let next = unsafe { Bucket::follow(chunk.next()) };
                // Relaxed, as in `nearest`: nothing is followed from here.
                if is_dead(next.word.load(Ordering::Relaxed)) {
                    self.merge(pin, cell, chunk, chunk.next())?;
                } else {
                    cell = &next.word;
                }
            }
        }
    }

    /// The word of some bucket at or before `start`, alive when it was looked at.
    #[inline]
    fn nearest<'g>(&'g self, pin: &'g Pin, start: Option<T>) -> &'g AtomicPtr<Header> {
        let index = pin.read(&self.index);
        let (Some(start), Some(index)) = (start, NonNull::new(index)) else { return &self.head };
        // SAFETY: read under the pin.
        let cuts = unsafe { Index::cuts(index) };
        let mut at = cuts.partition_point(|cut| cut.lo <= start);
        while at > 0 {
            at -= 1;
            // SAFETY: buckets outlive every index that names them; read under the pin.
            let bucket = unsafe { Bucket::follow(cuts[at].bucket) };
            // Relaxed: the word is read anew by whoever follows it.
            if !is_dead(bucket.word.load(Ordering::Relaxed)) {
                return &bucket.word;
            }
        }
        &self.head
    }

    /// Takes an empty lock with one exchange and without a pin, if it is empty.
    #[inline]
    pub(crate) fn insert_alone(&self, node: NonNull<Node<T, P>>, shared: bool) -> bool {
        if !self.head.load(Ordering::Relaxed).is_null() {
            return false;
        }
        // SAFETY: the caller owns the node.
        let state = unsafe { &(*node.as_ptr()).header.state };
        let mode = if shared { SHARED } else { 0 };
        state.store(mode | LONE, Ordering::Relaxed);
        let word = alone_word(node);
        // Acquire: the release of whoever left the lock empty. Release: the node, for whoever unfolds it.
        match self.head.compare_exchange(ptr::null_mut(), word, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => true,
            Err(_) => {
                state.store(mode, Ordering::Relaxed);
                false
            }
        }
    }

    /// Leaves the lock empty again if nobody has looked at `node` since [`Self::insert_alone`]; the node is then
    /// its owner's to reuse.
    #[inline]
    pub(crate) fn remove_alone(&self, node: NonNull<Node<T, P>>) -> bool {
        let word = alone_word(node);
        self.head.compare_exchange(word, ptr::null_mut(), Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Takes `node`, which went into a slot that it may leave, out of it again, if nobody has followed it; the node is
    /// then its owner's to reuse.
    #[inline]
    pub(crate) fn leave(
        context: &Context,
        node: NonNull<Node<T, P>>,
        (chunk, slot, epoch): (NonNull<Header>, usize, usize),
    ) -> bool {
        let Some(_pin) = context.pin_in(epoch) else { return false };
        // SAFETY: the chunk was current, and had such a slot, under a pin of that epoch, and stays in place under this.
        let slot: &AtomicPtr<Node<T, P>> = unsafe { ChunkRef::from_header(chunk).slot(slot) };
        let unseen = node.as_ptr().map_addr(|addr| addr | UNSEEN);
        // Release: the holder's doings, for whoever takes the slot or closes the chunk.
        slot.compare_exchange(unseen, ptr::null_mut(), Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Publishes `node`, which the caller owns, for its range in its mode. On [`Arrival::Refused`] and on failure it
    /// stays the caller's.
    #[inline]
    pub(crate) fn insert(
        &self,
        pin: &Pin,
        node: NonNull<Node<T, P>>,
        shared: bool,
        queue: bool,
    ) -> Result<Arrival, OutOfMemory> {
        // The common case, without calls: the nearest bucket is the right one and has a free slot.
        // SAFETY: the caller owns the node.
        let bounds = unsafe { Bounds::of_written(&raw const (*node.as_ptr()).bounds) };
        let cell = self.nearest(pin, bounds.start());
        let word = pin.read(cell);
        // SAFETY: read under `pin`.
        if let Some(chunk) = (unsafe { chunk_of::<T, P>(word) })
            && !is_dead(word)
        {
            if !below(bounds.start(), chunk.hi()) {
                self.note_stray(pin);
            } else if chunk.covers_up_to(bounds.end()) {
                match chunk.append(pin, node, &bounds, shared, queue) {
                    Append::Done { blocked: false } => return Ok(Arrival::Held),
                    Append::Done { blocked: true } => return Ok(Arrival::Queued),
                    Append::Refused => return Ok(Arrival::Refused),
                    Append::Closed { blocked } => {
                        let place = Place { cell, word };
                        return self.insert_behind(pin, &place, chunk, node, blocked, (shared, queue));
                    }
                }
            }
        }
        self.insert_anywhere(pin, node, shared, queue)
    }

    /// [`Self::insert`] into the successor of a chunk that is closed, and in which something is in the way if it is
    /// `blocked`; the search that found that out is not made again.
    #[inline(never)]
    fn insert_behind(
        &self,
        pin: &Pin,
        place: &Place<'_>,
        chunk: ChunkRef<'_, T, P>,
        node: NonNull<Node<T, P>>,
        blocked: bool,
        (shared, queue): (bool, bool),
    ) -> Result<Arrival, OutOfMemory> {
        if blocked && !queue {
            return Ok(Arrival::Refused);
        }
        if self.replace(pin, place, chunk, Some((node, blocked)))? {
            return Ok(if blocked { Arrival::Queued } else { Arrival::Held });
        }
        self.insert_anywhere(pin, node, shared, queue)
    }

    /// [`Self::insert`] where the buckets have to be changed first, or were changed meanwhile.
    #[inline(never)]
    fn insert_anywhere(
        &self,
        pin: &Pin,
        node: NonNull<Node<T, P>>,
        shared: bool,
        queue: bool,
    ) -> Result<Arrival, OutOfMemory> {
        // SAFETY: the caller owns the node.
        let bounds = &unsafe { (*node.as_ptr()).bounds };
        loop {
            if self.insert_alone(node, shared) {
                return Ok(Arrival::Held);
            }
            let place = self.locate(pin, bounds.start())?;
            // SAFETY: read under `pin`.
            let Some(chunk) = (unsafe { chunk_of::<T, P>(place.word) }) else {
                if is_alone(place.word) {
                    self.unfold(pin, place.word)?;
                }
                continue;
            };
            if !chunk.covers_up_to(bounds.end()) {
                // Refused without a change to the buckets if it would be refused after one.
                if !queue && self.conflict(pin, bounds, shared)? {
                    return Ok(Arrival::Refused);
                }
                self.absorb(pin, place.cell, chunk, bounds.end())?;
                continue;
            }
            match chunk.append(pin, node, bounds, shared, queue) {
                Append::Done { blocked: false } => return Ok(Arrival::Held),
                Append::Done { blocked: true } => return Ok(Arrival::Queued),
                Append::Refused => return Ok(Arrival::Refused),
                Append::Closed { blocked: true } if !queue => return Ok(Arrival::Refused),
                Append::Closed { blocked } => {
                    if self.replace(pin, &place, chunk, Some((node, blocked)))? {
                        return Ok(if blocked { Arrival::Queued } else { Arrival::Held });
                    }
                }
            }
        }
    }

    /// Gives the only node of a lock a chunk, so that others can look at it.
    pub(crate) fn unfold(&self, pin: &Pin, word: Word) -> Result<(), OutOfMemory> {
        let context = pin.context();
        let chunk = ChunkRef::<T, P>::create(&context, None, ptr::null_mut(), 0, Tail::For { waiting: 0 })?;
        chunk.begin_with(untagged(word).cast());
        let new = chunk.header().as_ptr();
        // Release: the chunk. Not acquire, though the node may have left and come back since the word was read: whoever
        // follows it reads the word anew, which continues the release sequence of the node's arrival.
        if self.head.compare_exchange(word, new, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: never published.
            unsafe { context.free(chunk.header()) };
        }
        Ok(())
    }

    /// Calls `visit` with every chunk that may hold a node overlapping `span`, from left to right, until it returns
    /// `false`. Changes nothing, but for a lock with one node that nobody looked at yet: `unfold` gives it a chunk,
    /// otherwise it is passed over.
    pub(crate) fn walk<'g>(
        &'g self,
        pin: &'g Pin,
        span: &Span<T>,
        unfold: bool,
        mut visit: impl FnMut(ChunkRef<'g, T, P>) -> bool,
    ) -> Result<(), OutOfMemory> {
        let mut cell = self.nearest(pin, span.start);
        loop {
            let word = pin.read(cell);
            if is_alone(word) && unfold {
                self.unfold(pin, word)?;
                continue;
            }
            // A dead bucket's chunk is final and complete, so it is as good as its successor for reading.
            // SAFETY: read under `pin`.
            let Some(chunk) = (unsafe { chunk_of::<T, P>(word) }) else { return Ok(()) };
            if below(span.start, chunk.hi()) && !visit(chunk) {
                return Ok(());
            }
            if chunk.covers_up_to(span.end) {
                return Ok(());
            }
            // SAFETY: a chunk with an upper bound has a next bucket; read under `pin`.
            cell = unsafe { &Bucket::follow(chunk.next()).word };
        }
    }

    /// Whether some live node conflicts.
    pub(crate) fn conflict(&self, pin: &Pin, bounds: &Bounds<T>, shared: bool) -> Result<bool, OutOfMemory> {
        let mut found = false;
        self.walk(pin, &bounds.span(), true, |chunk| {
            found = chunk.nodes(pin).any(|node| node.conflicts(bounds, shared));
            !found
        })?;
        Ok(found)
    }

    /// The last conflicting live node that arrived before `node`, which is published, waiting and the caller's.
    /// `None`: there is none, and there never will be one again.
    pub(crate) fn blocker<'g>(
        &'g self,
        pin: &'g Pin,
        node: NonNull<Node<T, P>>,
    ) -> Result<Option<&'g Node<T, P>>, OutOfMemory> {
        // SAFETY: the caller owns the node until it is released.
        let mine: &Node<T, P> = unsafe { follow(node.as_ptr(), PhantomData) };
        loop {
            let place = self.locate(pin, mine.bounds.start())?;
            // SAFETY: read under `pin`.
            let Some(chunk) = (unsafe { chunk_of::<T, P>(place.word) }) else { continue };
            // A split puts new nodes in an older one's place before it releases that one, so an unblocked view
            // counts only if it is still the current one. Relaxed: whoever acquired that release sees the new word.
            match chunk.last_conflict(pin, mine) {
                Some(None) if place.cell.load(Ordering::Relaxed) != place.word => {}
                Some(last) => return Ok(last),
                None => {}
            }
        }
    }

    /// Marks a node released and says who waits for it. The node may be reused from then on.
    #[inline]
    pub(crate) fn release(node: NonNull<Node<T, P>>) -> Waiters {
        // SAFETY: the caller owns the node and gives it up with this exchange.
        let node = unsafe { &*node.as_ptr() };
        let state = &node.header.state;
        if state.load(Ordering::Relaxed) & PASSING != 0 {
            node.settle();
        }
        // Release: what the holder did happens before whoever reads the bit. Acquire: the waiters' registrations.
        Waiters::of(state.swap(RELEASED, Ordering::AcqRel))
    }
}

impl<T, P> Table<T, P> {
    /// Frees everything that is linked. The table is empty afterwards.
    ///
    /// # Safety
    /// Nobody else uses the table, and no guard or handle of it will be used again.
    pub(crate) unsafe fn clear(&mut self, context: &Context)
    where
        T: Ord + Copy,
        P: Copy,
    {
        let pin = context.pin();
        // SAFETY: every block below is linked once, and no one reads it any more.
        let free = |block: Word| unsafe { NonNull::new(block).map(|block| context.free(block)) };
        // Relaxed, all of it: whoever has the table for itself is ordered behind all others already.
        let mut word = self.head.swap(ptr::null_mut(), Ordering::Relaxed);
        let mut bucket: *mut Bucket<T, P> = ptr::null_mut();
        loop {
            if is_alone(word) {
                free(untagged(word));
            }
            // SAFETY: the table is exclusively ours.
            let next = unsafe { chunk_of::<T, P>(word) }.map_or(ptr::null_mut(), |chunk| {
                for node in chunk.pointers(&pin) {
                    // SAFETY: the node is linked in this chunk alone.
                    free(
                        unsafe { (*node).wait_record() }.map_or(ptr::null_mut(), |wait| wait.as_ptr().cast()),
                    );
                    free(node.cast());
                }
                let next = chunk.next();
                free(chunk.header().as_ptr());
                next
            });
            free(bucket.cast());
            if next.is_null() {
                break;
            }
            bucket = next;
            // SAFETY: linked, and freed in the next turn.
            word = unsafe { (*bucket).word.load(Ordering::Relaxed) };
        }
        free(self.index.swap(ptr::null_mut(), Ordering::Relaxed).cast());
        let mut grave = self.graveyard.swap(ptr::null_mut(), Ordering::Relaxed);
        while !grave.is_null() {
            // SAFETY: buried buckets are linked in the graveyard alone.
            let next = unsafe { (*grave).buried.load(Ordering::Relaxed) };
            free(grave.cast());
            grave = next;
        }
    }
}

/// Marks a bucket dead so that its left neighbour takes over its contents.
pub(crate) fn kill<T: Ord + Copy, P: Copy>(pin: &Pin, bucket: &Bucket<T, P>) {
    loop {
        let word = pin.read(&bucket.word);
        if is_dead(word) {
            return;
        }
        // SAFETY: a bucket beyond the first always holds a chunk; the caller is pinned.
        if let Some(chunk) = unsafe { chunk_of::<T, P>(word) } {
            chunk.close();
        }
        let dead = word.map_addr(|addr| addr | DEAD);
        // Release: that the chunk is closed, for whoever moves its nodes.
        if bucket.word.compare_exchange(word, dead, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// The word that names a chunk's only node as the lock's only content.
pub(crate) fn alone_word<T, P>(node: NonNull<Node<T, P>>) -> Word {
    node.as_ptr().cast::<Header>().map_addr(|addr| addr | ALONE)
}
