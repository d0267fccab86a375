//! Cutting a large bucket into as many as it is good for, in one step: what a request over everything has brought
//! together comes apart again as soon as it is gone.
#![allow(unsafe_code)] // Fills chunks that are not published, and a scratch block.

use core::ptr::{self, NonNull};
use core::slice;

use crate::chunk::{ChunkRef, Entry, Tail};
use crate::epoch::{Context, Header, OutOfMemory, Pin};
use crate::node::{Node, WAITING};
use crate::reshape::{Extra, FULL, exchange, retire_replaced};
use crate::span::{Bounds, below, reaches};
use crate::sync::Ordering;
use crate::table::{Bucket, Place, Table, chunk_of};

/// Live nodes of each new bucket, at least.
const LEAST: usize = FULL * 2 / 3;
/// Keys tried before the bucket is taken for one that cannot be cut: a test costs a look at all entries.
const SAMPLES: usize = 8;
/// Marks the first of a bucket in [`Scratch::order`].
const FIRST: u32 = 1 << 31;

impl<T: Ord + Copy, P: Copy> Table<T, P> {
    /// Exchanges a closed chunk for successors with its live nodes and `extra`; `false` if another came first.
    #[cold]
    #[inline(never)]
    pub(crate) fn scatter(
        &self,
        pin: &Pin,
        place: &Place<'_>,
        chunk: ChunkRef<'_, T, P>,
        extra: Extra<T, P>,
    ) -> Result<bool, OutOfMemory> {
        let context = pin.context();
        let room = chunk.survivors(pin, true).count() + 1;
        let mut scratch = Scratch::create(&context, room)?;
        let waiting = scratch.fill(chunk.survivors(pin, true).take(room - 1));
        if let Some((node, _)) = extra {
            // SAFETY: the caller owns the node.
            scratch.push(&unsafe { (*node.as_ptr()).bounds }, node.as_ptr());
        }
        scratch.group();
        let tail = Tail::For { waiting };
        let mut chain = Chain { context, first: chunk.next(), end: chunk.next(), cuts: 0 };
        let (mut hi, mut rest) = (chunk.hi(), scratch.len);
        // From the last one on: each names the next.
        let lower = loop {
            let (entries, order) = scratch.parts();
            let begin = order[..rest].iter().rposition(|at| at & FIRST != 0).unwrap_or(0);
            let group = &mut order[begin..rest];
            group.iter_mut().for_each(|at| *at &= !FIRST);
            let lo = group.first().and_then(|&at| entries[at as usize].bounds().start());
            // In the order of their arrival again.
            group.sort_unstable();
            let new = ChunkRef::create(&context, hi, chain.first, group.len(), tail)?;
            // SAFETY: `new` is not published and has room for them.
            group.iter().for_each(|&at| unsafe {
                let entry = &entries[at as usize];
                new.push(&entry.bounds(), entry.node());
            });
            let Some(cut) = lo.filter(|_| begin > 0) else { break new };
            chain.add(new, cut)?;
            (hi, rest) = (Some(cut), begin);
        };
        // SAFETY: not published.
        unsafe { lower.remember(4, 0) };
        if !exchange(place.cell, place.word, lower.header().as_ptr()) {
            // SAFETY: never published.
            unsafe { context.free(lower.header()) };
            return Ok(false);
        }
        let cuts = chain.publish();
        retire_replaced(pin, chunk, scratch.parts().0.iter().map(Entry::node));
        if cuts > 0 {
            self.buckets.fetch_add(cuts, Ordering::Relaxed);
            self.note_changes(pin, cuts);
        }
        Ok(true)
    }
}

/// A closed chunk's survivors in their order, and an order by which to group them. One block: a header, entries, order.
struct Scratch<T, P> {
    context: Context,
    block: NonNull<Header>,
    entries: *mut Entry<T, P>,
    order: *mut u32,
    room: usize,
    len: usize,
}

impl<T: Ord + Copy, P: Copy> Scratch<T, P> {
    fn create(context: &Context, room: usize) -> Result<Self, OutOfMemory> {
        if room >= FIRST as usize {
            return Err(OutOfMemory);
        }
        let first = size_of::<Header>().next_multiple_of(align_of::<Entry<T, P>>());
        let order = first + room * size_of::<Entry<T, P>>();
        let block = context.alloc(order + room * size_of::<u32>())?;
        // Entries are aligned to at least a pointer, so their end is aligned for what follows.
        let [entries, order] = [first, order].map(|offset| block.as_ptr().wrapping_byte_add(offset));
        Ok(Self { context: *context, block, entries: entries.cast(), order: order.cast(), room, len: 0 })
    }

