//! Kara, "Implement range locks" (Linux, 2013): a spinlock around an interval tree of all requests. A request
//! counts the conflicting ones that came before it and holds its range when the count is down to zero.
//!
//! The tree is a treap with the maximal end of each subtree, where Linux has a red-black tree with the same
//! augmentation: both are balanced binary trees, and the treap is the shorter one to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use crate::random::Random;
use crate::side::{Patience, Side};
use crate::sides::spin::Spin;

const NONE: u32 = u32::MAX;

struct Node {
    start: u64,
    end: u64,
    shared: bool,
    /// The biggest end in the subtree.
    reach: u64,
    weight: u32,
    left: u32,
    right: u32,
    /// Conflicting requests that came before and are not done.
    blocking: u32,
    waiter: Option<Arc<Waiter>>,
}

struct Waiter {
    thread: Thread,
    granted: AtomicBool,
}

struct Tree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    random: Random,
}

impl Tree {
    fn reach(&self, at: u32) -> u64 {
        if at == NONE { 0 } else { self.nodes[at as usize].reach }
    }

    fn update(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let reach = node.end.max(self.reach(node.left)).max(self.reach(node.right));
        self.nodes[at as usize].reach = reach;
    }

    /// Nodes keyed below (`start`, `id`), and the others.
    fn split(&mut self, at: u32, start: u64, id: u32) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let node = &self.nodes[at as usize];
        if (node.start, at) < (start, id) {
            let (low, high) = self.split(node.right, start, id);
            self.nodes[at as usize].right = low;
            self.update(at);
            (at, high)
        } else {
            let (low, high) = self.split(node.left, start, id);
            self.nodes[at as usize].left = high;
            self.update(at);
            (low, at)
        }
    }

    fn join(&mut self, low: u32, high: u32) -> u32 {
        if low == NONE || high == NONE {
            return if low == NONE { high } else { low };
        }
        if self.nodes[low as usize].weight > self.nodes[high as usize].weight {
            let right = self.join(self.nodes[low as usize].right, high);
            self.nodes[low as usize].right = right;
            self.update(low);
            low
        } else {
            let left = self.join(low, self.nodes[high as usize].left);
            self.nodes[high as usize].left = left;
            self.update(high);
            high
        }
    }

    fn overlaps(&self, at: u32, start: u64, end: u64, visit: &mut impl FnMut(u32)) {
        if at == NONE || self.nodes[at as usize].reach <= start {
            return;
        }
        let node = &self.nodes[at as usize];
        self.overlaps(node.left, start, end, visit);
        if node.start < end {
            if node.end > start {
                visit(at);
            }
            self.overlaps(node.right, start, end, visit);
        }
    }

    fn blocking(&self, start: u64, end: u64, shared: bool) -> u32 {
        let mut blocking = 0;
        self.overlaps(self.root, start, end, &mut |at| {
            blocking += u32::from(!(shared && self.nodes[at as usize].shared));
        });
        blocking
    }

    fn insert(&mut self, mut node: Node) -> u32 {
        node.weight = self.random.number() as u32;
        let new = match self.free.pop() {
            Some(free) => free,
            None => self.nodes.len() as u32,
        };
        let start = node.start;
        if new as usize == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[new as usize] = node;
        }
        self.root = self.insert_at(self.root, new, start);
        new
    }

    /// Goes down to where the new node's weight belongs and splits there only.
    fn insert_at(&mut self, at: u32, new: u32, start: u64) -> u32 {
        if at == NONE || self.nodes[at as usize].weight < self.nodes[new as usize].weight {
            let (low, high) = self.split(at, start, new);
            let node = &mut self.nodes[new as usize];
            (node.left, node.right) = (low, high);
            self.update(new);
            return new;
        }
        if (start, new) < (self.nodes[at as usize].start, at) {
            let left = self.insert_at(self.nodes[at as usize].left, new, start);
            self.nodes[at as usize].left = left;
        } else {
            let right = self.insert_at(self.nodes[at as usize].right, new, start);
            self.nodes[at as usize].right = right;
        }
        self.update(at);
        at
    }

    fn remove_at(&mut self, at: u32, old: u32, start: u64) -> u32 {
        if at == old {
            let node = &self.nodes[old as usize];
            return self.join(node.left, node.right);
        }
        if (start, old) < (self.nodes[at as usize].start, at) {
            let left = self.remove_at(self.nodes[at as usize].left, old, start);
            self.nodes[at as usize].left = left;
        } else {
            let right = self.remove_at(self.nodes[at as usize].right, old, start);
            self.nodes[at as usize].right = right;
        }
        self.update(at);
        at
    }

    /// Takes a request out; calls `granted` for those whose last obstacle it was.
    fn remove(&mut self, old: u32, mut granted: impl FnMut(Arc<Waiter>)) {
        let Node { start, end, shared, .. } = self.nodes[old as usize];
        self.root = self.remove_at(self.root, old, start);
        // Whoever overlaps and still waits came later: those before it would have kept it from being held.
        let mut later = Vec::new();
        self.overlaps(self.root, start, end, &mut |at| {
            let node = &self.nodes[at as usize];
            if node.blocking > 0 && !(shared && node.shared) {
                later.push(at);
            }
        });
        for at in later {
            let node = &mut self.nodes[at as usize];
            node.blocking -= 1;
            if node.blocking == 0
                && let Some(waiter) = node.waiter.take()
            {
                granted(waiter);
            }
        }
        self.free.push(old);
    }
}

