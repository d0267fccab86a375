//! Free blocks of frames, by the buddy method (Knowlton 1965).

use core::sync::atomic::Ordering::Relaxed;

use crate::frame::BLOCK_FRAMES;
use crate::frame::descriptor::{Descriptor, NONE};
use crate::frame::layout::REGIONS_MAX;

/// Number of block sizes: 2^0 to 2^(ORDERS - 1) frames.
pub const ORDERS: usize = 11;

/// Free frames whose descriptors nobody has written yet.
#[derive(Clone, Copy, Debug)]
struct Untouched {
    start: u32,
    end: u32,
}

/// The free blocks among the frames of a slice of descriptors.
///
/// Free blocks of an order are a doubly linked list through their first descriptors; a block and its *buddy*, the
/// other half of the next larger block, merge as soon as both are free.
///
/// Memory that was never used is only a range of indices, of which the next [`BLOCK_FRAMES`] are cut into blocks when
/// the lists have none that is large enough. So neither the time to hand in memory nor the memory that is touched for
/// descriptors depends on how much there is. No block crosses a multiple of `BLOCK_FRAMES`, so nothing looks at a
/// descriptor before it is written.
#[derive(Debug)]
pub struct Buddy<'a> {
    descriptors: &'a [Descriptor],
    heads: [u32; ORDERS],
    free: usize,
    untouched: [Untouched; REGIONS_MAX],
}

impl<'a> Buddy<'a> {
    /// No free frames yet: [`Buddy::release`] and [`Buddy::add_untouched`] hand them in.
    #[must_use]
    pub const fn new(descriptors: &'a [Descriptor]) -> Self {
        Self {
            descriptors,
            heads: [NONE; ORDERS],
            free: 0,
            untouched: [Untouched { start: 0, end: 0 }; REGIONS_MAX],
        }
    }

    /// Hands in `count` contiguous frames whose descriptors may hold anything. No other frames that are handed in lie
    /// in the same [`BLOCK_FRAMES`] as one of these. `false` if there are too many such ranges.
    pub fn add_untouched(&mut self, start: u32, count: u32) -> bool {
        let Some(place) = self.untouched.iter_mut().find(|range| range.start == range.end) else {
            return false;
        };
        *place = Untouched { start, end: start + count };
        self.free += count as usize;
        true
    }

    /// Cuts the next frames that were never used into blocks; `false` if there are none.
    fn touch(&mut self) -> bool {
        let Some(range) = self.untouched.iter_mut().find(|range| range.start < range.end) else {
            return false;
        };
        let start = range.start;
        let first = start / BLOCK_FRAMES * BLOCK_FRAMES;
        let end = range.end.min(first + BLOCK_FRAMES);
        range.start = end;
        // Those beside the range too: releasing a frame looks at its neighbours.
        for descriptor in self.descriptors.iter().skip(first as usize).take(BLOCK_FRAMES as usize) {
            descriptor.set_other();
        }
        self.free -= (end - start) as usize;
        self.release_range(start, end - start);
        true
    }

