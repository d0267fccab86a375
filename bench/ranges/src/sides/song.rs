//! Song et al., "Parallelizing live migration of virtual machines" (VEE 2013): one spinlock around a skip list of
//! the held ranges. A request that overlaps waits and tries again.

use crate::random::Random;
use crate::side::{Patience, Side};
use crate::sides::spin::Spin;

/// Levels; with one node in four a level up, enough for millions.
const LEVELS: usize = 12;
const NONE: u32 = u32::MAX;

struct Node {
    start: u64,
    end: u64,
    next: [u32; LEVELS],
    height: u8,
}

/// A skip list in an arena; node 0 is the head.
struct SkipList {
    nodes: Vec<Node>,
    free: Vec<u32>,
    random: Random,
}

impl SkipList {
    fn new() -> Self {
        let head = Node { start: 0, end: 0, next: [NONE; LEVELS], height: LEVELS as u8 };
        Self { nodes: vec![head], free: Vec::new(), random: Random::new(3) }
    }

    /// The last node of every level that starts before `start`.
    fn before(&self, start: u64) -> [u32; LEVELS] {
        let mut before = [0; LEVELS];
        let mut at = 0;
        for level in (0..LEVELS).rev() {
            loop {
                let next = self.nodes[at as usize].next[level];
                if next == NONE || self.nodes[next as usize].start >= start {
                    break;
                }
                at = next;
            }
            before[level] = at;
        }
        before
    }

    fn insert(&mut self, start: u64, end: u64) -> bool {
        let before = self.before(start);
        let left = before[0];
        let right = self.nodes[left as usize].next[0];
        if left != 0 && self.nodes[left as usize].end > start
            || right != NONE && self.nodes[right as usize].start < end
        {
            return false;
        }
        let height = (1 + self.random.number().trailing_zeros() / 2).min(LEVELS as u32) as u8;
        let node = Node { start, end, next: [NONE; LEVELS], height };
        let new = match self.free.pop() {
            Some(free) => {
                self.nodes[free as usize] = node;
                free
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        for (level, &left) in before.iter().enumerate().take(usize::from(height)) {
            let right = std::mem::replace(&mut self.nodes[left as usize].next[level], new);
            self.nodes[new as usize].next[level] = right;
        }
        true
    }

    fn remove(&mut self, start: u64) {
        let before = self.before(start);
        let old = self.nodes[before[0] as usize].next[0];
        debug_assert_eq!(self.nodes[old as usize].start, start);
        for (level, &left) in before.iter().enumerate().take(usize::from(self.nodes[old as usize].height)) {
            self.nodes[left as usize].next[level] = self.nodes[old as usize].next[level];
        }
        self.free.push(old);
    }
}

/// One spinlock, one skip list.
pub struct Song(Spin<SkipList>);

impl Side for Song {
    type Held = u64;
    const NAME: &'static str = "song";
    const SHARES: bool = false;

    fn new(_: u64) -> Self {
        Self(Spin::new(SkipList::new()))
    }

    fn parameters(&self) -> String {
        format!("p = 1/4, {LEVELS} levels, spinlock yields after {} spins", Patience::SPINS)
    }

    #[inline]
    fn try_lock(&self, start: u64, end: u64) -> Option<u64> {
        self.0.with(|list| list.insert(start, end)).then_some(start)
    }

    #[inline]
    fn lock(&self, start: u64, end: u64) -> u64 {
        let mut patience = Patience::new();
        loop {
            match self.try_lock(start, end) {
                Some(held) => return held,
                None => patience.wait(),
            }
        }
    }

    #[inline]
    fn unlock(&self, start: u64) {
        self.0.with(|list| list.remove(start));
    }
}