/// One spinlock, one interval tree, first come first served.
pub struct Kara(Spin<Tree>);

impl Kara {
    fn acquire(&self, start: u64, end: u64, shared: bool) -> u32 {
        let (held, waiter) = self.0.with(|tree| {
            let blocking = tree.blocking(start, end, shared);
            let waiter = (blocking > 0)
                .then(|| Arc::new(Waiter { thread: thread::current(), granted: AtomicBool::new(false) }));
            let node = Node {
                start,
                end,
                shared,
                reach: end,
                weight: 0,
                left: NONE,
                right: NONE,
                blocking,
                waiter: waiter.clone(),
            };
            (tree.insert(node), waiter)
        });
        if let Some(waiter) = waiter {
            while !waiter.granted.load(Ordering::Acquire) {
                thread::park();
            }
        }
        held
    }
}

impl Side for Kara {
    type Held = u32;
    const NAME: &'static str = "kara";
    const SHARES: bool = true;

    fn new(_: u64) -> Self {
        Self(Spin::new(Tree { nodes: Vec::new(), free: Vec::new(), root: NONE, random: Random::new(5) }))
    }

    fn parameters(&self) -> String {
        format!(
            "interval treap, FIFO by counts, spinlock yields after {} spins, waiters park",
            Patience::SPINS
        )
    }

    #[inline]
    fn try_lock(&self, start: u64, end: u64) -> Option<u32> {
        self.0.with(|tree| {
            let mut free = true;
            tree.overlaps(tree.root, start, end, &mut |_| free = false);
            free.then(|| {
                tree.insert(Node {
                    start,
                    end,
                    shared: false,
                    reach: end,
                    weight: 0,
                    left: NONE,
                    right: NONE,
                    blocking: 0,
                    waiter: None,
                })
            })
        })
    }

    #[inline]
    fn lock(&self, start: u64, end: u64) -> u32 {
        self.acquire(start, end, false)
    }

    #[inline]
    fn lock_shared(&self, start: u64, end: u64) -> u32 {
        self.acquire(start, end, true)
    }

    #[inline]
    fn unlock(&self, held: u32) {
        let mut granted = Vec::new();
        self.0.with(|tree| tree.remove(held, |waiter| granted.push(waiter)));
        for waiter in granted {
            waiter.granted.store(true, Ordering::Release);
            waiter.thread.unpark();
        }
    }
}
