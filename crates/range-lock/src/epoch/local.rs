//! What a participant keeps for itself: free blocks by size, and limbo.

use core::ptr::{self, NonNull};

use super::block::{self, CLASSES, Header};

/// Bytes of free blocks kept of one size; more go back to the allocator. Threads are preempted in mid-search and keep
/// more back than a kernel's CPUs, which are not.
const KEPT_BYTES: usize = if cfg!(feature = "std") { 512 << 10 } else { 32 << 10 };

/// Bags of limbo. Each collection settles what was retired since the last one in the bag whose turn it is; what is
/// still in that bag has outlived as many collections and takes on the new epoch too.
const BAGS: usize = 4;

struct Bag {
    /// An epoch in which all of its blocks had been unlinked.
    epoch: usize,
    first: *mut Header,
    count: usize,
}

pub(super) struct Local {
    /// How deep pins are nested: a comparison or a waker may come back to a range lock.
    depth: usize,
    free: [*mut Header; CLASSES],
    kept: [u32; CLASSES],
    /// Retired since the last collection, and how many they are.
    fresh: *mut Header,
    oldest_fresh: *mut Header,
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
            depth: 0,
            free: [ptr::null_mut(); CLASSES],
            kept: [0; CLASSES],
            fresh: ptr::null_mut(),
            oldest_fresh: ptr::null_mut(),
            waiting: 0,
            bags: [const { Bag { epoch: 0, first: ptr::null_mut(), count: 0 } }; BAGS],
            turn: 0,
            kept_back: 0,
            missed: 0,
        }
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
        self.put_sized(block, block::size_of(block))
    }

    /// The same for a block whose rounded size is known.
    #[inline(always)]
    pub(super) fn put_sized(&mut self, block: NonNull<Header>, size: usize) -> Option<NonNull<Header>> {
        #[cfg(heddle_loom)]
        // SAFETY: the header is valid; in the models this fails if a reader of the block is not ordered before.
        unsafe {
            (*block.as_ptr()).contents.with_mut(|_| ());
        }
        let Some(class) = block::class_of_rounded(size) else { return Some(block) };
        if self.kept[class] as usize * size >= KEPT_BYTES {
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

    /// Takes any block out, free or in limbo.
    #[cfg(heddle_loom)]
    pub(super) fn pop_anything(&mut self) -> Option<NonNull<Header>> {
        let lists = self
            .free
            .iter_mut()
            .chain([&mut self.fresh])
            .chain(self.bags.iter_mut().map(|bag| &mut bag.first));
        for list in lists {
            if let Some(block) = NonNull::new(*list) {
                // SAFETY: the lists are this participant's alone.
                *list = unsafe { block::link(block) };
                return Some(block);
            }
        }
        None
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
        if self.fresh.is_null() {
            self.oldest_fresh = block.as_ptr();
        }
        // SAFETY: `link` is no one's but the unlinker's once a block is retired; readers never look at it.
        unsafe { block::set_link(block, self.fresh) };
        self.fresh = block.as_ptr();
        self.waiting += 1;
    }

    /// Begins a collection: what was retired so far had been unlinked by `epoch`.
    pub(super) fn settle(&mut self, epoch: usize) {
        self.turn = (self.turn + 1) % BAGS;
        let bag = &mut self.bags[self.turn];
        bag.epoch = epoch;
        if let Some(oldest) = NonNull::new(self.oldest_fresh) {
            // SAFETY: blocks in limbo are linked by this participant alone; the oldest one ends the list.
            unsafe { block::set_link(oldest, bag.first) };
            bag.first = self.fresh;
            bag.count += self.waiting;
            self.fresh = ptr::null_mut();
            self.oldest_fresh = ptr::null_mut();
        }
        self.waiting = 0;
        self.missed = 0;
        self.kept_back = 0;
    }

    /// Frees what was unlinked in epochs before `oldest`, the one that the oldest reader began in. Returns the surplus,
    /// linked, for the allocator.
    pub(super) fn reclaim(&mut self, oldest: usize) -> *mut Header {
        let mut surplus = ptr::null_mut();
        for turn in 0..BAGS {
            if self.bags[turn].epoch >= oldest {
                self.kept_back += self.bags[turn].count;
                continue;
            }
            self.bags[turn].count = 0;
            let mut next = core::mem::replace(&mut self.bags[turn].first, ptr::null_mut());
            while let Some(block) = NonNull::new(next) {
                // SAFETY: blocks in limbo are linked by this participant alone, and nobody reads these any more.
                next = unsafe { block::link(block) };
                if self.put(block).is_some() {
                    // SAFETY: as above.
                    unsafe { block::set_link(block, surplus) };
                    surplus = block.as_ptr();
                }
            }
        }
        surplus
    }
}
