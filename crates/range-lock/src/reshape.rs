//! Building successors of closed chunks: compaction, and cutting a bucket in two.
#![allow(unsafe_code)] // Fills chunks that are not published, and retires what a successful exchange unlinked.

use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use crate::chunk::{ChunkRef, Entry, Tail};
use crate::epoch::{Context, Header, OutOfMemory, Pin};
use crate::node::{LONE, Node, SHARED, Waiters};
use crate::span::{Bounds, below};
use crate::sync::{AtomicPtr, Ordering};
use crate::table::{Bucket, Place, Table, Word, alone_word, chunk_of};

/// Live nodes beyond which a bucket is cut.
pub(crate) const FULL: usize = if cfg!(heddle_loom) { 2 } else { 12 };
/// Collisions while a tail filled that make a bucket worth cutting for their sake.
const COLLIDING: u32 = 2;
/// Buckets that collisions alone may lead to.
const SPREAD: usize = 64;
/// Successors in a row without a collision after which a nearly empty bucket takes its neighbour in.
const QUIET: u32 = 16;

/// A node that is to be in the successor too: the caller's own, and whether it arrives as a waiter.
pub(crate) type Extra<T, P> = Option<(NonNull<Node<T, P>>, bool)>;

impl<T: Ord + Copy, P: Copy> Table<T, P> {
    /// Exchanges a closed chunk for a successor with its live nodes and `extra`; `false` if another came first.
    pub(crate) fn replace(
        &self,
        pin: &Pin,
        place: &Place<'_>,
        chunk: ChunkRef<'_, T, P>,
        extra: Extra<T, P>,
    ) -> Result<bool, OutOfMemory> {
        let colliding = chunk.collisions() >= COLLIDING;
        let folds =
            !colliding && chunk.cool() == 0 && chunk.next().is_null() && ptr::eq(place.cell, &self.head);
        let mut kept = Kept::of(chunk.survivors(pin, folds));
        if !folds && kept.count >= FULL {
            kept = Kept::of(chunk.survivors(pin, true));
        }
        let live = kept.count;
        if let (true, 0, Some((node, false))) = (folds, live, extra) {
            return Ok(self.fold(pin, place, chunk, node));
        }
        if let Some((node, blocked)) = extra {
            // SAFETY: the caller owns the node, which is not published.
            unsafe { (*node.as_ptr()).arrive(blocked) };
        }
        let spread = colliding && self.buckets.load(Ordering::Relaxed) < SPREAD;
        if live > KEPT {
            return self.scatter(pin, place, chunk, extra);
        }
        if (live >= FULL || spread)
            && let Some(cut) = choose_cut(pin, chunk, extra, spread)
        {
            return self.cut_in_two(pin, place, chunk, extra, cut);
        }
        let context = pin.context();
        let tail = Tail::For { waiting: 0 };
        let new = ChunkRef::create(&context, chunk.hi(), chunk.next(), live + 1, tail)?;
        let quiet = if colliding { 0 } else { chunk.quiet() + 1 };
        let cool = if colliding { 4 } else { chunk.cool().saturating_sub(1) };
        // SAFETY: `new` is not published and has room for what was kept and one more.
        unsafe {
            new.remember(cool, quiet % QUIET);
            new.push_all(&kept.entries[..live], kept.open);
            push_extra(new, extra);
        }
        if !exchange(place.cell, place.word, new.header().as_ptr()) {
            // SAFETY: never published.
            unsafe { context.free(new.header()) };
            return Ok(false);
        }
        retire_replaced(pin, chunk, new.entries().iter().map(Entry::node));
        if quiet == QUIET && live <= 2 && !new.next().is_null() {
            self.take_in_idle(pin, place.cell, new);
        }
        Ok(true)
    }

