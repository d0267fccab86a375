//! Hashing of keys that programs and the network choose: names of files, ports, addresses.
//!
//! hashbrown's own state draws its seed from addresses, which are the same at each start of a kernel. Whoever knows
//! them can choose keys that collide, and a search among those is a stretch of the kernel without a bound. So the seed
//! is a number that the kernel draws once it has random ones.

use core::hash::BuildHasher;
use core::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::{FixedState, FoldHasher};

/// The seed of the next table.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// The difference between the seeds of two tables: the golden ratio, which is odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A map whose keys programs choose.
pub type KeyedMap<K, V> = hashbrown::HashMap<K, V, KeyedState>;

/// Seeds the tables that are made from now on.
pub fn set_seed(seed: u64) {
    NEXT.store(seed, Ordering::Relaxed);
}

/// Makes hashers with a secret seed, another one for each table.
#[derive(Clone, Debug)]
pub struct KeyedState(FixedState);

impl Default for KeyedState {
    fn default() -> Self {
        Self(FixedState::with_seed(NEXT.fetch_add(STEP, Ordering::Relaxed)))
    }
}

impl BuildHasher for KeyedState {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_hang_on_the_seed_and_differ_between_tables() {
        let (first, second) = (KeyedState::default(), KeyedState::default());
        assert_ne!(first.hash_one(b"name"), second.hash_one(b"name"));
        assert_eq!(first.hash_one(b"name"), first.clone().hash_one(b"name"));
        set_seed(1);
        let one = KeyedState::default().hash_one(b"name");
        set_seed(2);
        assert_ne!(KeyedState::default().hash_one(b"name"), one);
    }
}
