//! Slabs: large blocks of the allocator's, each cut into blocks of one size.
//!
//! An allocator spends up to a line of its own on each block that is aligned to one, and spreads blocks that are used
//! together. Participants take a page of blocks at once, so that a context's nodes share no line, and mostly no page,
//! with another's; what they have too much of goes back to its slab, and a slab that is whole again to the allocator.

use alloc::alloc::{Layout, alloc, dealloc};
use core::cell::UnsafeCell;
use core::hint;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::block::{self, ALIGN, CLASSES, Header};
use super::list::List;

/// Bytes of a slab, and its alignment: a block's slab is found by its address.
const SLAB_BYTES: usize = if cfg!(feature = "std") { 64 << 10 } else { 4 << 10 };

/// Bytes of blocks that a participant takes at once.
const REFILL_BYTES: usize = 4 << 10;

/// Whole slabs kept for the next refill. Threads that come and go would pay for a new one each.
const SPARE: usize = if cfg!(feature = "std") { 4 } else { 0 };

/// Whether blocks of a class come from slabs. The models and Miri watch each block by itself, and unit tests let memory
/// run out at each.
pub(super) const fn is_cut(class: usize) -> bool {
    !cfg!(any(heddle_loom, miri, test)) && 8 * block::size_of_class(class) <= SLAB_BYTES
}

/// The first line of a slab. Everything in it is under the pool's lock.
#[repr(C)]
struct Slab {
    next: *mut Slab,
    previous: *mut Slab,
    free: *mut Header,
    free_count: usize,
    /// Blocks cut so far; behind them the memory was never touched.
    cut: usize,
    class: usize,
}

const _: () = assert!(size_of::<Slab>() <= ALIGN);

impl Slab {
    const LAYOUT: Layout = match Layout::from_size_align(SLAB_BYTES, SLAB_BYTES) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    fn create(class: usize) -> Option<NonNull<Self>> {
        // SAFETY: the layout is not empty.
        let slab = NonNull::new(unsafe { alloc(Self::LAYOUT) }.cast::<Self>())?;
        let (next, previous, free) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: freshly allocated, aligned and larger.
        unsafe { slab.write(Self { next, previous, free, free_count: 0, cut: 0, class }) };
        Some(slab)
    }

    /// The slab of a block that was cut from one.
    fn of(block: NonNull<Header>) -> *mut Self {
        block.as_ptr().map_addr(|addr| addr & !(SLAB_BYTES - 1)).cast()
    }

    /// Blocks that slabs of a class are cut into, at most.
    const fn capacity(class: usize) -> usize {
        (SLAB_BYTES - ALIGN) / block::size_of_class(class)
    }

    /// Whether all blocks cut so far have come back.
    fn is_whole(&self) -> bool {
        self.free_count == self.cut
    }

    /// Whether there is anything to take.
    fn has_more(&self) -> bool {
        self.free_count > 0 || self.cut < Self::capacity(self.class)
    }

    /// Takes as many blocks as a refill, or as there are.
    ///
    /// # Safety
    /// `slab` is the caller's to change.
    unsafe fn take(slab: NonNull<Self>) -> List {
        // SAFETY: see the contract; blocks lie behind the first line, within the slab.
        unsafe {
            let this = &mut *slab.as_ptr();
            let size = block::size_of_class(this.class);
            let mut taken = List::EMPTY;
            let wanted = (REFILL_BYTES / size).max(1);
            while taken.count < wanted
                && let Some(block) = NonNull::new(this.free)
            {
                this.free = block::link(block);
                this.free_count -= 1;
                taken.push(block);
            }
            let fresh = (wanted - taken.count).min(Self::capacity(this.class) - this.cut);
            // From the upper end: the first to be used is the lowest.
            for at in (this.cut..this.cut + fresh).rev() {
                let block = slab.cast::<Header>().byte_add(ALIGN + at * size);
                block::init(block, size as u32);
                taken.push(block);
            }
            this.cut += fresh;
            taken
        }
    }
}

