//! The contents of a bucket at one time: what was carried over when the chunk was built, and a tail that grows.
//!
//! A request enters by putting its node into the first free slot of the tail. Slots fill strictly in order and
//! never change again, so whoever fills slot `i` has judged exactly the nodes that are there: everything carried
//! over and slots `0..i`. A chunk is closed when its tail is full or a seal sits in the first free slot; then its
//! set of nodes is final and a successor can be built from it.
#![allow(unsafe_code)] // A chunk is one block: a head, then entries, then slots, reached by offsets.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::slice;

use crate::epoch::{Context, Header, OutOfMemory, Pin};
use crate::node::{Node, follow};
use crate::span::{Bounds, NO_END, NO_START, reaches};
use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use crate::table::Bucket;

/// Slots of a tail at least: more make successors rarer, fewer make buckets smaller.
const SLOTS: usize = if cfg!(heddle_loom) { 4 } else { 16 };
/// Slots of a tail at most, unless there is a queue.
const SLOTS_MAX: usize = 64;
/// Slots of a tail at most.
const SLOTS_QUEUE: usize = 4096;

/// Entries looked at together.
pub(crate) const PART: usize = 64;
/// There are more entries than [`PART`], or the tail is long.
pub(crate) const CROWD: usize = 4;

#[repr(C)]
pub(crate) struct Chunk<T, P> {
    /// `header.state` counts the appends that had to try again.
    pub(crate) header: Header,
    /// The bucket's upper bound: the next bucket's lower one.
    hi: Option<T>,
    next: *mut Bucket<T, P>,
    len: u32,
    /// Entries that there is room for.
    room: u32,
    slots: u32,
    /// The conditions that keep a search from the short way: bounds that some entry lacks (the union of what their
    /// pointers are tagged with), and [`CROWD`].
    pub(crate) special: u32,
    /// Successors to build before an empty lock goes back to its fast path.
    pub(crate) cool: u32,
    /// Predecessors in a row whose appends never collided.
    pub(crate) quiet: u32,
    /// So many slots from the first one on hold nodes that are released, at least: nobody needs to look at them.
    pub(crate) dead: AtomicU32,
    /// So many nodes from the first one on are released, at least; for waiters and those that wake them.
    pub(crate) passed: AtomicU32,
    /// Whether a sweep has come by.
    swept: AtomicU32,
    _nodes: PhantomData<P>,
}

/// A node carried over, its range beside it so that a search need not follow the pointer. Two bits of the pointer
/// tell which bounds there are: a range of optional keys would take half as many lines again.
pub(crate) struct Entry<T, P> {
    start: MaybeUninit<T>,
    end: MaybeUninit<T>,
    node: *mut Node<T, P>,
}

impl<T: Ord + Copy, P: Copy> Entry<T, P> {
    #[inline(always)]
    pub(crate) fn new(bounds: &Bounds<T>, node: *mut Node<T, P>) -> Self {
        Self { start: bounds.start, end: bounds.end, node: node.map_addr(|addr| addr | bounds.open) }
    }

    #[inline(always)]
    pub(crate) fn node(&self) -> *mut Node<T, P> {
        self.node.map_addr(|addr| addr & !(NO_START | NO_END))
    }

    #[inline(always)]
    pub(crate) fn bounds(&self) -> Bounds<T> {
        Bounds { start: self.start, end: self.end, open: self.node.addr() & (NO_START | NO_END) }
    }
}

/// How long a chunk's tail is to be.
#[derive(Clone, Copy)]
pub(crate) enum Tail {
    /// As short as it gets: the chunk is hoped to be cut soon.
    Short,
    /// In proportion to what is carried over. So many of that wait: a queue is copied with each successor, so its tail
    /// grows with it.
    For { waiting: usize },
}

/// Tags a slot's node that nobody but its owner has followed yet, so that it may leave the slot again: whoever wants to
/// follow it takes the tag off first, and then it stays.
pub(crate) const UNSEEN: usize = 2;

