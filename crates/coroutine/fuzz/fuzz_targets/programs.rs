//! The randomized programs of `tests/random`, with the fuzzer's bytes in place of random numbers: executors of one
//! thread, wait lists and ranks against their reference models.
//!
//! The games of several cores are not among them: how often something urgent is passed over has a bound there that a
//! fuzzer may exceed, as it can keep a core from ever looking.
#![no_main]

#[path = "../../tests/random/order.rs"]
mod order;
#[path = "../../tests/random/ranks.rs"]
mod ranks;
#[path = "../../tests/random/waits.rs"]
mod waits;

use libfuzzer_sys::fuzz_target;

/// Numbers made of the fuzzer's bytes; 0 when there are no more.
pub struct Random<'a>(&'a [u8]);

impl Random<'_> {
    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % bound
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut random = Random(bytes);
    let games = [order::keeps_the_exact_order, order::drops_everything, ranks::play, waits::play];
    games[random.below(games.len())](&mut random, 0);
});