/// A domain's slabs that have free blocks.
pub(super) struct Pool {
    locked: AtomicBool,
    slabs: UnsafeCell<Slabs>,
    bytes: AtomicUsize,
}

struct Slabs {
    of_class: [*mut Slab; CLASSES],
    /// Whole slabs among them.
    spare: usize,
}

// SAFETY: the slabs are only reached under the lock.
unsafe impl Sync for Pool {}
// SAFETY: slabs are plain memory that belongs to no thread.
unsafe impl Send for Pool {}

impl Pool {
    pub(super) const fn new() -> Self {
        Self {
            locked: AtomicBool::new(false),
            slabs: UnsafeCell::new(Slabs { of_class: [ptr::null_mut(); CLASSES], spare: 0 }),
            bytes: AtomicUsize::new(0),
        }
    }

    /// Bytes taken from the allocator and not given back.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts a block that is not of a slab.
    pub(super) fn count_taken(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts such a block's return.
    pub(super) fn count_given(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Blocks of a class, as many as a refill, or none if memory is out.
    pub(super) fn take(&self, class: usize) -> List {
        if let Some(taken) = self.open().take(class) {
            return taken;
        }
        // Not under the lock: this may take long.
        let Some(slab) = Slab::create(class) else { return List::EMPTY };
        self.count_taken(SLAB_BYTES);
        // SAFETY: the slab is this context's own, and then the pool's.
        unsafe {
            let taken = Slab::take(slab);
            if (*slab.as_ptr()).has_more() {
                self.open().link(slab.as_ptr());
            }
            taken
        }
    }

    /// Locks the pool: held for a few blocks at a time, and by allocations that nothing else is left to, as an
    /// allocator of one's own would be.
    pub(super) fn open(&self) -> Session<'_> {
        let mut spins = 0;
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            wait(&mut spins);
        }
        Session { pool: self, whole: ptr::null_mut() }
    }
}

/// Waits a little for another context that has the pool.
fn wait(spins: &mut u32) {
    *spins += 1;
    #[cfg(feature = "std")]
    if *spins > 64 {
        return std::thread::yield_now();
    }
    hint::spin_loop();
}

/// The pool under its lock.
pub(super) struct Session<'a> {
    pool: &'a Pool,
    /// Slabs to give back once the lock is free.
    whole: *mut Slab,
}

