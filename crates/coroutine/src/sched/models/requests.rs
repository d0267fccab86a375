//! Wakes, cancellations and changes of level against the owner.

use super::*;
use crate::sched::{Woken, cancel, set_priority, wake};
use loom::thread;

/// Two wakes from elsewhere, and the owner that runs meanwhile: at least one turn follows the last wake, and it sees
/// what both wakers wrote.
#[test]
fn double_wake() {
    check(3, || {
        let world = World::new();
        let id = world.waiting(1);
        let other = world.clone();
        let wakers = thread::spawn(move || {
            other.write(id);
            wake(&*other, None, id);
            wake(&*other, None, id);
        });
        while world.turn(0, true).is_some() {}
        wakers.join().unwrap();
        while world.turn(0, true).is_some() {}
        assert!((1..=2).contains(&world.turns(id)));
    });
}

/// Two wakers race; each writes a cell of its own, and the turn that follows reads both.
#[test]
fn wakes_from_two_cores() {
    check(2, || {
        let world = World::new();
        let id = world.waiting(1);
        let cells = Arc::new([UnsafeCell::new(0u32), UnsafeCell::new(0u32)]);
        let wakers: Vec<_> = (0..2)
            .map(|n| {
                let (world, cells) = (world.clone(), cells.clone());
                thread::spawn(move || {
                    // SAFETY: checked by the model checker.
                    cells[n].with_mut(|cell| unsafe { *cell = 1 });
                    wake(&*world, None, id);
                })
            })
            .collect();
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        assert!(world.turn(0, false).is_some());
        // The join orders the cells too; the turn must not need a second wake.
        assert!(world.turn(0, false).is_none());
        assert_eq!(world.turns(id), 1);
    });
}

/// A wake that finds another pending changes nothing, but what the waker wrote is visible to the turn they share.
#[test]
fn a_wake_that_changes_nothing_still_publishes() {
    check(3, || {
        let world = World::new();
        let id = world.waiting(1);
        wake(&*world, None, id);
        let condition = Arc::new(AtomicU32::new(0));
        let (other, sets) = (world.clone(), condition.clone());
        let waker = thread::spawn(move || {
            sets.store(1, Ordering::Relaxed);
            wake(&*other, None, id);
        });
        let mut seen = 0;
        let mut run = || {
            while let Some(picked) = world.cores[0].pick(&*world) {
                seen = condition.load(Ordering::Relaxed);
                world.cores[0].finish(&*world, id, picked.slot, Outcome::Pending);
            }
            seen
        };
        run();
        waker.join().unwrap();
        assert_eq!(run(), 1);
    });
}

/// A wake while the coroutine is being polled, after it has looked at its condition: it is polled again.
#[test]
fn wake_during_poll() {
    check(3, || {
        let world = World::new();
        let id = world.waiting(1);
        wake(&*world, None, id);
        let picked = world.cores[0].pick(&*world).unwrap();
        let other = world.clone();
        let waker = thread::spawn(move || {
            other.write(id);
            wake(&*other, None, id);
        });
        world.cores[0].finish(&*world, id, picked.slot, Outcome::Pending);
        while world.turn(0, true).is_some() {}
        waker.join().unwrap();
        while world.turn(0, true).is_some() {}
        assert_eq!(world.turns(id), 1);
    });
}

/// A wake against a cancellation: the last turn is a cancelled one, and the slot becomes free once.
#[test]
fn wake_against_cancel() {
    check(2, || {
        let world = World::new();
        let id = world.waiting(1);
        let other = world.clone();
        let waker = thread::spawn(move || wake(&*other, None, id));
        let other = world.clone();
        let killer = thread::spawn(move || cancel(&*other, None, id));
        let mut ended = false;
        let mut run = || {
            while let Some(picked) = world.cores[0].pick(&*world) {
                assert!(!ended);
                ended = picked.cancelled;
                let outcome = if ended { Outcome::Complete } else { Outcome::Pending };
                world.cores[0].finish(&*world, id, picked.slot, outcome);
            }
        };
        run();
        waker.join().unwrap();
        assert_eq!(killer.join().unwrap(), Woken::Posted);
        run();
        assert!(ended);
        assert_eq!(world.cores[0].free_slots(), SLOTS as u32 - 1);
    });
}

/// A wake by an id whose coroutine ends at the same time, and whose slot is used again at once: the next one never
/// sees it.
#[test]
fn stale_id() {
    check(3, || {
        let world = World::new();
        let old = world.waiting(1);
        wake(&*world, None, old);
        let picked = world.cores[0].pick(&*world).unwrap();
        let other = world.clone();
        let waker = thread::spawn(move || wake(&*other, None, old));
        world.cores[0].finish(&*world, old, picked.slot, Outcome::Complete);
        let new = world.waiting(1);
        assert_ne!(old, new);
        assert!(world.cores[0].pick(&*world).is_none());
        waker.join().unwrap();
        assert!(world.cores[0].pick(&*world).is_none());
        assert_eq!(world.cores[0].free_slots(), SLOTS as u32 - 2);
    });
}

/// A change of level against the pick: the coroutine runs once, and has the new level afterwards.
#[test]
fn reprio_against_pop() {
    check(3, || {
        let world = World::new();
        let id = world.waiting(2);
        let rival = world.waiting(1);
        wake(&*world, Some(&world.cores[0]), id);
        wake(&*world, Some(&world.cores[0]), rival);
        let other = world.clone();
        let ranker = thread::spawn(move || set_priority(&*other, None, id, 0));
        let first = world.turn(0, false).unwrap();
        let second = world.turn(0, false).unwrap();
        assert_ne!(first, second);
        ranker.join().unwrap();
        assert!(world.turn(0, false).is_none());
        assert_eq!(world.slots[id.index() as usize].level(), 0);
        assert_eq!((world.turns(id), world.turns(rival)), (1, 1));
    });
}

/// Two requesters link two slots while the owner drains: none is lost.
#[test]
fn push_against_drain() {
    check(3, || {
        let world = World::new();
        let ids = [world.waiting(1), world.waiting(1)];
        let wakers = ids.map(|id| {
            let world = world.clone();
            thread::spawn(move || {
                world.write(id);
                wake(&*world, None, id);
            })
        });
        while world.turn(0, true).is_some() {}
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        while world.turn(0, true).is_some() {}
        ids.into_iter().for_each(|id| assert_eq!(world.turns(id), 1));
    });
}

/// A coroutine that another core spawns into the inbox: its first turn sees what the spawner wrote.
#[test]
fn spawn_into_the_inbox() {
    check(3, || {
        let world = World::new();
        let index = world.cores[0].take_slot(&*world).unwrap();
        let other = world.clone();
        let spawner = thread::spawn(move || {
            // SAFETY: checked by the model checker.
            other.cells[index as usize].with_mut(|cell| unsafe { *cell = 1 });
            post_new(&*other, index, core::ptr::null_mut(), 1, 0).unwrap()
        });
        while world.turn(0, true).is_some() {}
        let id = spawner.join().unwrap();
        while world.turn(0, true).is_some() {}
        assert_eq!(world.turns(id), 1);
    });
}
