//! What a participant keeps for itself: free blocks by size, and limbo by epoch.

use core::ptr::{self, NonNull};

use super::block::{self, CLASSES, Header};

/// Free blocks kept of one size; more go back to the allocator.
const KEPT: u32 = 64;

/// Limbo is sorted by the epoch it was filled in. A block retired by a participant pinned in epoch `e` may be known
/// to readers pinned in `e + 1` at most (the global epoch is not further while that pin stands), and such readers
/// hold the global epoch at `e + 2` at most: from `e + 3` on it is free. So four bags tell all ages apart.
const BAGS: usize = 4;
const AGE: usize = 3;

struct Bag {
    epoch: usize,
    first: *mut Header,
}

pub(super) struct Local {
    /// How deep pins are nested: a comparison or a waker may come back to a range lock.
    depth: usize,
    free: [*mut Header; CLASSES],
    kept: [u32; CLASSES],
    bags: [Bag; BAGS],
    /// Blocks retired since limbo was last looked through.
    waiting: usize,
    /// Allocations that found no free block since limbo was last looked through.
    missed: usize,
}

impl Local {
    pub(super) const fn new() -> Self {
        Self {
            depth: 0,
            free: [ptr::null_mut(); CLASSES],
            kept: [0; CLASSES],
            bags: [const { Bag { epoch: 0, first: ptr::null_mut() } }; BAGS],
            waiting: 0,
            missed: 0,
        }
    }

    /// Enters a pin; whether it is the outermost one.
    #[inline]
    pub(super) fn enter(&mut self) -> bool {
        self.depth += 1;
        self.depth == 1
    }

    /// Leaves a pin; whether it was the outermost one.
    #[inline]
    pub(super) fn leave(&mut self) -> bool {
        self.depth -= 1;
        self.depth == 0
    }

    /// A free block of `size`, its header written anew.
    #[inline]
    pub(super) fn take(&mut self, size: usize) -> Option<NonNull<Header>> {
        let (class, rounded) = block::class_of(size)?;
        let block = NonNull::new(self.free[class])?;
        self.kept[class] -= 1;
        // SAFETY: blocks in the free lists are this participant's alone; a class's blocks all have its size.
        unsafe {
            self.free[class] = block::link(block);
            block::init(block, rounded as u32);
        }
        Some(block)
    }

    /// Keeps a free block, or hands it back as surplus.
    #[inline]
    pub(super) fn put(&mut self, block: NonNull<Header>) -> Option<NonNull<Header>> {
        #[cfg(heddle_loom)]
        // SAFETY: the header is valid; in the models this fails if a reader of the block is not ordered before.
        unsafe {
            (*block.as_ptr()).contents.with_mut(|_| ());
        }
        let Some((class, _)) = block::class_of(block::size_of(block)) else { return Some(block) };
        if self.kept[class] >= KEPT {
            return Some(block);
        }
        self.kept[class] += 1;
        // SAFETY: the block is exclusively this participant's now.
        unsafe { block::set_link(block, self.free[class]) };
        self.free[class] = block.as_ptr();
        None
    }

    /// Takes any free block out.
    pub(super) fn pop_any(&mut self) -> Option<NonNull<Header>> {
        let class = self.free.iter().position(|first| !first.is_null())?;
        let block = NonNull::new(self.free[class])?;
        self.kept[class] -= 1;
        // SAFETY: blocks in the free lists are this participant's alone.
        self.free[class] = unsafe { block::link(block) };
        Some(block)
    }

    /// Whether limbo holds enough for an allocation that found nothing free to look through it.
    pub(super) fn worth_collecting(&mut self) -> bool {
        self.missed += 1;
        self.missed >= 16 && self.bags.iter().any(|bag| !bag.first.is_null())
    }

    /// Before something is buried in `epoch`: frees what the bag of that turn still holds from four or more epochs
    /// ago. Returns surplus; call again until it returns none.
    pub(super) fn surplus_before(&mut self, epoch: usize) -> Option<NonNull<Header>> {
        let turn = epoch % BAGS;
        if self.bags[turn].epoch == epoch {
            return None;
        }
        let surplus = self.empty(turn);
        if surplus.is_none() {
            self.bags[turn].epoch = epoch;
        }
        surplus
    }

    /// Puts an unlinked block into limbo; how many wait since the last collection.
    pub(super) fn bury(&mut self, block: NonNull<Header>, epoch: usize) -> usize {
        let bag = &mut self.bags[epoch % BAGS];
        debug_assert_eq!(bag.epoch, epoch);
        // SAFETY: `link` is no one's but the unlinker's once a block is retired; readers never look at it.
        unsafe { block::set_link(block, bag.first) };
        bag.first = block.as_ptr();
        self.waiting += 1;
        self.waiting
    }

    /// Frees the bags that are old enough at global epoch `epoch`. Returns surplus; call again until none.
    pub(super) fn reclaim(&mut self, epoch: usize) -> Option<NonNull<Header>> {
        self.waiting = 0;
        self.missed = 0;
        for turn in 0..BAGS {
            if !self.bags[turn].first.is_null() && self.bags[turn].epoch + AGE <= epoch {
                let surplus = self.empty(turn);
                if surplus.is_some() {
                    return surplus;
                }
            }
        }
        None
    }

    /// Moves a bag's blocks to the free lists until one is surplus.
    fn empty(&mut self, turn: usize) -> Option<NonNull<Header>> {
        while let Some(block) = NonNull::new(self.bags[turn].first) {
            // SAFETY: blocks in limbo are linked by this participant alone, and their readers are gone.
            self.bags[turn].first = unsafe { block::link(block) };
            if let Some(surplus) = self.put(block) {
                return Some(surplus);
            }
        }
        None
    }
}
