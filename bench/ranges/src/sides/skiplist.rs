//! The thesis' design with its faults mended: a lock-free skip list (Herlihy, Lev, Shavit) whose nodes are ranges.
//! Half-open ranges; marked nodes are snipped before a conflict is judged; the exchange is on the very pair that
//! was judged; a release marks its own node from the top down, unlinks it at every level and retires it behind an
//! epoch; node and tower are one allocation.
#![allow(unsafe_code)] // A lock-free list of raw nodes.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_epoch::{self as epoch, Guard};

use crate::side::{Patience, Side};

const MARK: usize = 1;
/// Levels at most; the thesis found 10 best.
pub const LEVELS: usize = 16;
/// The levels of [`SkipList::new`].
pub const DEFAULT_LEVELS: usize = 10;

#[repr(C)]
struct Node {
    start: u64,
    end: u64,
    height: usize,
    // Followed by `height` links.
}

fn layout(height: usize) -> Layout {
    let size = size_of::<Node>() + height * size_of::<AtomicUsize>();
    Layout::from_size_align(size, align_of::<Node>()).expect("a few words")
}

fn create(start: u64, end: u64, height: usize) -> usize {
    // SAFETY: the layout is not empty, and the writes stay inside of it.
    unsafe {
        let node = alloc(layout(height)).cast::<Node>();
        if node.is_null() {
            handle_alloc_error(layout(height));
        }
        node.write(Node { start, end, height });
        for level in 0..height {
            node.add(1).cast::<AtomicUsize>().add(level).write(AtomicUsize::new(0));
        }
        node as usize
    }
}

/// Frees a node that nobody can reach.
unsafe fn destroy(node: usize) {
    // SAFETY: made by `create` with this height.
    unsafe { dealloc(node as *mut u8, layout((*(node as *const Node)).height)) }
}

fn node<'g>(address: usize) -> &'g Node {
    // SAFETY: read from the list under a guard, or owned by the caller.
    unsafe { &*((address & !MARK) as *const Node) }
}

fn link<'g>(address: usize, level: usize) -> &'g AtomicUsize {
    // SAFETY: as in `node`; the level is below the node's height wherever a node was found on that level.
    unsafe { &*(((address & !MARK) as *const Node).add(1).cast::<AtomicUsize>().add(level)) }
}

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// A height from a generator of the thread's own: one node in two a level up.
fn some_height(levels: usize) -> usize {
    let bits = SEED.with(|seed| {
        let mut x = seed.get();
        if x == 0 {
            x = std::ptr::from_ref(seed) as u64 | 1;
        }
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        seed.set(x);
        x >> 8
    });
    (1 + bits.trailing_ones() as usize).min(levels)
}

/// The skip list; the head is a node before all keys.
pub struct SkipList {
    head: usize,
    levels: usize,
}

struct Around {
    before: [usize; LEVELS],
    after: [usize; LEVELS],
}

impl SkipList {
    /// A list of at most `levels` levels.
    pub fn with_levels(levels: usize) -> Self {
        assert!((1..=LEVELS).contains(&levels));
        Self { head: create(0, 0, levels), levels }
    }

    /// The neighbours of `start` on every level, marked nodes snipped on the way. `past`: goes past nodes that
    /// start exactly there, so that a removed one behind a newer one is snipped too.
    fn find(&self, start: u64, past: bool, _: &Guard) -> Around {
        'retry: loop {
            let mut around = Around { before: [self.head; LEVELS], after: [0; LEVELS] };
            let mut previous = self.head;
            for level in (0..self.levels).rev() {
                let mut current = link(previous, level).load(Ordering::Acquire);
                if current & MARK != 0 {
                    continue 'retry;
                }
                while current != 0 {
                    let next = link(current, level).load(Ordering::Acquire);
                    if next & MARK != 0 {
                        let after = next & !MARK;
                        let place = link(previous, level);
                        if place
                            .compare_exchange(current, after, Ordering::AcqRel, Ordering::Relaxed)
                            .is_err()
                        {
                            continue 'retry;
                        }
                        current = after;
                        continue;
                    }
                    let key = node(current).start;
                    if key > start || key == start && !past {
                        break;
                    }
                    previous = current;
                    current = next;
                }
                around.before[level] = previous;
                around.after[level] = current;
            }
            return around;
        }
    }

    fn insert(&self, start: u64, end: u64) -> Option<usize> {
        let guard = epoch::pin();
        let mut new = 0;
        loop {
            let around = self.find(start, false, &guard);
            let (left, right) = (around.before[0], around.after[0]);
            let conflict =
                left != self.head && node(left).end > start || right != 0 && node(right).start < end;
            if conflict {
                // Judged on a neighbour that is gone by now: look again.
                if left != self.head && link(left, 0).load(Ordering::Acquire) & MARK != 0 {
                    continue;
                }
                if new != 0 {
                    // SAFETY: never linked.
                    unsafe { destroy(new) };
                }
                return None;
            }
            if new == 0 {
                new = create(start, end, some_height(self.levels));
            }
            for level in 0..node(new).height {
                link(new, level).store(around.after[level], Ordering::Relaxed);
            }
            let place = link(left, 0);
            if place.compare_exchange(right, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.raise(new, around, &guard);
                return Some(new);
            }
        }
    }

    /// Links a node's upper levels. Only its holder releases it, and has not got it yet, so it is not marked here.
    fn raise(&self, new: usize, mut around: Around, guard: &Guard) {
        for level in 1..node(new).height {
            loop {
                link(new, level).store(around.after[level], Ordering::Relaxed);
                let place = link(around.before[level], level);
                let (old, order) = (around.after[level], Ordering::AcqRel);
                if place.compare_exchange(old, new, order, Ordering::Relaxed).is_ok() {
                    break;
                }
                around = self.find(node(new).start, false, guard);
            }
        }
    }

    fn remove(&self, held: usize) {
        let guard = epoch::pin();
        for level in (0..node(held).height).rev() {
            link(held, level).fetch_or(MARK, Ordering::AcqRel);
        }
        self.find(node(held).start, true, &guard);
        // SAFETY: that search has unlinked it at every level, and only its holder removes a node.
        unsafe { guard.defer_unchecked(move || destroy(held)) };
    }
}

impl Side for SkipList {
    type Held = usize;
    const NAME: &'static str = "skiplist";
    const SHARES: bool = false;

    fn new(_: u64) -> Self {
        Self::with_levels(DEFAULT_LEVELS)
    }

    fn parameters(&self) -> String {
        format!(
            "the thesis' list mended: p = 1/2, {} levels, crossbeam epochs, waits spin then yield",
            self.levels
        )
    }

    #[inline]
    fn try_lock(&self, start: u64, end: u64) -> Option<usize> {
        self.insert(start, end)
    }

    #[inline]
    fn lock(&self, start: u64, end: u64) -> usize {
        let mut patience = Patience::new();
        loop {
            match self.insert(start, end) {
                Some(held) => return held,
                None => patience.wait(),
            }
        }
    }

    #[inline]
    fn unlock(&self, held: usize) {
        self.remove(held);
    }
}

impl Drop for SkipList {
    fn drop(&mut self) {
        let mut at = self.head;
        while at != 0 {
            let next = link(at, 0).load(Ordering::Relaxed) & !MARK;
            // SAFETY: nobody else uses the list any more.
            unsafe { destroy(at) };
            at = next;
        }
    }
}
