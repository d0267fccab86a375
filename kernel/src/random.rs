//! Random bytes: ChaCha20 over a seed of the processor's.

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use crate::arch::cpu;
use crate::sync::SpinLock;

/// The bits in the pool that programs are told of: once it is filled it stays full, as in Linux.
pub const POOL_BITS: u32 = 256;

/// Made at first use; every call draws from it.
static GENERATOR: SpinLock<Option<ChaCha20Rng>> = SpinLock::new(None);

const SEED_BYTES: usize = 32;

fn seed() -> ChaCha20Rng {
    let mut seed = [0; SEED_BYTES];
    for word in seed.chunks_exact_mut(size_of::<u64>()) {
        word.copy_from_slice(&cpu::random().to_ne_bytes());
    }
    ChaCha20Rng::from_seed(seed)
}

/// Fills `bytes` with random ones.
pub fn fill(bytes: &mut [u8]) {
    GENERATOR.lock().get_or_insert_with(seed).fill_bytes(bytes);
}
