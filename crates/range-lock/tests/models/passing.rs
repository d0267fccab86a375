//! Models of requests that pass: in by a fast path, and out again before anybody has followed them.

use loom::thread;

use super::{Watched, model, under_a_pin};

/// A lock with a bucket, in which all is released: who comes next may leave its slot again.
fn behind_released(shared: &Watched) {
    let first = shared.lock.try_lock(9..10).unwrap();
    shared.lock.first_conflict(..).unwrap();
    drop(first);
}

#[test]
fn passing_through_a_slot_against_another_under_a_pin() {
    model(3, || {
        let shared = Watched::new();
        behind_released(&shared);
        let other = shared.clone();
        let second = thread::spawn(move || {
            under_a_pin(move || {
                if let Ok(guard) = other.lock.try_lock(1..3) {
                    other.write(guard);
                }
            });
        });
        if let Ok(guard) = shared.lock.try_lock(0..2) {
            shared.write(guard);
        }
        if let Ok(guard) = shared.lock.try_lock(1..2) {
            shared.write(guard);
        }
        second.join().unwrap();
    });
}

#[test]
fn a_node_that_comes_back_to_its_slot_against_a_search_under_a_pin() {
    model(3, || {
        let shared = Watched::new();
        behind_released(&shared);
        let other = shared.clone();
        let second = thread::spawn(move || {
            under_a_pin(move || {
                if let Ok(guard) = other.lock.try_lock(1..3) {
                    other.write(guard);
                }
            });
        });
        drop(shared.lock.try_lock(5..6).unwrap());
        drop(shared.lock.try_lock(6..7).unwrap());
        if let Ok(guard) = shared.lock.try_lock(1..2) {
            shared.write(guard);
        }
        second.join().unwrap();
    });
}

#[test]
fn a_node_that_comes_back_to_an_empty_lock_against_a_search_under_a_pin() {
    model(3, || {
        let shared = Watched::new();
        let other = shared.clone();
        let second = thread::spawn(move || {
            under_a_pin(move || {
                if let Ok(guard) = other.lock.try_lock(1..3) {
                    other.write(guard);
                }
            });
        });
        drop(shared.lock.try_lock(5..6).unwrap());
        if let Ok(guard) = shared.lock.try_lock(1..2) {
            shared.write(guard);
        }
        second.join().unwrap();
    });
}

#[test]
fn a_waiter_behind_one_that_has_passed() {
    model(2, || {
        let shared = Watched::new();
        let first = shared.lock.try_lock(0..1).unwrap();
        // Until the chunk has a successor that carries it.
        (0..4).for_each(|key| drop(shared.lock.try_lock(6 + key..7 + key).unwrap()));
        let (passing, waiting) = (shared.clone(), shared.clone());
        let second = thread::spawn(move || {
            if let Ok(guard) = passing.lock.try_lock(1..2) {
                passing.write(guard);
            }
        });
        let third = thread::spawn(move || {
            under_a_pin(move || {
                let guard = loom::future::block_on(waiting.lock.lock_async(0..3)).unwrap();
                waiting.write(guard);
            });
        });
        drop(first);
        second.join().unwrap();
        third.join().unwrap();
    });
}

#[test]
fn leaving_a_chunk_that_has_been_reused() {
    model(2, || {
        let shared = Watched::new();
        behind_released(&shared);
        let passing = shared.lock.try_lock(1..2).unwrap();
        let other = shared.clone();
        let second = thread::spawn(move || {
            for _ in 0..2 {
                other.lock.first_conflict(..).unwrap();
                (0..4).for_each(|key| drop(other.lock.try_lock(4 + key..5 + key)));
            }
        });
        shared.write(passing);
        second.join().unwrap();
    });
}