    /// The descriptors.
    #[must_use]
    pub const fn descriptors(&self) -> &'a [Descriptor] {
        self.descriptors
    }

    /// How many frames are free.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.free
    }

    /// Whether a block of 2^`order` frames is free.
    #[must_use]
    pub fn has_block(&self, order: usize) -> bool {
        let size = 1 << order;
        let fits = |range: &Untouched| range.start.next_multiple_of(size) + size <= range.end;
        self.heads.iter().skip(order).any(|&head| head != NONE) || self.untouched.iter().any(fits)
    }

    /// Takes a block of 2^`order` frames; the index of the first is a multiple of its length.
    #[must_use]
    pub fn allocate(&mut self, order: usize) -> Option<u32> {
        let found = loop {
            if let Some(found) = (order..ORDERS).find(|&order| self.heads[order] != NONE) {
                break found;
            }
            if !self.touch() {
                return None;
            }
        };
        let index = self.heads[found];
        self.unlink(index, found);
        self.descriptors[index as usize].set_other();
        for smaller in (order..found).rev() {
            self.link(index + (1 << smaller), smaller);
        }
        self.free -= 1 << order;
        Some(index)
    }

    /// Takes `count` contiguous frames, which must fit the largest block.
    #[must_use]
    pub fn allocate_exact(&mut self, count: u32) -> Option<u32> {
        let order = order_of(count)?;
        let index = self.allocate(order)?;
        self.release_range(index + count, (1 << order) - count);
        Some(index)
    }

    /// Gives a block of 2^`order` frames back.
    pub fn release(&mut self, index: u32, order: usize) {
        self.free += 1 << order;
        let (mut index, mut order) = (index, order);
        while order + 1 < ORDERS {
            let buddy = index ^ (1 << order);
            let is_free = self
                .descriptors
                .get(buddy as usize)
                .is_some_and(|descriptor| descriptor.free_order() == Some(order));
            if !is_free {
                break;
            }
            self.unlink(buddy, order);
            self.descriptors[buddy as usize].set_other();
            index &= !(1 << order);
            order += 1;
        }
        self.link(index, order);
    }

    /// Gives `count` contiguous frames back, cut into blocks that are aligned to their size.
    pub fn release_range(&mut self, start: u32, count: u32) {
        let (mut start, end) = (start, start + count);
        while start < end {
            let aligned = (start.trailing_zeros() as usize).min(ORDERS - 1);
            let fits = (end - start).ilog2() as usize;
            let order = aligned.min(fits);
            self.release(start, order);
            start += 1 << order;
        }
    }

    fn link(&mut self, index: u32, order: usize) {
        let head = self.heads[order];
        let descriptor = &self.descriptors[index as usize];
        descriptor.set_free(order);
        descriptor.next.store(head, Relaxed);
        descriptor.previous.store(NONE, Relaxed);
        if head != NONE {
            self.descriptors[head as usize].previous.store(index, Relaxed);
        }
        self.heads[order] = index;
    }

    fn unlink(&mut self, index: u32, order: usize) {
        let descriptor = &self.descriptors[index as usize];
        let (next, previous) = (descriptor.next.load(Relaxed), descriptor.previous.load(Relaxed));
        if next != NONE {
            self.descriptors[next as usize].previous.store(previous, Relaxed);
        }
        if previous == NONE {
            self.heads[order] = next;
        } else {
            self.descriptors[previous as usize].next.store(next, Relaxed);
        }
    }
}

/// The order of the smallest block that holds `count` frames; `None` if no block does.
#[must_use]
pub(crate) fn order_of(count: u32) -> Option<usize> {
    let order = count.checked_next_power_of_two()?.trailing_zeros() as usize;
    (count > 0 && order < ORDERS).then_some(order)
}