    /// Empties the only bucket and puts `node` alone into the lock.
    fn fold(
        &self,
        pin: &Pin,
        place: &Place<'_>,
        chunk: ChunkRef<'_, T, P>,
        node: NonNull<Node<T, P>>,
    ) -> bool {
        // SAFETY: the caller of `replace` owns the node, which is not published.
        let state = unsafe { &(*node.as_ptr()).header.state };
        let mode = state.load(Ordering::Relaxed) & SHARED;
        state.store(mode | LONE, Ordering::Relaxed);
        if exchange(place.cell, place.word, alone_word(node)) {
            retire_left_out(pin, [chunk], &[], &[]);
            return true;
        }
        state.store(mode, Ordering::Relaxed);
        false
    }

    #[inline(never)]
    fn cut_in_two(
        &self,
        pin: &Pin,
        place: &Place<'_>,
        chunk: ChunkRef<'_, T, P>,
        extra: Extra<T, P>,
        cut: T,
    ) -> Result<bool, OutOfMemory> {
        let context = pin.context();
        let is_left = |start: Option<T>| below(start, Some(cut));
        let (mut live, mut left_live) = (0usize, 0usize);
        for (bounds, _) in chunk.survivors(pin, true) {
            live += 1;
            left_live += usize::from(is_left(bounds.start()));
        }
        let right_live = live - left_live;
        // SAFETY: the caller of `replace` owns the node, which is not published.
        let extra_left = extra.is_some_and(|(node, _)| is_left(unsafe { (*node.as_ptr()).bounds.start() }));
        let tail = Tail::For { waiting: 0 };
        let upper = ChunkRef::create(&context, chunk.hi(), chunk.next(), right_live + 1, tail)?;
        let mut unpublished = UnpublishedBlocks { context, blocks: [Some(upper.header()), None, None] };
        let bucket = Bucket::create(&context, cut, upper.header().as_ptr())?;
        unpublished.blocks[1] = Some(bucket.cast());
        let lower = ChunkRef::create(&context, Some(cut), bucket.as_ptr(), left_live + 1, tail)?;
        unpublished.blocks[2] = Some(lower.header());
        // SAFETY: neither is published; both together have room for all live nodes, and each for one more.
        unsafe {
            lower.remember(4, 0);
            // Each into one part and no other, however the order answers: by count, once a part has what it has room
            // for. The survivors have only become fewer.
            let (mut left_room, mut right_room) = (left_live, right_live);
            for (bounds, node) in chunk.survivors(pin, true).take(live) {
                let (part, room) = match (left_room, right_room) {
                    (0, _) => (upper, &mut right_room),
                    (_, 0) => (lower, &mut left_room),
                    _ if is_left(bounds.start()) => (lower, &mut left_room),
                    _ => (upper, &mut right_room),
                };
                part.push(&bounds, node);
                *room -= 1;
            }
            push_extra(if extra_left { lower } else { upper }, extra);
        }
        if !exchange(place.cell, place.word, lower.header().as_ptr()) {
            return Ok(false);
        }
        unpublished.blocks = [None; 3];
        retire_left_out(pin, [chunk], &[lower, upper], &[]);
        self.buckets.fetch_add(1, Ordering::Relaxed);
        self.note_changes(pin, 1);
        Ok(true)
    }

