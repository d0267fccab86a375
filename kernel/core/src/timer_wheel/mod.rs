//! A hierarchical timer wheel (Varghese and Lauck, "Hashed and hierarchical timing wheels", SOSP 1987): timers are set
//! and removed in constant time, and what is due is found by the bits of occupied slots.
//!
//! Time is counted in ticks of [`TICK_NS`]. A level has 64 slots; a slot of level 0 is a tick, one of the next level 64
//! of them. A timer lies on the level of the highest six bits in which its tick differs from the present one, so it
//! moves to a lower level at most once for each level. A timer never fires early, and late by less than a tick.
//!
//! Work is done one timer at a time ([`TimerWheel::step`]), so that a slot full of timers delays no other work.

#[cfg(all(test, not(heddle_loom)))]
mod tests;

use alloc::vec::Vec;

use crate::fallible::push_reserved;

/// Nanoseconds of a tick.
pub const TICK_NS: u64 = 1 << TICK_BITS;
const TICK_BITS: u32 = 10;
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
/// Enough for every number of nanoseconds that 64 bits hold.
const LEVELS: usize = (u64::BITS - TICK_BITS).div_ceil(LEVEL_BITS) as usize;
/// The last tick.
const TICK_MAX: u64 = u64::MAX / TICK_NS;
/// No entry.
const NONE: u32 = u32::MAX;

pub use crate::OutOfMemory;

/// A timer that was set. It names nothing any more once the timer has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// A timer is due.
    Due(T),
    /// A timer has been moved to a lower level; there may be more to do.
    Moved,
    /// Nothing is due before this moment; `u64::MAX` if there is no timer.
    Idle(u64),
}

struct TimerEntry<T> {
    tick: u64,
    value: Option<T>,
    generation: u32,
    level: u8,
    next: u32,
    previous: u32,
}

/// The timers of one processor.
pub struct TimerWheel<T> {
    /// The tick up to which all is done.
    elapsed: u64,
    occupied: [u64; LEVELS],
    heads: [[u32; SLOTS]; LEVELS],
    entries: Vec<TimerEntry<T>>,
    /// The first free entry; `next` links them.
    free: u32,
}

impl<T> TimerWheel<T> {
    /// A wheel without timers; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            elapsed: 0,
            occupied: [0; LEVELS],
            heads: [[NONE; SLOTS]; LEVELS],
            entries: Vec::new(),
            free: NONE,
        }
    }

    /// Sets a timer.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the value is dropped.
    pub fn insert(&mut self, deadline_ns: u64, value: T) -> Result<TimerKey, OutOfMemory> {
        let index = match self.free {
            NONE => {
                let index = u32::try_from(self.entries.len()).map_err(|_| OutOfMemory)?;
                self.entries.try_reserve(1).map_err(|_| OutOfMemory)?;
                push_reserved(
                    &mut self.entries,
                    TimerEntry { tick: 0, value: None, generation: 0, level: 0, next: NONE, previous: NONE },
                );
                index
            }
            index => {
                self.free = self.entries[index as usize].next;
                index
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.tick = deadline_ns.div_ceil(TICK_NS).min(TICK_MAX);
        entry.value = Some(value);
        let generation = entry.generation;
        self.link(index);
        Ok(TimerKey { index, generation })
    }

    /// Removes a timer that has not fired.
    pub fn remove(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation != key.generation || entry.value.is_none() {
            return None;
        }
        self.unlink(key.index);
        self.release(key.index)
    }

    /// Advances towards `now_ns` by one timer. Calls for which time goes back find what the latest has left.
    pub fn step(&mut self, now_ns: u64) -> Step<T> {
        let now = now_ns / TICK_NS;
        let Some((level, slot, tick)) = self.next_slot() else {
            self.elapsed = self.elapsed.max(now);
            return Step::Idle(u64::MAX);
        };
        if tick > now {
            self.elapsed = self.elapsed.max(now);
            return Step::Idle(tick.saturating_mul(TICK_NS));
        }
        self.elapsed = self.elapsed.max(tick);
        let index = self.heads[level][slot];
        self.unlink(index);
        if self.entries[index as usize].tick <= self.elapsed {
            return self.release(index).map_or(Step::Moved, Step::Due);
        }
        self.link(index);
        Step::Moved
    }

    /// The moment at which there is something to do; `u64::MAX` if there is no timer.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        self.next_slot().map_or(u64::MAX, |(_, _, tick)| tick.saturating_mul(TICK_NS))
    }

    /// The first slot in time that is occupied, and the tick at which it begins.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        let slot_of = |level: usize| {
            let shift = level as u32 * LEVEL_BITS;
            let position = (self.elapsed >> shift) as usize % SLOTS;
            // Slots before the present one are empty: what they stood for is over.
            let bits = self.occupied[level] >> position << position;
            (bits != 0).then(|| {
                let slot = bits.trailing_zeros() as usize;
                let turn = self.elapsed.checked_shr(shift + LEVEL_BITS).unwrap_or(0);
                let turn = turn.checked_shl(shift + LEVEL_BITS).unwrap_or(0);
                (level, slot, turn | (slot as u64) << shift)
            })
        };
        (0..LEVELS).filter_map(slot_of).min_by_key(|&(_, _, tick)| tick)
    }

    /// Puts an entry into the slot for its tick, or for the present one if that has passed.
    fn link(&mut self, index: u32) {
        let tick = self.entries[index as usize].tick.max(self.elapsed);
        let level = match tick ^ self.elapsed {
            0 => 0,
            difference => difference.ilog2() / LEVEL_BITS,
        };
        let slot = (tick >> (level * LEVEL_BITS)) as usize % SLOTS;
        let head = core::mem::replace(&mut self.heads[level as usize][slot], index);
        if let Some(first) = self.entries.get_mut(head as usize) {
            first.previous = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.level, entry.next, entry.previous) = (level as u8, head, NONE);
        // Late timers are in the slot of the present tick.
        entry.tick = tick;
        self.occupied[level as usize] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        let (level, next, previous) = (usize::from(entry.level), entry.next, entry.previous);
        let slot = (entry.tick >> (level as u32 * LEVEL_BITS)) as usize % SLOTS;
        if let Some(after) = self.entries.get_mut(next as usize) {
            after.previous = previous;
        }
        match self.entries.get_mut(previous as usize) {
            Some(before) => before.next = next,
            None => {
                self.heads[level][slot] = next;
                if next == NONE {
                    self.occupied[level] &= !(1 << slot);
                }
            }
        }
    }

    /// Makes an entry that is in no slot free.
    fn release(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = core::mem::replace(&mut self.free, index);
        entry.value.take()
    }
}

impl<T> Default for TimerWheel<T> {
    fn default() -> Self {
        Self::new()
    }
}
