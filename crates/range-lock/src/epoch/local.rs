//! A participant's own state: free blocks by size, and limbo.

use core::ptr::NonNull;

use super::block::{self, CLASSES, Header};
use super::list::{List, must_be_unread};

/// Bytes of free blocks kept; more go back to the allocator. Threads are preempted in mid-search, and what that keeps
/// back comes free all at once; a kernel's CPUs are not.
const KEPT_BYTES: usize = if cfg!(feature = "std") { 4 << 20 } else { 128 << 10 };

/// Bags of limbo. Each collection settles what was retired since the last one in the bag whose turn it is; what is
/// still in that bag has outlived as many collections and takes on the new epoch too.
const BAGS: usize = 4;

/// Lists of a bag: one for each size that is kept, one for the others.
const LISTS: usize = CLASSES + 1;

/// The most luck there is: so much is lost in half as many misses.
const LUCK: u32 = 16;
/// Without luck, one of so many is tried. With it, one of so many is not, so that chunks get successors without
/// what was released, and idle buckets come together.
const TRIES: u32 = 64;

struct Bag {
    /// An epoch in which all of its blocks had been unlinked.
    epoch: usize,
    lists: [List; LISTS],
}

impl Bag {
    const EMPTY: Self = Self { epoch: 0, lists: [List::EMPTY; LISTS] };

    fn count(&self) -> usize {
        self.lists.iter().map(|list| list.count).sum()
    }
}

pub(super) struct Local {
    /// How well it went with acquisitions that were to leave before another came by, up to [`LUCK`].
    luck: u32,
    /// Counts to [`TRIES`].
    turn_of_pass: u32,
    /// How deep pins are nested: a comparison or a waker may come back to a range lock.
    depth: usize,
    free: [List; CLASSES],
    kept_bytes: usize,
    /// Retired since the last collection, and how many they are.
    fresh: [List; LISTS],
    waiting: usize,
    bags: [Bag; BAGS],
    turn: usize,
    /// Blocks that the last collection had to keep back.
    kept_back: usize,
    /// Allocations that found no free block since then.
    missed: usize,
}

impl Local {
    pub(super) const fn new() -> Self {
        Self {
            luck: LUCK,
            turn_of_pass: 0,
            depth: 0,
            free: [List::EMPTY; CLASSES],
            kept_bytes: 0,
            fresh: [List::EMPTY; LISTS],
            waiting: 0,
            bags: [const { Bag::EMPTY }; BAGS],
            turn: 0,
            kept_back: 0,
            missed: 0,
        }
    }

    /// Whether the next one is to be tried as one that leaves before another comes by.
    #[inline]
    pub(super) fn may_pass(&mut self) -> bool {
        self.turn_of_pass = (self.turn_of_pass + 1) % TRIES;
        (self.turn_of_pass == 0) != (self.luck > 0)
    }

    /// Notes how that went. A miss costs about what two hits gain.
    #[inline]
    pub(super) fn note_passing(&mut self, passed: bool) {
        self.luck = if passed { (self.luck + 1).min(LUCK) } else { self.luck.saturating_sub(2) };
    }

    /// Enters a pin; whether it is the outermost one.
    #[inline]
    pub(super) fn enter(&mut self) -> bool {
        self.depth += 1;
        self.depth == 1
    }

    /// Leaves a pin; if it was the outermost one, how many blocks wait for the next collection.
    #[inline]
    pub(super) fn leave(&mut self) -> Option<usize> {
        self.depth -= 1;
        (self.depth == 0).then_some(self.waiting)
    }

    /// A free block of `size`, its header written anew.
    #[inline]
    pub(super) fn take(&mut self, size: usize) -> Option<NonNull<Header>> {
        let (class, rounded) = block::class_of(size)?;
        let block = self.free[class].pop()?;
        self.kept_bytes -= rounded;
        // SAFETY: the block is this participant's alone; a class's blocks all have its size.
        unsafe { block::init(block, rounded as u32) };
        Some(block)
    }