    fn push(&mut self, bounds: &Bounds<T>, node: *mut Node<T, P>) {
        if self.len < self.room {
            // SAFETY: the block is this value's, with room for it.
            unsafe {
                self.entries.add(self.len).write(Entry::new(bounds, node));
                self.order.add(self.len).write(self.len as u32);
            }
            self.len += 1;
        }
    }

    /// Takes the survivors up; how many of them wait.
    fn fill(&mut self, survivors: impl Iterator<Item = (Bounds<T>, *mut Node<T, P>)>) -> usize {
        let mut waiting = 0;
        for (bounds, node) in survivors {
            // SAFETY: survivors are nodes of a chunk that the caller's pin keeps in place.
            waiting += usize::from(unsafe { (*node).state(Ordering::Relaxed) } & WAITING != 0);
            self.push(&bounds, node);
        }
        waiting
    }

    fn parts(&mut self) -> (&[Entry<T, P>], &mut [u32]) {
        // SAFETY: `len` of each are written, and they do not overlap.
        unsafe {
            (slice::from_raw_parts(self.entries, self.len), slice::from_raw_parts_mut(self.order, self.len))
        }
    }

    /// Orders the entries by their starts and marks where a new bucket begins, if they can be parted at all. All
    /// comparisons of keys are made here, and whatever they say, each entry is in one group.
    fn group(&mut self) {
        let (entries, order) = self.parts();
        let start = |at: u32| entries[at as usize].bounds().start();
        if !can_be_cut(entries) {
            return;
        }
        order.sort_unstable_by(|&a, &b| start(a).cmp(&start(b)).then(a.cmp(&b)));
        // The upper bound of what comes before, and how much of it is in the bucket that is being filled.
        let (mut limit, mut filled) = (entries[order[0] as usize].bounds().end(), 0);
        for at in order {
            let bounds = entries[*at as usize].bounds();
            if filled >= LEAST && bounds.start().is_some() && reaches(bounds.start(), limit) {
                *at |= FIRST;
                filled = 0;
            }
            filled += 1;
            if !reaches(limit, bounds.end()) {
                limit = bounds.end();
            }
        }
    }
}

impl<T, P> Drop for Scratch<T, P> {
    fn drop(&mut self) {
        // SAFETY: nobody else has seen the block.
        unsafe { self.context.free(self.block) };
    }
}

/// Whether one of a few keys parts the entries without lying inside one.
fn can_be_cut<T: Ord + Copy, P: Copy>(entries: &[Entry<T, P>]) -> bool {
    let step = entries.len().div_ceil(SAMPLES).max(1);
    entries.iter().skip(step / 2).step_by(step).filter_map(|sample| sample.bounds().start()).any(|cut| {
        let is_cut = |bounds: Bounds<T>| below(bounds.start(), Some(cut)) && below(Some(cut), bounds.end());
        !entries.iter().any(|entry| is_cut(entry.bounds()))
    })
}

/// Buckets that are not published yet, from the last to the first.
struct Chain<T: Ord + Copy, P: Copy> {
    context: Context,
    first: *mut Bucket<T, P>,
    /// The bucket behind them, which is there already.
    end: *mut Bucket<T, P>,
    cuts: usize,
}

impl<T: Ord + Copy, P: Copy> Chain<T, P> {
    /// Puts a bucket in front, with a chunk that names the one that was in front.
    fn add(&mut self, chunk: ChunkRef<'_, T, P>, lo: T) -> Result<(), OutOfMemory> {
        match Bucket::create(&self.context, lo, chunk.header().as_ptr()) {
            Ok(bucket) => self.first = bucket.as_ptr(),
            Err(error) => {
                // SAFETY: never published.
                unsafe { self.context.free(chunk.header()) };
                return Err(error);
            }
        }
        self.cuts += 1;
        Ok(())
    }

    /// Leaves the buckets to the table; how many there are.
    fn publish(mut self) -> usize {
        self.first = self.end;
        self.cuts
    }
}

impl<T: Ord + Copy, P: Copy> Drop for Chain<T, P> {
    fn drop(&mut self) {
        while !ptr::eq(self.first, self.end) {
            let bucket = self.first;
            // SAFETY: made by this context, and never published.
            unsafe {
                let word = (*bucket).word.load(Ordering::Relaxed);
                if let Some(chunk) = chunk_of::<T, P>(word) {
                    self.first = chunk.next();
                    self.context.free(chunk.header());
                }
                self.context.free(NonNull::new_unchecked(bucket).cast());
            }
        }
    }
}