    /// Puts `parts`, which cover nothing outside of `whole`, in the place of the held node `whole` and releases that
    /// one; who waited for it. On failure nothing has changed.
    pub(crate) fn substitute(
        &self,
        pin: &Pin,
        whole: NonNull<Node<T, P>>,
        parts: &[NonNull<Node<T, P>>],
    ) -> Result<Waiters, OutOfMemory> {
        let context = pin.context();
        // SAFETY: the caller holds `whole`.
        let start = unsafe { (*whole.as_ptr()).bounds.start() };
        loop {
            let place = self.locate(pin, start)?;
            // SAFETY: read under `pin`.
            let Some(chunk) = (unsafe { chunk_of::<T, P>(place.word) }) else {
                self.unfold(pin, place.word)?;
                continue;
            };
            chunk.close();
            let live = chunk.survivors(pin, true).count();
            let tail = Tail::For { waiting: 0 };
            let new = ChunkRef::create(&context, chunk.hi(), chunk.next(), live + parts.len(), tail)?;
            // SAFETY: `new` is not published, with room for the live nodes and the parts; `parts` are the caller's.
            unsafe {
                new.remember(4, 0);
                // `whole` is live, so it is among them and makes room for itself.
                for (bounds, node) in chunk.survivors(pin, true).take(live) {
                    if node == whole.as_ptr() {
                        parts.iter().for_each(|&part| push_extra(new, Some((part, false))));
                    } else {
                        new.push(&bounds, node);
                    }
                }
            }
            if exchange(place.cell, place.word, new.header().as_ptr()) {
                // Only now: a waiter that sees `whole` released must find the parts when it looks again.
                let waiters = Self::release(whole);
                retire_left_out(pin, [chunk], &[new], parts);
                return Ok(waiters);
            }
            // SAFETY: never published.
            unsafe { context.free(new.header()) };
        }
    }
}

/// Survivors noted on the stack.
const KEPT: usize = if cfg!(heddle_loom) { 3 } else { 32 };

/// The nodes that survive a chunk, noted in one pass over nodes that may be cold: up to [`KEPT`], and their count.
struct Kept<T, P> {
    entries: [MaybeUninit<Entry<T, P>>; KEPT],
    count: usize,
    /// Bounds that some of them lack.
    open: usize,
}

impl<T: Ord + Copy, P: Copy> Kept<T, P> {
    #[inline]
    fn of(survivors: impl Iterator<Item = (Bounds<T>, *mut Node<T, P>)>) -> Self {
        let mut kept = Self { entries: [const { MaybeUninit::uninit() }; KEPT], count: 0, open: 0 };
        for (bounds, node) in survivors {
            if let Some(place) = kept.entries.get_mut(kept.count) {
                place.write(Entry::new(&bounds, node));
            }
            kept.count += 1;
            kept.open |= bounds.open;
        }
        kept
    }
}

/// Frees blocks that were made for an exchange that did not happen.
struct UnpublishedBlocks {
    context: Context,
    blocks: [Option<NonNull<Header>>; 3],
}

impl Drop for UnpublishedBlocks {
    fn drop(&mut self) {
        for block in self.blocks.into_iter().flatten() {
            // SAFETY: never published.
            unsafe { self.context.free(block) };
        }
    }
}

/// The step that makes a successor the bucket's contents. Release: the successor, and what it refers to, which was
/// acquired with the old word.
pub(crate) fn exchange(cell: &AtomicPtr<Header>, old: Word, new: Word) -> bool {
    cell.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_ok()
}

/// Carries nodes over.
///
/// # Safety
/// `new` is the caller's own, with room for them.
pub(crate) unsafe fn fill<T: Ord + Copy, P: Copy>(
    new: ChunkRef<'_, T, P>,
    survivors: impl Iterator<Item = (Bounds<T>, *mut Node<T, P>)>,
) {
    for (bounds, node) in survivors {
        // SAFETY: see the contract.
        unsafe { new.push(&bounds, node) };
    }
}

/// Adds the caller's own node behind the others.
///
/// # Safety
/// `new` is the caller's own, with room for it.
pub(crate) unsafe fn push_extra<T: Ord + Copy, P: Copy>(new: ChunkRef<'_, T, P>, extra: Extra<T, P>) {
    if let Some((node, _)) = extra {
        // SAFETY: see the contract; the node is the caller's.
        unsafe { new.push(&(*node.as_ptr()).bounds, node.as_ptr()) };
    }
}