    /// Keeps a free block, or hands it back as surplus.
    #[inline]
    pub(super) fn put(&mut self, block: NonNull<Header>) -> Option<NonNull<Header>> {
        self.put_sized(block, block::size_of(block))
    }

    /// The same for a block whose rounded size is known.
    #[inline(always)]
    pub(super) fn put_sized(&mut self, block: NonNull<Header>, size: usize) -> Option<NonNull<Header>> {
        must_be_unread(block);
        let Some(class) = block::class_of_rounded(size) else { return Some(block) };
        if self.kept_bytes >= KEPT_BYTES {
            return Some(block);
        }
        self.kept_bytes += size;
        self.free[class].push(block);
        None
    }

    /// Takes up free blocks of one size.
    pub(super) fn refill(&mut self, class: usize, blocks: &mut List) {
        self.kept_bytes += blocks.count * block::size_of_class(class);
        self.free[class].splice(blocks);
    }

    /// Takes any free block out.
    pub(super) fn pop_any(&mut self) -> Option<NonNull<Header>> {
        let block = self.free.iter_mut().find_map(List::pop)?;
        self.kept_bytes -= block::size_of(block);
        Some(block)
    }

    /// Takes a free block out of the size that there is most of, if more is kept than should be.
    pub(super) fn pop_surplus(&mut self) -> Option<NonNull<Header>> {
        if self.kept_bytes <= KEPT_BYTES {
            return None;
        }
        let bytes = |class: &usize| self.free[*class].count * block::size_of_class(*class);
        let largest = (0..CLASSES).max_by_key(bytes)?;
        let block = self.free[largest].pop()?;
        self.kept_bytes -= block::size_of_class(largest);
        Some(block)
    }

    /// Takes any block out, free or in limbo.
    #[cfg(heddle_loom)]
    pub(super) fn pop_anything(&mut self) -> Option<NonNull<Header>> {
        let limbo = self.fresh.iter_mut().chain(self.bags.iter_mut().flat_map(|bag| &mut bag.lists));
        self.free.iter_mut().chain(limbo).find_map(List::pop)
    }

    /// Whether limbo holds enough for an allocation that found nothing free to look through it.
    pub(super) fn worth_collecting(&mut self) -> bool {
        self.missed += 1;
        self.missed >= 16 && self.waiting + self.kept_back > 0 && self.missed * 2 >= self.kept_back
    }

    /// Blocks that the last collection had to keep back.
    pub(super) fn kept_back(&self) -> usize {
        self.kept_back
    }

    /// Puts an unlinked block into limbo.
    #[inline]
    pub(super) fn bury(&mut self, block: NonNull<Header>) {
        let class = block::class_of_rounded(block::size_of(block)).unwrap_or(CLASSES);
        self.fresh[class].push(block);
        self.waiting += 1;
    }

    /// Begins a collection: what was retired so far had been unlinked by `epoch`.
    pub(super) fn settle(&mut self, epoch: usize) {
        self.turn = (self.turn + 1) % BAGS;
        let bag = &mut self.bags[self.turn];
        bag.epoch = epoch;
        bag.lists.iter_mut().zip(&mut self.fresh).for_each(|(list, fresh)| list.splice(fresh));
        self.waiting = 0;
        self.missed = 0;
        self.kept_back = 0;
    }

    /// Frees what was unlinked in epochs before `oldest`, the one that the oldest reader began in. Returns the blocks
    /// of sizes that are not kept, linked, for the allocator; [`Self::pop_surplus`] may have more.
    pub(super) fn reclaim(&mut self, oldest: usize) -> *mut Header {
        let mut others = List::EMPTY;
        for bag in &mut self.bags {
            if bag.epoch >= oldest {
                self.kept_back += bag.count();
                continue;
            }
            let (kept, rest) = bag.lists.split_at_mut(CLASSES);
            for (class, (list, free)) in kept.iter_mut().zip(&mut self.free).enumerate() {
                #[cfg(heddle_loom)]
                list.must_be_unread();
                self.kept_bytes += list.count * block::size_of_class(class);
                free.splice(list);
            }
            rest.iter_mut().for_each(|list| others.splice(list));
        }
        others.first
    }
}
