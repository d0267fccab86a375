//! Tests of this crate.

use super::*;
use alloc::collections::BTreeMap;

/// A small generator of pseudo-random numbers (xorshift), so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn agrees_with_an_ordered_map() {
    for seed in 1..40 {
        let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
        let mut sparse = Sparse::new();
        let mut model = BTreeMap::new();
        // Indices of very different sizes, so that the tree has to grow and to have gaps.
        let bits = [4, 8, 14, 40, 64][seed as usize % 5];
        for step in 0..2000_u64 {
            let index = random.next() >> (64 - bits);
            match random.next() % 4 {
                0 | 1 => assert_eq!(sparse.insert(index, step), Ok(model.insert(index, step))),
                2 => assert_eq!(sparse.remove(index), model.remove(&index)),
                _ => {
                    assert_eq!(sparse.get(index), model.get(&index));
                    let expected = model.range(index..).next().map(|(&index, value)| (index, value));
                    assert_eq!(sparse.next(index), expected, "seed {seed} step {step} from {index}");
                }
            }
            assert_eq!(sparse.len(), model.len() as u64);
            assert_eq!(sparse.last(), model.last_key_value().map(|(&index, value)| (index, value)));
        }
        while let Some((index, _)) = sparse.next(0) {
            assert_eq!(sparse.remove(index), model.remove(&index));
        }
        assert!(model.is_empty() && sparse.is_empty());
        assert!(sparse.root.is_none(), "an empty array holds no node");
    }
}

#[test]
fn reaches_the_last_index() {
    let mut sparse = Sparse::new();
    assert_eq!(sparse.insert(0, 'a'), Ok(None));
    assert_eq!(sparse.insert(u64::MAX, 'z'), Ok(None));
    assert_eq!(sparse.next(1), Some((u64::MAX, &'z')));
    assert_eq!(sparse.next(u64::MAX), Some((u64::MAX, &'z')));
    assert_eq!(sparse.last(), Some((u64::MAX, &'z')));
    assert_eq!(sparse.remove(0), Some('a'));
    assert_eq!(sparse.get(u64::MAX), Some(&'z'));
}