impl Session<'_> {
    fn slabs(&mut self) -> &mut Slabs {
        // SAFETY: a session has the lock.
        unsafe { &mut *self.pool.slabs.get() }
    }

    fn take(&mut self, class: usize) -> Option<List> {
        let slab = NonNull::new(self.slabs().of_class[class])?;
        // SAFETY: linked, so under the lock.
        unsafe {
            if (*slab.as_ptr()).is_whole() {
                self.slabs().spare -= 1;
            }
            let taken = Slab::take(slab);
            if !(*slab.as_ptr()).has_more() {
                self.unlink(slab.as_ptr());
            }
            Some(taken)
        }
    }

    /// Gives a block back to its slab.
    ///
    /// # Safety
    /// It came from [`Pool::take`] of this pool, and nothing refers to it.
    pub(super) unsafe fn give(&mut self, block: NonNull<Header>) {
        let slab = Slab::of(block);
        // SAFETY: see the contract; a slab with a block out is there, and changed under the lock only.
        unsafe {
            let had_more = (*slab).has_more();
            block::set_link(block, (*slab).free);
            (*slab).free = block.as_ptr();
            (*slab).free_count += 1;
            if !had_more {
                self.link(slab);
            }
            if (*slab).is_whole() {
                if (0..SPARE).contains(&self.slabs().spare) {
                    self.slabs().spare += 1;
                } else {
                    self.leave(slab);
                }
            }
        }
    }

    /// Gives up the whole slabs that were kept.
    pub(super) fn trim(&mut self) {
        for class in 0..CLASSES {
            let mut at = self.slabs().of_class[class];
            while let Some(slab) = NonNull::new(at) {
                // SAFETY: linked, so under the lock.
                unsafe {
                    at = (*slab.as_ptr()).next;
                    if (*slab.as_ptr()).is_whole() {
                        self.leave(slab.as_ptr());
                    }
                }
            }
        }
        self.slabs().spare = 0;
    }

    /// # Safety
    /// The slab is the caller's own, or under the lock and not linked.
    unsafe fn link(&mut self, slab: *mut Slab) {
        // SAFETY: see the contract.
        unsafe {
            let first = &mut self.slabs().of_class[(*slab).class];
            (*slab).next = *first;
            (*slab).previous = ptr::null_mut();
            if let Some(next) = first.as_mut() {
                next.previous = slab;
            }
            *first = slab;
        }
    }

    /// # Safety
    /// The slab is linked.
    unsafe fn unlink(&mut self, slab: *mut Slab) {
        // SAFETY: see the contract; its neighbours are linked as well.
        unsafe {
            let (next, previous) = ((*slab).next, (*slab).previous);
            if let Some(next) = next.as_mut() {
                next.previous = previous;
            }
            match previous.as_mut() {
                Some(previous) => previous.next = next,
                None => self.slabs().of_class[(*slab).class] = next,
            }
        }
    }

    /// # Safety
    /// The slab is linked and whole.
    unsafe fn leave(&mut self, slab: *mut Slab) {
        // SAFETY: see the contract.
        unsafe {
            self.unlink(slab);
            (*slab).next = self.whole;
        }
        self.whole = slab;
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // Release: what the next session takes up.
        self.pool.locked.store(false, Ordering::Release);
        while let Some(slab) = NonNull::new(self.whole) {
            // SAFETY: unlinked, and none of its blocks is out.
            unsafe {
                self.whole = (*slab.as_ptr()).next;
                dealloc(slab.as_ptr().cast(), Slab::LAYOUT);
            }
            self.pool.count_given(SLAB_BYTES);
        }
    }
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::*;
    use std::thread;
    use std::vec::Vec;

    /// Takes blocks of a class, at least so many.
    fn take(pool: &Pool, class: usize, count: usize) -> Vec<NonNull<Header>> {
        let mut blocks = Vec::new();
        while blocks.len() < count {
            let mut list = pool.take(class);
            blocks.extend(core::iter::from_fn(|| list.pop()));
        }
        blocks
    }

    fn give(pool: &Pool, blocks: impl IntoIterator<Item = NonNull<Header>>) {
        // SAFETY: taken from this pool by the tests, and used by no one.
        blocks.into_iter().for_each(|block| unsafe { pool.open().give(block) });
    }

    #[test]
    fn blocks_are_apart_and_their_slabs_go_when_all_are_back() {
        let pool = Pool::new();
        for class in 0..CLASSES {
            let size = block::size_of_class(class);
            let mut blocks = take(&pool, class, if cfg!(miri) { 20 } else { 3000 });
            blocks.sort();
            for pair in blocks.windows(2) {
                assert!(pair[1].addr().get() - pair[0].addr().get() >= size);
            }
            let edge = |block: &NonNull<Header>| block.addr().get() % SLAB_BYTES;
            assert!(blocks.iter().all(|block| {
                edge(block) >= ALIGN && edge(block) + size <= SLAB_BYTES && block::size_of(*block) == size
            }));
            // In an order that leaves each slab with holes for long.
            let odd: Vec<_> = blocks.iter().copied().skip(1).step_by(2).collect();
            give(&pool, blocks.into_iter().step_by(2));
            let again = take(&pool, class, odd.len() / 2);
            give(&pool, odd.into_iter().chain(again));
        }
        assert!(pool.bytes() <= SPARE * SLAB_BYTES);
        pool.open().trim();
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn threads_give_back_what_others_took() {
        let pool = Pool::new();
        let turns = if cfg!(miri) { 10 } else { 1000 };
        for _ in 0..turns {
            let taken = take(&pool, 0, 10);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mine = take(&pool, 0, 10);
                    give(&pool, mine);
                });
                give(&pool, taken);
            });
        }
        pool.open().trim();
        assert_eq!(pool.bytes(), 0);
    }
}
