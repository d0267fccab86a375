//! Every side passes the same tests before it is measured.

use heddle_range_lock_bench::random::Random;
use heddle_range_lock_bench::side::Side;
use heddle_range_lock_bench::sides::bitmap::{Bitmap, SEGMENT};
use heddle_range_lock_bench::sides::heddle::Heddle;
use heddle_range_lock_bench::sides::kara::Kara;
use heddle_range_lock_bench::sides::kogan::Kogan;
use heddle_range_lock_bench::sides::leanstore::Bits;
use heddle_range_lock_bench::sides::map::MutexMap;
use heddle_range_lock_bench::sides::skiplist::SkipList;
use heddle_range_lock_bench::sides::song::Song;
use heddle_range_lock_bench::sides::stripes::Stripes;
use std::sync::atomic::{AtomicI32, Ordering};

/// Keys that the shadow array knows; each stands for one segment, the bitmap's smallest range.
const KEYS: u64 = 128;

fn overlaps_are_refused_and_releases_free<S: Side>() {
    let lock = S::new(KEYS * SEGMENT);
    let range = |from: u64, to: u64| (from * SEGMENT, to * SEGMENT);
    let lock_range = |from, to| lock.try_lock(range(from, to).0, range(from, to).1);
    let middle = lock_range(10, 20).expect("nothing held");
    for (from, to) in [(0, 11), (19, 30), (12, 13), (10, 20), (0, 100)] {
        assert!(lock_range(from, to).is_none(), "{}: {from}..{to}", S::NAME);
    }
    let low = lock_range(0, 10).expect("disjoint");
    let high = lock_range(20, 21).expect("disjoint");
    lock.unlock(middle);
    let again = lock_range(10, 20).expect("released");
    [low, high, again].into_iter().for_each(|held| lock.unlock(held));
    lock.unlock(lock_range(0, KEYS).expect("all released"));
}

fn a_shadow_array_sees_no_second_owner<S: Side>() {
    let lock = S::new(KEYS * SEGMENT);
    let shadow: Vec<AtomicI32> = (0..KEYS).map(|_| AtomicI32::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (lock, shadow) = (&lock, &shadow);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..20_000 {
                    let start = random.below(KEYS);
                    let end = (start + 1 + random.below(8)).min(KEYS);
                    let (from, to) = (start * SEGMENT, end * SEGMENT);
                    let keys = &shadow[start as usize..end as usize];
                    let held = match random.below(4) {
                        0 => lock.lock(from, to),
                        1 => {
                            let held = lock.lock_shared(from, to);
                            assert!(keys.iter().all(|key| key.fetch_add(1, Ordering::Relaxed) >= 0));
                            assert!(keys.iter().all(|key| key.fetch_sub(1, Ordering::Relaxed) >= 1));
                            lock.unlock(held);
                            continue;
                        }
                        _ => match lock.try_lock(from, to) {
                            Some(held) => held,
                            None => continue,
                        },
                    };
                    assert!(keys.iter().all(|key| key.swap(-1, Ordering::Relaxed) == 0), "{}", S::NAME);
                    assert!(keys.iter().all(|key| key.swap(0, Ordering::Relaxed) == -1), "{}", S::NAME);
                    lock.unlock(held);
                }
            });
        }
    });
    lock.unlock(lock.try_lock(0, KEYS * SEGMENT).expect("all released"));
}

fn many_are_held_at_once<S: Side>() {
    let lock = S::new(3000 * SEGMENT);
    let held: Vec<_> = (0..3000u64)
        .map(|i| i * 1009 % 3000 * SEGMENT)
        .map(|start| lock.try_lock(start, start + SEGMENT).expect("disjoint"))
        .collect();
    assert!((0..3000).all(|i| lock.try_lock(i * SEGMENT, (i + 1) * SEGMENT).is_none()));
    held.into_iter().for_each(|held| lock.unlock(held));
    lock.unlock(lock.try_lock(0, 3000 * SEGMENT).expect("all released"));
}

macro_rules! all_pass {
    ($($module:ident: $side:ty),* $(,)?) => {$(
        mod $module {
            #[test]
            fn overlaps_are_refused_and_releases_free() {
                super::overlaps_are_refused_and_releases_free::<$side>();
            }

            #[test]
            fn a_shadow_array_sees_no_second_owner() {
                super::a_shadow_array_sees_no_second_owner::<$side>();
            }

            #[test]
            fn many_are_held_at_once() {
                super::many_are_held_at_once::<$side>();
            }
        }
    )*};
}

all_pass! {
    heddle: super::Heddle,
    map: super::MutexMap,
    stripes: super::Stripes,
    leanstore: super::Bits,
    song: super::Song,
    kogan: super::Kogan,
    kara: super::Kara,
    bitmap: super::Bitmap,
    skiplist: super::SkipList,
}
