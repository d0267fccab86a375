//! Randomized schedules against reference models: the exact order on one core, and on several cores no lost wake, no
//! coroutine on two cores, and a bound on how long something urgent waits.
//!
//! A failure names its seed; `HEDDLE_LONG=1` tries a hundred times as many. `check.sh fuzz` plays the games of one core
//! with numbers that libFuzzer chooses.
#![cfg(all(feature = "std", not(heddle_loom)))]

mod cores;
mod order;
mod ranks;
#[path = "../support/mod.rs"]
mod support;
mod waits;

/// A generator of numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % bound
    }
}

/// Calls `check` with the numbers of many seeds.
pub fn seeds(count: u64, check: impl Fn(&mut Random, u64)) {
    let count = match (cfg!(miri), std::env::var_os("HEDDLE_LONG")) {
        (true, _) => 8,
        (_, Some(_)) => count * 100,
        _ => count,
    };
    (1..=count).for_each(|seed| check(&mut Random::new(seed), seed));
}