/// A slot's contents, its tag taken off: nothing, the seal, or a node that stays.
#[inline(always)]
pub(crate) fn settled<T, P>(pin: &Pin, slot: &AtomicPtr<Node<T, P>>) -> *mut Node<T, P> {
    let found = pin.read(slot);
    if found.addr() & UNSEEN == 0 { found } else { see(slot, found) }
}

/// Takes the tag off.
#[cold]
#[inline(never)]
fn see<T, P>(slot: &AtomicPtr<Node<T, P>>, mut found: *mut Node<T, P>) -> *mut Node<T, P> {
    while found.addr() & UNSEEN != 0 {
        let seen = found.map_addr(|addr| addr & !UNSEEN);
        // Acquire: the node, which may have left and come back since it was found, with another range.
        match slot.compare_exchange(found, seen, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return seen,
            Err(now) => found = now,
        }
    }
    found
}

/// The mark that closes a tail: no node's address.
pub(crate) fn seal<T, P>() -> *mut Node<T, P> {
    ptr::without_provenance_mut(1)
}

/// A chunk that is kept in place by a pin of lifetime `'g`.
pub(crate) struct ChunkRef<'g, T, P> {
    chunk: NonNull<Chunk<T, P>>,
    pinned: PhantomData<&'g Chunk<T, P>>,
}

impl<T, P> Clone for ChunkRef<'_, T, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, P> Copy for ChunkRef<'_, T, P> {}

/// Entries are at a fixed place, so that a search need not wait for the head to be read.
const fn entries_offset<T, P>() -> usize {
    size_of::<Chunk<T, P>>().next_multiple_of(align_of::<Entry<T, P>>())
}

/// Behind room for so many entries, which are aligned like pointers at least.
const fn slots_offset<T, P>(room: usize) -> usize {
    entries_offset::<T, P>() + room * size_of::<Entry<T, P>>()
}

impl<'g, T: Ord + Copy, P: Copy> ChunkRef<'g, T, P> {
    /// A chunk of the caller's own, its tail empty, with room for `room` entries that [`Self::push`] fills.
    pub(crate) fn create(
        context: &Context,
        hi: Option<T>,
        next: *mut Bucket<T, P>,
        room: usize,
        tail: Tail,
    ) -> Result<Self, OutOfMemory> {
        // An only bucket gets twice as many: it sees every request.
        let least = if next.is_null() { 2 * SLOTS } else { SLOTS };
        let slots = match tail {
            _ if cfg!(heddle_loom) => SLOTS,
            Tail::Short => SLOTS / 4,
            Tail::For { waiting } => (room / 4).clamp(least, SLOTS_MAX).max((waiting / 2).min(SLOTS_QUEUE)),
        };
        let offset = slots_offset::<T, P>(room);
        let size = offset + slots * size_of::<AtomicPtr<Node<T, P>>>();
        let chunk = context.alloc(size)?.cast::<Chunk<T, P>>();
        let raw = chunk.as_ptr();
        // SAFETY: the block is ours and `size` bytes long; the header is written by the allocation.
        unsafe {
            (&raw mut (*raw).hi).write(hi);
            (&raw mut (*raw).next).write(next);
            (&raw mut (*raw).len).write(0);
            (&raw mut (*raw).room).write(room as u32);
            (&raw mut (*raw).slots).write(slots as u32);
            (&raw mut (*raw).special).write(if slots > SLOTS_MAX { CROWD as u32 } else { 0 });
            (&raw mut (*raw).cool).write(0);
            (&raw mut (*raw).quiet).write(0);
            (&raw mut (*raw).dead).write(AtomicU32::new(0));
            (&raw mut (*raw).passed).write(AtomicU32::new(0));
            (&raw mut (*raw).swept).write(AtomicU32::new(0));
            let first = raw.byte_add(offset).cast::<AtomicPtr<Node<T, P>>>();
            for slot in 0..slots {
                first.add(slot).write(AtomicPtr::new(ptr::null_mut()));
            }
        }
        Ok(Self { chunk, pinned: PhantomData })
    }

