//! The records against a map, one writer against readers, and who owns what.
#![cfg(not(heddle_loom))]
#![allow(unsafe_code)] // A value is followed as its contract says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use heddle_range_lock::{RangeLock, RecordIndex, Records, SpareRecords};

#[path = "common/allocator.rs"]
mod allocator;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn random_exchanges_agree_with_a_map() {
    let rounds = if cfg!(miri) { 60 } else { 3000 };
    for seed in 1..=if cfg!(miri) { 2 } else { 20 } {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut records = Records::<Box<usize>>::of(Arc::new(RecordIndex::new()), seed as u32).unwrap();
        let mut model = BTreeMap::new();
        for round in 0..rounds {
            let start = random.below(200);
            let old = start..start + random.below(20);
            let new: Vec<_> = old.clone().filter(|_| random.below(3) == 0).collect();
            records.reserve(new.len()).unwrap();
            let mut gone = Vec::new();
            let values = new.iter().map(|&key| (key, Box::new(round)));
            records.replace(old.clone(), values, |value| gone.push(*value));
            let expected: Vec<_> = old.clone().filter_map(|key| model.remove(&key)).collect();
            assert_eq!(gone, expected);
            model.extend(new.into_iter().map(|key| (key, round)));
            assert_eq!(records.len(), model.len());
            let key = random.below(220);
            let expected = model.range(..=key).next_back();
            assert_eq!(records.floor(key).get().map(|value| **value), expected.map(|(_, value)| *value));
            let found = records.index().read(|reader| reader.floor(key).map(|record| record.key()));
            assert_eq!(found, expected.map(|(key, _)| *key));
        }
        let (mut cursor, mut forwards) = (records.front(), Vec::new());
        while cursor.move_next() {
            forwards.push(**cursor.get().unwrap());
        }
        assert_eq!(forwards, model.values().copied().collect::<Vec<_>>());
        let mut backwards = Vec::new();
        while let Some(value) = cursor.get() {
            backwards.push(**value);
            cursor.move_previous();
        }
        assert!(backwards.iter().rev().eq(&forwards));
    }
}

#[test]
fn an_index_has_one_writer() {
    let index = Arc::new(RecordIndex::<u32>::new());
    let writer = Records::of(index.clone(), 1);
    assert!(writer.is_some() && Records::of(index.clone(), 1).is_none());
    drop(writer);
    assert!(Records::of(index, 1).is_none(), "it would not know how many there are");
}

#[test]
#[should_panic(expected = "keys fit")]
fn keys_that_do_not_fit_are_refused() {
    let mut records = Records::<u32>::of(Arc::default(), 0).unwrap();
    records.reserve(3).unwrap();
    records.replace(5..5, [(5, 0)], drop);
    records.replace(3..4, [(3, 0), (5, 0)], drop);
}

#[test]
fn a_value_goes_when_its_record_is_replaced_and_the_rest_with_the_index() {
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Counted {
        fn new() -> Self {
            LIVE.fetch_add(1, Ordering::Relaxed);
            Self
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            LIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let mut records = Records::<Counted>::of(Arc::default(), 3).unwrap();
    let mut spare = SpareRecords::new(40, 4).unwrap();
    records.exchange_spare(&mut spare);
    assert_eq!(spare.count(), 0);
    records.replace(0..0, (0..40).map(|key| (key, Counted::new())), drop);
    let index = records.index().clone();
    index.read(|_| {
        records.replace(10..20, [], drop);
        assert_eq!(LIVE.load(Ordering::Relaxed), 30, "a reader keeps no value");
    });
    drop(records);
    assert_eq!(LIVE.load(Ordering::Relaxed), 30);
    drop(index);
    assert_eq!(LIVE.load(Ordering::Relaxed), 0);
}

/// A part of the keys: where it ends, and an object that its record owns.
struct Part {
    end: usize,
    object: Arc<usize>,
}

/// One thread changes what is in the lower half, and splits and joins what is in the upper half, which keeps its object;
/// others hold the lock of one key of the upper half and follow the object of the record that they find.
#[test]
fn who_holds_the_lock_of_a_key_may_follow_what_its_record_owns() {
    const HALF: usize = 1000;
    let rounds = if cfg!(miri) { 40 } else { 20_000 };
    let index = Arc::new(RecordIndex::<Part>::new());
    let lock = RangeLock::<usize>::new();
    let is_over = AtomicBool::new(false);
    let mut records = Records::of(index.clone(), 5).unwrap();
    let object = Arc::new(7);
    records.reserve(1).unwrap();
    records.replace(0..0, [(0, Part { end: 2 * HALF, object: object.clone() })], drop);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (index, lock, is_over) = (&index, &lock, &is_over);
            scope.spawn(move || {
                let mut random = Random(77 + thread);
                let mut looks = 0;
                while !is_over.load(Ordering::Relaxed) || looks < 10 {
                    looks += 1;
                    let key = HALF + random.below(HALF);
                    index.read(|reader| {
                        let before = reader.floor(key);
                        let Ok(_guard) = lock.try_lock(key..key + 1) else { return };
                        let since = reader.floor(key).unwrap();
                        for record in before.filter(|record| record.is_current()).into_iter().chain([since]) {
                            // SAFETY: the key is locked; the record was found since, or is current; the writer replaces
                            // records of keys that it has not locked by such with the same object.
                            let part = unsafe { record.value() };
                            assert!(record.key() <= key && key < part.end);
                            assert_eq!(*part.object, 7);
                        }
                    });
                }
            });
        }
        let mut random = Random(5);
        for _ in 0..rounds {
            // The lower half has another object for a while, and the border is moved: the records of locked keys change,
            // and so do those beside them.
            let border = 1 + random.below(HALF - 1);
            let _guard = lock.try_lock(0..border).ok();
            let Some(_held) = &_guard else { continue };
            records.reserve(2).unwrap();
            let lower = Part { end: border, object: Arc::new(border) };
            let upper = Part { end: 2 * HALF, object: object.clone() };
            records.replace(0..2 * HALF, [(0, lower), (border, upper)], drop);
            records.reserve(1).unwrap();
            records.replace(0..2 * HALF, [(0, Part { end: 2 * HALF, object: object.clone() })], drop);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(Arc::strong_count(&object), 2);
}
