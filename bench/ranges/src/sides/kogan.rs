//! Kogan, Dice and Issa, "Scalable range locks for scalable address spaces and beyond" (EuroSys 2020), the
//! exclusive variant: a lock-free list sorted by start. The lowest bit of `next` marks a released node, overlap
//! waits for that mark, a release is that one mark, and an empty list is taken by a fast path whose mark is in the
//! head. Nodes are recycled through per-thread pools, behind epochs.
#![allow(unsafe_code)] // A lock-free list of raw nodes.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_epoch::{self as epoch, Guard};

use crate::side::{Patience, Side};

const MARK: usize = 1;

struct Node {
    start: u64,
    end: u64,
    /// The next node's address; odd when this node is released.
    next: AtomicUsize,
}

/// A thread's free nodes.
struct Pool(Vec<usize>);

/// Nodes a pool keeps.
const POOL: usize = 512;

impl Drop for Pool {
    fn drop(&mut self) {
        for node in self.0.drain(..) {
            // SAFETY: pooled nodes came from `Box::into_raw` and nothing refers to them.
            drop(unsafe { Box::from_raw(node as *mut Node) });
        }
    }
}

thread_local! {
    static FREE: RefCell<Pool> = const { RefCell::new(Pool(Vec::new())) };
}

fn allocate(start: u64, end: u64) -> usize {
    let pooled = FREE.with_borrow_mut(|pool| pool.0.pop());
    match pooled {
        Some(node) => {
            // SAFETY: a pooled node is this thread's alone.
            unsafe { (node as *mut Node).write(Node { start, end, next: AtomicUsize::new(0) }) };
            node
        }
        None => Box::into_raw(Box::new(Node { start, end, next: AtomicUsize::new(0) })) as usize,
    }
}

/// Takes back a node that nobody can reach.
fn recycle(node: usize) {
    let kept = FREE.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        let room = pool.0.len() < POOL;
        if room {
            pool.0.push(node);
        }
        room
    });
    if kept != Ok(true) {
        // SAFETY: as for pooled nodes.
        drop(unsafe { Box::from_raw(node as *mut Node) });
    }
}

/// Outcome of one walk over the list.
enum Walk {
    Inserted,
    Again,
    Conflict,
}

/// The list.
pub struct Kogan(AtomicUsize);

impl Kogan {
    fn node(&self, address: usize, _: &Guard) -> &Node {
        // SAFETY: read from the list under the epoch guard, which keeps it in place.
        unsafe { &*((address & !MARK) as *const Node) }
    }

    /// Inserts `new` or says why not; `wait` makes it wait for overlapping nodes instead.
    fn walk(&self, new: usize, wait: bool, guard: &Guard) -> Walk {
        let mine = self.node(new, guard);
        let mut previous = &self.0;
        let mut current = previous.load(Ordering::Acquire);
        if current & MARK != 0 {
            // Someone holds the list by the fast path: turn it into an ordinary list first.
            let plain = current & !MARK;
            let _ = previous.compare_exchange(current, plain, Ordering::AcqRel, Ordering::Relaxed);
            return Walk::Again;
        }
        loop {
            if current & MARK != 0 {
                // `previous` was released under us.
                return Walk::Again;
            }
            if current == 0 {
                return self.link(previous, current, new);
            }
            let node = self.node(current, guard);
            let next = node.next.load(Ordering::Acquire);
            if next & MARK != 0 {
                let after = next & !MARK;
                if previous.compare_exchange(current, after, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                    return Walk::Again;
                }
                let unlinked = current;
                // SAFETY: unlinked by the exchange above, so only earlier pins can reach it.
                unsafe { guard.defer_unchecked(move || recycle(unlinked)) };
                current = after;
                continue;
            }
            if node.start >= mine.end {
                return self.link(previous, current, new);
            }
            if node.end <= mine.start {
                previous = &node.next;
                current = next;
                continue;
            }
            if !wait {
                return Walk::Conflict;
            }
            let mut patience = Patience::new();
            while node.next.load(Ordering::Acquire) & MARK == 0 {
                patience.wait();
            }
        }
    }

    fn link(&self, previous: &AtomicUsize, current: usize, new: usize) -> Walk {
        // SAFETY: `new` is the caller's own until it is linked.
        unsafe { (*(new as *const Node)).next.store(current, Ordering::Relaxed) };
        match previous.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Walk::Inserted,
            Err(_) => Walk::Again,
        }
    }

    fn insert(&self, start: u64, end: u64, wait: bool) -> Option<usize> {
        let new = allocate(start, end);
        loop {
            // SAFETY: `new` is not linked; an earlier attempt may have left a neighbour in it.
            unsafe { (*(new as *const Node)).next.store(0, Ordering::Relaxed) };
            if self.0.load(Ordering::Relaxed) == 0
                && self.0.compare_exchange(0, new | MARK, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                return Some(new);
            }
            match self.walk(new, wait, &epoch::pin()) {
                Walk::Inserted => return Some(new),
                Walk::Again => {}
                Walk::Conflict => {
                    recycle(new);
                    return None;
                }
            }
        }
    }
}

impl Side for Kogan {
    type Held = usize;
    const NAME: &'static str = "kogan";
    const SHARES: bool = false;

    fn new(_: u64) -> Self {
        Self(AtomicUsize::new(0))
    }

    fn parameters(&self) -> String {
        format!("exclusive list, fast path, crossbeam epochs, pools of {POOL} nodes, waits spin then yield")
    }

    #[inline]
    fn try_lock(&self, start: u64, end: u64) -> Option<usize> {
        self.insert(start, end, false)
    }

    #[inline]
    fn lock(&self, start: u64, end: u64) -> usize {
        self.insert(start, end, true).unwrap_or_else(|| unreachable!("a waiting insertion is not refused"))
    }

    #[inline]
    fn unlock(&self, held: usize) {
        if self.0.load(Ordering::Relaxed) == held | MARK
            && self.0.compare_exchange(held | MARK, 0, Ordering::Release, Ordering::Relaxed).is_ok()
        {
            recycle(held);
            return;
        }
        // SAFETY: the held node is in the list until it is marked here.
        unsafe { (*(held as *const Node)).next.fetch_or(MARK, Ordering::AcqRel) };
    }
}

impl Drop for Kogan {
    fn drop(&mut self) {
        let mut at = *self.0.get_mut() & !MARK;
        while at != 0 {
            // SAFETY: nobody else uses the list any more.
            let node = unsafe { Box::from_raw(at as *mut Node) };
            at = node.next.load(Ordering::Relaxed) & !MARK;
        }
    }
}