    /// Names a chunk found in the table.
    ///
    /// # Safety
    /// `chunk` points to a chunk that was read from the table under a pin that outlives `'g`.
    #[inline]
    pub(crate) unsafe fn from_header(chunk: NonNull<Header>) -> Self {
        let this = Self { chunk: chunk.cast(), pinned: PhantomData };
        #[cfg(heddle_loom)]
        this.get().header.contents.with(|_| ());
        this
    }

    #[inline]
    pub(crate) fn header(self) -> NonNull<Header> {
        self.chunk.cast()
    }

    #[inline]
    pub(crate) fn get(&self) -> &'g Chunk<T, P> {
        // SAFETY: the chunk stays in place for `'g`, and its plain fields do not change once it is published.
        unsafe { self.chunk.as_ref() }
    }

    /// Carries an entry over into a chunk that is not published yet.
    ///
    /// # Safety
    /// The chunk is the caller's own, and fewer entries than its room were pushed.
    pub(crate) unsafe fn push(self, bounds: &Bounds<T>, node: *mut Node<T, P>) {
        let raw = self.chunk.as_ptr();
        // SAFETY: see the contract.
        unsafe {
            let len = (*raw).len;
            let first = raw.byte_add(entries_offset::<T, P>()).cast::<Entry<T, P>>();
            first.add(len as usize).write(Entry::new(bounds, node));
            (&raw mut (*raw).len).write(len + 1);
            let crowd = if len as usize >= PART { CROWD } else { 0 };
            (&raw mut (*raw).special).write((*raw).special | (bounds.open | crowd) as u32);
        }
    }

    /// Carries entries over into an empty chunk that is not published yet.
    ///
    /// # Safety
    /// The chunk is the caller's own, with room for them; all of them are written, and lack no bounds but `open`.
    pub(crate) unsafe fn push_all(self, entries: &[MaybeUninit<Entry<T, P>>], open: usize) {
        let raw = self.chunk.as_ptr();
        // SAFETY: see the contract.
        unsafe {
            let first = raw.byte_add(entries_offset::<T, P>()).cast::<MaybeUninit<Entry<T, P>>>();
            ptr::copy_nonoverlapping(entries.as_ptr(), first, entries.len());
            (&raw mut (*raw).len).write(entries.len() as u32);
            (&raw mut (*raw).special).write((*raw).special | open as u32);
        }
    }

    /// Sets what a chunk that is not published yet remembers of its predecessor.
    ///
    /// # Safety
    /// The chunk is the caller's own.
    pub(crate) unsafe fn remember(self, cool: u32, quiet: u32) {
        let raw = self.chunk.as_ptr();
        // SAFETY: see the contract.
        unsafe {
            (&raw mut (*raw).cool).write(cool);
            (&raw mut (*raw).quiet).write(quiet);
        }
    }

    #[inline]
    pub(crate) fn hi(self) -> Option<T> {
        self.get().hi
    }

    #[inline]
    pub(crate) fn next(self) -> *mut Bucket<T, P> {
        self.get().next
    }

    pub(crate) fn cool(self) -> u32 {
        self.get().cool
    }

    pub(crate) fn quiet(self) -> u32 {
        self.get().quiet
    }

    /// Whether a sweep had come by before this one.
    pub(crate) fn sweep(self) -> bool {
        self.get().swept.swap(1, Ordering::Relaxed) != 0
    }

    /// Appends that had to try again because another took their slot.
    pub(crate) fn collisions(self) -> u32 {
        self.get().header.state.load(Ordering::Relaxed)
    }

    /// Whether a range that starts in this bucket and ends at `end` lies in it.
    #[inline]
    pub(crate) fn covers_up_to(self, end: Option<T>) -> bool {
        reaches(self.get().hi, end)
    }

    #[inline]
    pub(crate) fn entries(self) -> &'g [Entry<T, P>] {
        // SAFETY: `len` entries were written behind the head before the chunk was published.
        unsafe {
            let first = self.chunk.as_ptr().byte_add(entries_offset::<T, P>()).cast::<Entry<T, P>>();
            slice::from_raw_parts(first, self.get().len as usize)
        }
    }

    #[inline]
    pub(crate) fn slots(self) -> &'g [AtomicPtr<Node<T, P>>] {
        // SAFETY: `slots` slots were written behind the entries when the chunk was made.
        unsafe {
            let first = self.chunk.as_ptr().byte_add(slots_offset::<T, P>(self.get().room as usize)).cast();
            slice::from_raw_parts(first, self.get().slots as usize)
        }
    }

    /// One slot of the tail.
    ///
    /// # Safety
    /// There are more slots than `at`.
    #[inline]
    pub(crate) unsafe fn slot(self, at: usize) -> &'g AtomicPtr<Node<T, P>> {
        // SAFETY: see the contract and `slots`.
        unsafe {
            let offset = slots_offset::<T, P>(self.get().room as usize);
            &*self.chunk.as_ptr().byte_add(offset).cast::<AtomicPtr<Node<T, P>>>().add(at)
        }
    }

    /// All nodes, in the order of their arrival.
    pub(crate) fn nodes(self, pin: &'g Pin) -> impl Iterator<Item = &'g Node<T, P>> {
        // SAFETY: a node in a chunk is not reused while the chunk's readers are pinned.
        self.pointers(pin).map(|node| unsafe { follow(node, PhantomData) })
    }

    /// The pointers to all nodes, in the order of their arrival.
    pub(crate) fn pointers(self, pin: &'g Pin) -> impl Iterator<Item = *mut Node<T, P>> {
        self.entries().iter().map(Entry::node).chain(self.tail(pin, 0))
    }

    /// The pointers to the nodes of the tail, but for the first `skipped`, all of which are there.
    fn tail(self, pin: &'g Pin, skipped: usize) -> impl Iterator<Item = *mut Node<T, P>> {
        let slots = self.slots().get(skipped..).unwrap_or_default();
        slots.iter().map(|slot| settled(pin, slot)).take_while(|node| !node.is_null() && *node != seal())
    }

    /// The nodes that a successor carries over: in the order of their arrival, without those of the tail that are
    /// released, nor, if `thorough`, any that is. Looking at every carried node each time would cost a line each.
    pub(crate) fn survivors(
        self,
        pin: &'g Pin,
        thorough: bool,
    ) -> impl Iterator<Item = (Bounds<T>, *mut Node<T, P>)> {
        // SAFETY: as in `nodes`.
        let is_live = |node: &*mut Node<T, P>| unsafe { follow(*node, PhantomData) }.is_live();
        let carried = self.entries().iter().map(|entry| (entry.bounds(), entry.node()));
        let carried = carried.filter(move |(_, node)| !thorough || is_live(node));
        // Relaxed: as in `append`.
        let dead = self.get().dead.load(Ordering::Relaxed) as usize;
        let tail = self.tail(pin, dead).filter(is_live);
        // SAFETY: as in `nodes`.
        carried.chain(tail.map(|node| (unsafe { follow(node, PhantomData) }.bounds, node)))
    }

    /// Puts the first node into a chunk that is not published yet.
    pub(crate) fn begin_with(self, node: *mut Node<T, P>) {
        self.slots()[0].store(node, Ordering::Relaxed);
    }

    /// Closes the tail: afterwards the set of nodes is final. Relaxed: nothing is followed here, and whoever looks
    /// through the slots afterwards finds each as it was found here or filled since.
    pub(crate) fn close(self) {
        for slot in self.slots() {
            let mut found = slot.load(Ordering::Relaxed);
            while found.is_null() || found.addr() & UNSEEN != 0 {
                let closed = if found.is_null() { seal() } else { found.map_addr(|addr| addr & !UNSEEN) };
                match slot.compare_exchange(found, closed, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => found = closed,
                    Err(now) => found = now,
                }
            }
            if found == seal() {
                return;
            }
        }
    }
}