/// [`retire_left_out`] for one chunk whose carried nodes are known in their old order.
pub(crate) fn retire_replaced<T: Ord + Copy, P: Copy>(
    pin: &Pin,
    old: ChunkRef<'_, T, P>,
    mut carried: impl Iterator<Item = *mut Node<T, P>>,
) {
    let mut next = carried.next();
    for node in old.pointers(pin) {
        if next == Some(node) {
            next = carried.next();
        } else {
            // SAFETY: the exchange unlinked the node, only the exchanging context gets here, and it was released.
            unsafe { retire_node(pin, node) };
        }
    }
    // SAFETY: the exchange unlinked the chunk, and only the exchanging context gets here.
    unsafe { pin.retire(old.header()) };
}

/// Retires a node with what it needed to wait.
///
/// # Safety
/// The calling context has unlinked the node, which was released.
unsafe fn retire_node<T: Ord + Copy, P: Copy>(pin: &Pin, node: *mut Node<T, P>) {
    // SAFETY: see the contract.
    unsafe {
        if let Some(wait) = (*node).wait_record() {
            pin.retire(wait.cast());
        }
        pin.retire(NonNull::new_unchecked(node).cast());
    }
}

/// After an exchange: retires the old chunks and those of their nodes that no new chunk carries on. New chunks hold
/// the old nodes in the old order, but for the `added` ones, so one pass tells them apart.
pub(crate) fn retire_left_out<'g, T: Ord + Copy + 'g, P: Copy + 'g>(
    pin: &'g Pin,
    old: impl IntoIterator<Item = ChunkRef<'g, T, P>>,
    new: &[ChunkRef<'_, T, P>],
    added: &[NonNull<Node<T, P>>],
) {
    let mut carried = [0usize; 2];
    for chunk in old {
        'nodes: for node in chunk.pointers(pin) {
            for (at, successor) in carried.iter_mut().zip(new) {
                let is_added = |entry: &Entry<T, P>| added.iter().any(|node| node.as_ptr() == entry.node());
                while successor.entries().get(*at).is_some_and(is_added) {
                    *at += 1;
                }
                if successor.entries().get(*at).is_some_and(|entry| entry.node() == node) {
                    *at += 1;
                    continue 'nodes;
                }
            }
            // SAFETY: the exchange unlinked the node, only the exchanging context gets here, and it was released.
            unsafe { retire_node(pin, node) };
        }
        // SAFETY: the exchange unlinked the chunk, and only the exchanging context gets here.
        unsafe { pin.retire(chunk.header()) };
    }
}

/// A key that parts the bucket without cutting a live node, as evenly as a few samples allow. With `ghosts`,
/// released nodes count too: where requests went tells where they collide.
fn choose_cut<T: Ord + Copy, P: Copy>(
    pin: &Pin,
    chunk: ChunkRef<'_, T, P>,
    extra: Extra<T, P>,
    ghosts: bool,
) -> Option<T> {
    const SAMPLES: usize = 16;
    // SAFETY: the caller of `replace` owns the extra node.
    let extra = extra.map(|(node, _)| unsafe { &*node.as_ptr() });
    let count = chunk.nodes(pin).count();
    let step = count.div_ceil(SAMPLES).max(1);
    let mut best = None;
    for sample in chunk.nodes(pin).step_by(step) {
        let Some(cut) = sample.bounds.start() else { continue };
        let (mut left, mut right, mut whole) = (0usize, 0usize, true);
        for node in chunk.nodes(pin).chain(extra) {
            let live = node.is_live();
            if node.bounds.start().is_some_and(|start| start >= cut) {
                right += usize::from(live || ghosts);
            } else {
                left += usize::from(live || ghosts);
                whole &= !live || !below(Some(cut), node.bounds.end());
            }
        }
        let smaller = left.min(right);
        if whole && smaller > best.map_or(0, |(_, most)| most) {
            best = Some((cut, smaller));
        }
    }
    best.filter(|&(_, smaller)| ghosts || smaller >= count.min(FULL) / 8).map(|(cut, _)| cut)
}
