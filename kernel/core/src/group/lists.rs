//! The members that are queued on one CPU, by level and, within a level, by how long they have waited.

use super::GroupMember;
use super::levels::{ORDERED, URGENT, URGENT_FIRST, URGENT_LEVELS};

/// Levels that have a list.
const LEVELS: usize = (URGENT + URGENT_LEVELS) as usize;

/// See the module. Members are named by their place; links hold 1 more, and 0 for none.
#[derive(Debug)]
pub(super) struct Lists {
    heads: [u32; LEVELS],
    tails: [u32; LEVELS],
    bits: u64,
    count: u32,
    /// Members that are ordered.
    ordered: u32,
}

impl Lists {
    pub(super) const fn new() -> Self {
        Self { heads: [0; LEVELS], tails: [0; LEVELS], bits: 0, count: 0, ordered: 0 }
    }

    /// The ordered levels that are not empty.
    const fn ordered_bits(&self) -> u64 {
        self.bits & ((1 << ORDERED) - 1)
    }

    /// The ordered and urgent levels that are not empty, as programs count.
    pub(super) const fn bits(&self) -> u64 {
        self.ordered_bits() | (self.bits >> URGENT) << URGENT_FIRST
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many members of ordered levels there are.
    pub(super) const fn ordered(&self) -> u32 {
        self.ordered
    }

    /// Adds a member at the place that its time of waiting gives it.
    pub(super) fn link<T>(&mut self, members: &mut [GroupMember<T>], index: u32) {
        let (level, since) = (members[index as usize].level, members[index as usize].since);
        let slot = usize::from(level);
        let is_before = |other: u32, members: &[GroupMember<T>]| members[other as usize - 1].since < since;
        // Most often it is the last, or the first.
        let mut before = self.tails[slot];
        if before != 0 && !is_before(before, members) {
            before = 0;
            let mut next = self.heads[slot];
            while next != 0 && is_before(next, members) {
                (before, next) = (next, members[next as usize - 1].next);
            }
        }
        let next = if before == 0 { self.heads[slot] } else { members[before as usize - 1].next };
        let member = &mut members[index as usize];
        (member.prev, member.next) = (before, next);
        if before == 0 {
            self.heads[slot] = index + 1
        } else {
            members[before as usize - 1].next = index + 1
        }
        if next == 0 {
            self.tails[slot] = index + 1
        } else {
            members[next as usize - 1].prev = index + 1
        }
        self.bits |= 1 << level;
        self.count += 1;
        self.ordered += u32::from(level < ORDERED);
    }

    /// Takes a member out.
    pub(super) fn unlink<T>(&mut self, members: &mut [GroupMember<T>], index: u32) {
        let GroupMember { level, prev, next, .. } = members[index as usize];
        let slot = usize::from(level);
        if prev == 0 {
            self.heads[slot] = next
        } else {
            members[prev as usize - 1].next = next
        }
        if next == 0 {
            self.tails[slot] = prev
        } else {
            members[next as usize - 1].prev = prev
        }
        if self.heads[slot] == 0 {
            self.bits &= !(1 << level);
        }
        self.count -= 1;
        self.ordered -= u32::from(level < ORDERED);
    }

    /// The first member for which `is_able` holds, of a level whose place in the order is before `bound`. The first
    /// places are those of the urgent levels.
    pub(super) fn first<T>(
        &self,
        members: &[GroupMember<T>],
        bound: u8,
        is_able: impl Fn(&GroupMember<T>) -> bool,
    ) -> Option<u32> {
        let all = self.ordered_bits() << URGENT_LEVELS | self.bits >> URGENT;
        let mut levels = all & ((1 << bound) - 1);
        while levels != 0 {
            let order = levels.trailing_zeros() as usize;
            let level = order.checked_sub(URGENT_LEVELS.into()).unwrap_or(order + usize::from(URGENT));
            let mut next = self.heads[level];
            while next != 0 {
                let member = &members[next as usize - 1];
                if is_able(member) {
                    return Some(next - 1);
                }
                next = member.next;
            }
            levels &= levels - 1;
        }
        None
    }
}
