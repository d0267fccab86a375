//! Models of the records: one writer, and readers that hold the lock of other keys, or come before or after.

use heddle_range_lock::{RangeLock, RecordIndex, Records};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{model, under_a_pin};

/// A part of the keys up to `end`; `number` says which of several.
struct Part {
    end: usize,
    number: usize,
    /// Written by whoever replaces the record of key 7, with that key locked.
    cell: Arc<Watched>,
}

struct Watched(UnsafeCell<usize>);

// SAFETY: loom reports any access that is not ordered.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

impl Watched {
    fn get(&self) -> usize {
        // SAFETY: as above.
        self.0.with(|number| unsafe { *number })
    }

    fn set(&self, number: usize) {
        // SAFETY: as above.
        self.0.with_mut(|place| unsafe { *place = number });
    }
}

struct Place {
    lock: RangeLock<usize>,
    index: std::sync::Arc<RecordIndex<Part>>,
    cell: Arc<Watched>,
}

impl Place {
    /// Records from 0, 4 and 8 on, some of which have two levels, by this seed.
    fn new() -> (Arc<Self>, Records<Part>) {
        let place = Arc::new(Self {
            lock: RangeLock::new(),
            index: std::sync::Arc::new(RecordIndex::new()),
            cell: Arc::new(Watched(UnsafeCell::new(0))),
        });
        let mut records = Records::of(place.index.clone(), 121).unwrap();
        records.reserve(3).unwrap();
        records.replace(0..0, [0, 4, 8].map(|key| (key, place.part(key + 4, 0))), drop);
        (place, records)
    }

    fn part(&self, end: usize, number: usize) -> Part {
        Part { end, number, cell: self.cell.clone() }
    }

    /// Looks key 7 up with its lock held, if that is free.
    fn look_under_the_lock(&self) {
        let Ok(_guard) = self.lock.try_lock(7..8) else { return };
        self.index.read(|reader| {
            let record = reader.floor(7).expect("the key has a record at all times");
            // SAFETY: found with the key locked, whose object nobody else changes.
            let part = unsafe { record.value() };
            assert!(record.key() <= 7 && 7 < part.end);
            assert_eq!(part.number, self.cell.get());
            assert_eq!(part.cell.get(), part.number);
        });
    }

    /// Looks key 7 up, and locks it then.
    fn look_before_the_lock(&self) {
        self.index.read(|reader| {
            let record = reader.floor(7).expect("the key has a record at all times");
            let Ok(_guard) = self.lock.try_lock(7..8) else { return };
            if record.is_current() {
                // SAFETY: current with the key locked.
                assert_eq!(unsafe { record.value() }.number, self.cell.get());
            }
        });
    }

    /// Replaces the record of key 7 by another, with the lock held.
    fn change(&self, records: &mut Records<Part>, number: usize) {
        let Ok(_guard) = self.lock.try_lock(4..8) else { return };
        records.reserve(1).unwrap();
        self.cell.set(number);
        records.replace(4..5, [(4, self.part(8, number))], drop);
    }

    /// Splits the record of key 7 and joins it again, with the lock of other keys.
    fn split_and_join(&self, records: &mut Records<Part>) {
        let Ok(_guard) = self.lock.try_lock(4..6) else { return };
        records.reserve(2).unwrap();
        records.replace(4..5, [(4, self.part(6, 9)), (6, self.part(8, 0))], drop);
        records.reserve(1).unwrap();
        records.replace(4..8, [(4, self.part(8, 0))], drop);
    }
}

#[test]
fn a_record_is_found_beside_a_split() {
    model(2, || {
        let (place, mut records) = Place::new();
        let other = place.clone();
        let second = thread::spawn(move || other.look_under_the_lock());
        place.split_and_join(&mut records);
        second.join().unwrap();
    });
}

#[test]
fn a_record_is_found_beside_a_split_under_a_pin() {
    model(2, || {
        let (place, mut records) = Place::new();
        let other = place.clone();
        let second = thread::spawn(move || under_a_pin(move || other.look_under_the_lock()));
        place.split_and_join(&mut records);
        second.join().unwrap();
    });
}

#[test]
fn a_record_that_was_found_before_its_lock() {
    model(2, || {
        let (place, mut records) = Place::new();
        let other = place.clone();
        let second = thread::spawn(move || other.look_before_the_lock());
        place.change(&mut records, 1);
        second.join().unwrap();
    });
}

#[test]
fn a_record_that_others_replaced_before_it_was_changed() {
    model(2, || {
        let (place, mut records) = Place::new();
        let other = place.clone();
        let second = thread::spawn(move || other.look_before_the_lock());
        place.split_and_join(&mut records);
        place.change(&mut records, 1);
        second.join().unwrap();
    });
}

#[test]
fn a_record_found_after_a_change() {
    model(2, || {
        let (place, mut records) = Place::new();
        let other = place.clone();
        let second = thread::spawn(move || under_a_pin(move || other.look_under_the_lock()));
        place.change(&mut records, 1);
        second.join().unwrap();
    });
}

#[test]
fn records_that_are_reused_against_a_reader() {
    model(2, || {
        let (place, mut records) = Place::new();
        let other = place.clone();
        let second = thread::spawn(move || other.look_before_the_lock());
        (1..4).for_each(|number| place.change(&mut records, number));
        second.join().unwrap();
    });
}
