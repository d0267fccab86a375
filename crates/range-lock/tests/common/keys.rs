//! Keys whose order lies or panics, as safe code may make it.
#![allow(dead_code)] // Each program takes what it needs.

use std::cell::Cell;
use std::cmp::Ordering;

use crate::wakers::HOSTILE;

thread_local! {
    static LIES_IN: Cell<u32> = const { Cell::new(u32::MAX) };
    static LIES: Cell<u32> = const { Cell::new(0) };
    static PANICS_IN: Cell<u32> = const { Cell::new(u32::MAX) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// A number whose comparisons this thread can spoil.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key(pub u64);

/// After so many comparisons in this thread, `count` of them are answered the wrong way round.
pub fn lie(after: u32, count: u32) {
    LIES_IN.set(after);
    LIES.set(count);
}

/// After so many comparisons in this thread one panics.
pub fn panic_after(comparisons: u32) {
    PANICS_IN.set(comparisons);
}

/// A third of this thread's comparisons are wrong from now on, unless the seed is 0.
pub fn lie_at_random(seed: u64) {
    RANDOM.set(seed);
}

/// Ends all of that.
pub fn be_honest() {
    lie(u32::MAX, 0);
    panic_after(u32::MAX);
    lie_at_random(0);
}

fn is_spoilt() -> bool {
    match PANICS_IN.get() {
        u32::MAX => {}
        0 => {
            be_honest();
            std::panic::panic_any(HOSTILE)
        }
        left => PANICS_IN.set(left - 1),
    }
    let mut random = RANDOM.get();
    if random != 0 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        RANDOM.set(random);
        return (random >> 11) % 3 == 1;
    }
    match LIES_IN.get() {
        u32::MAX => false,
        0 => {
            let left = LIES.get();
            LIES.set(left.saturating_sub(1));
            left > 0
        }
        left => {
            LIES_IN.set(left - 1);
            false
        }
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        if is_spoilt() { other.0.cmp(&self.0) } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