#[cfg(all(test, not(heddle_loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    fn descriptors(count: usize) -> Vec<Descriptor> {
        (0..count).map(|_| Descriptor::new()).collect()
    }

    /// A small generator (xorshift) so that a failure repeats.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u32) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % u64::from(limit)) as u32
        }
    }

    #[test]
    fn everything_released_merges_into_the_largest_blocks() {
        let descriptors = descriptors(4096);
        let mut buddy = Buddy::new(&descriptors);
        buddy.release_range(5, 4091);
        assert_eq!(buddy.free(), 4091);
        let mut taken = Vec::new();
        while let Some(frame) = buddy.allocate(0) {
            taken.push(frame);
        }
        assert_eq!(taken.len(), 4091);
        assert!(taken.iter().all(|&frame| frame >= 5));
        for &frame in &taken {
            buddy.release(frame, 0);
        }
        assert_eq!(buddy.free(), 4091);
        let blocks = (0..).map_while(|_| buddy.allocate(ORDERS - 1)).count();
        assert_eq!(blocks, 3);
    }

    #[test]
    fn random_blocks_never_overlap_and_none_is_lost() {
        for seed in 1..20 {
            let descriptors = descriptors(3000);
            let mut buddy = Buddy::new(&descriptors);
            buddy.release_range(100, 2800);
            let mut random = Random(seed * 0x9e37_79b9);
            let mut held: Vec<(u32, u32)> = Vec::new();
            let mut used = BTreeSet::new();
            for _ in 0..3000 {
                if random.below(2) == 0 {
                    let count = 1 + random.below(90);
                    let Some(start) = buddy.allocate_exact(count) else { continue };
                    for frame in start..start + count {
                        assert!((100..2900).contains(&frame));
                        assert!(used.insert(frame), "frame {frame} given out twice (seed {seed})");
                    }
                    held.push((start, count));
                } else if !held.is_empty() {
                    let (start, count) = held.swap_remove(random.below(held.len() as u32) as usize);
                    for frame in start..start + count {
                        used.remove(&frame);
                    }
                    buddy.release_range(start, count);
                }
                assert_eq!(buddy.free() + used.len(), 2800);
            }
            for (start, count) in held {
                buddy.release_range(start, count);
            }
            assert_eq!(buddy.free(), 2800);
            assert!(buddy.has_block(ORDERS - 1));
        }
    }

    /// The same sequence of requests has the same results whether descriptors were written before or not.
    #[test]
    fn memory_that_was_never_used_serves_as_any_other() {
        for seed in 1..20 {
            let descriptors = descriptors(5000);
            // Memory holds anything: here, that every frame heads a free block.
            descriptors.iter().for_each(|descriptor| descriptor.set_free(3));
            let mut buddy = Buddy::new(&descriptors);
            assert!(buddy.add_untouched(700, 2000));
            assert!(buddy.add_untouched(3072, 1500));
            assert_eq!(buddy.free(), 3500);
            assert!(buddy.has_block(ORDERS - 1));
            let mut random = Random(seed * 0x9e37_79b9);
            let mut used = BTreeSet::new();
            let mut held = Vec::new();
            loop {
                let count = 1 + random.below(300);
                let Some(start) = buddy.allocate_exact(count) else { break };
                for frame in start..start + count {
                    assert!((700..2700).contains(&frame) || (3072..4572).contains(&frame));
                    assert!(used.insert(frame), "frame {frame} given out twice (seed {seed})");
                }
                held.push((start, count));
                assert_eq!(buddy.free() + used.len(), 3500);
            }
            while let Some(frame) = buddy.allocate(0) {
                assert!(used.insert(frame));
                held.push((frame, 1));
            }
            assert_eq!((buddy.free(), used.len()), (0, 3500), "all of it can be had");
            assert!(!buddy.has_block(0));
            for (start, count) in held {
                buddy.release_range(start, count);
            }
            let blocks = (0..).map_while(|_| buddy.allocate(ORDERS - 1)).count();
            assert_eq!(blocks, 2, "1024 to 2048 and 3072 to 4096");
        }
    }

    #[test]
    fn only_what_is_needed_is_touched() {
        let descriptors = descriptors(8 * BLOCK_FRAMES as usize);
        descriptors.iter().for_each(|descriptor| descriptor.set_free(0));
        let mut buddy = Buddy::new(&descriptors);
        assert!(buddy.add_untouched(100, 8 * BLOCK_FRAMES - 100));
        for _ in 0..BLOCK_FRAMES - 100 {
            assert!(buddy.allocate(0).is_some_and(|frame| frame < BLOCK_FRAMES));
        }
        let untouched = descriptors.iter().skip(BLOCK_FRAMES as usize);
        assert!(untouched.clone().all(|descriptor| descriptor.free_order() == Some(0)));
        for _ in 0..7 {
            assert!(buddy.has_block(ORDERS - 1));
            assert!(buddy.allocate(ORDERS - 1).is_some());
        }
        assert!(!buddy.has_block(0) && buddy.allocate(0).is_none());
    }

    #[test]
    fn too_many_ranges_are_refused() {
        let descriptors = descriptors(0);
        let mut buddy = Buddy::new(&descriptors);
        let count = (0..20).take_while(|&number| buddy.add_untouched(number * BLOCK_FRAMES, 1)).count();
        assert_eq!(count, REGIONS_MAX);
    }

    #[test]
    fn too_large_requests_fail() {
        let descriptors = descriptors(2048);
        let mut buddy = Buddy::new(&descriptors);
        buddy.release_range(0, 2048);
        assert_eq!(buddy.allocate_exact(1025), None);
        assert_eq!(buddy.allocate_exact(0), None);
        assert!(buddy.allocate_exact(1024).is_some());
    }

    #[test]
    fn the_last_reference_is_told() {
        let descriptor = Descriptor::new();
        descriptor.set_references(1);
        descriptor.add_reference();
        assert!(!descriptor.drop_reference());
        assert_eq!(descriptor.references(), 1);
        assert!(descriptor.drop_reference());
    }
}
