//! Parking and stealing.

use super::*;
use crate::sched::inbox::WATCH_KEPT;
use crate::sched::{Batches, Fetched, WATCH_PARKED, fetch, set_priority, steal_watched, wake};
use loom::thread;

/// A post against the owner's way to sleep: if it may sleep, then it was kicked.
#[test]
fn park_against_push() {
    check(3, || {
        let world = World::new();
        let id = world.waiting(1);
        let other = world.clone();
        let waker = thread::spawn(move || {
            other.write(id);
            wake(&*other, None, id);
        });
        world.prepare_to_expose();
        let slept = !world.cores[0].has_work() && world.cores[0].expose(WATCH_PARKED);
        waker.join().unwrap();
        if slept {
            assert_eq!(world.kicks[0].load(Ordering::Relaxed), 1);
            world.cores[0].inbox().cover();
        }
        assert!(world.turn(0, true).is_some());
    });
}

/// The same with a thief, who moves requests from the inbox to the queue: the owner must not sleep on them.
#[test]
fn park_against_push_and_thief() {
    check(2, || {
        let world = World::new();
        let id = world.waiting(1);
        let other = world.clone();
        let waker = thread::spawn(move || wake(&*other, None, id));
        let other = world.clone();
        // It takes no coroutine: only the draining is of interest.
        let thief = thread::spawn(move || other.steal(1, 0));
        world.prepare_to_expose();
        let slept = world.cores[0].expose(WATCH_PARKED);
        waker.join().unwrap();
        thief.join().unwrap();
        assert!(!slept || world.kicks[0].load(Ordering::Relaxed) == 1);
        world.cores[0].inbox().cover();
        assert!(world.turn(0, false).is_some());
    });
}

/// A thief against the owner's pick: each of two coroutines runs once, and never on both cores.
#[test]
fn steal_against_pick() {
    check(3, || {
        let world = World::new();
        let ids = [world.waiting(1), world.waiting(1)];
        for id in ids {
            world.write(id);
            wake(&*world, Some(&world.cores[0]), id);
        }
        let other = world.clone();
        let thief = thread::spawn(move || {
            other.steal(1, 1);
            while let Some(id) = other.turn(1, true) {
                other.write(id);
            }
        });
        while let Some(id) = world.turn(0, true) {
            world.write(id);
        }
        thief.join().unwrap();
        while world.turn(0, true).is_some() {}
        ids.into_iter().for_each(|id| assert_eq!(world.turns(id), 1));
    });
}

/// A named coroutine is taken while its owner picks and another wakes it. It has a turn that sees the wake, on one core
/// at a time, and whoever takes it learns where it is: here, or in motion, but not nowhere while it is ready.
#[test]
fn fetch_against_pick_and_wake() {
    check(2, || {
        let world = World::new();
        let id = world.waiting(1);
        wake(&*world, Some(&world.cores[0]), id);
        let other = world.clone();
        let waker = thread::spawn(move || {
            set_priority(&*other, None, id, 0);
            wake(&*other, None, id);
        });
        let other = world.clone();
        let thief = thread::spawn(move || {
            let heavy = || loom::sync::atomic::fence(Ordering::SeqCst);
            let found = fetch(&*other, &other.cores[1], id, heavy);
            assert!(found != Fetched::Here || other.cores[1].has_work());
            while other.turn(1, false).is_some() {}
        });
        while world.turn(0, false).is_some() {}
        waker.join().unwrap();
        thief.join().unwrap();
        for core in [0, 1, 0] {
            while world.turn(core, false).is_some() {}
        }
        assert!((1..=2).contains(&world.turns(id)));
        assert!(world.cores.iter().all(|core| !core.has_work()));
    });
}

/// A thief against the owner's own wake: the gate keeps the queue whole.
#[test]
fn steal_against_wake_at_home() {
    check(3, || {
        let world = World::new();
        let ids = [world.waiting(1), world.waiting(1)];
        wake(&*world, Some(&world.cores[0]), ids[0]);
        let other = world.clone();
        let thief = thread::spawn(move || {
            other.steal(1, 2);
            while other.turn(1, false).is_some() {}
        });
        wake(&*world, Some(&world.cores[0]), ids[1]);
        while world.turn(0, false).is_some() {}
        thief.join().unwrap();
        while world.turn(0, false).is_some() {}
        while world.turn(1, false).is_some() {}
        ids.into_iter().for_each(|id| assert_eq!(world.turns(id), 1));
    });
}

/// A wake that is posted to a core from which the coroutine is being stolen reaches it on the other.
#[test]
fn wake_follows_a_stolen_coroutine() {
    check(2, || {
        let world = World::new();
        let id = world.waiting(1);
        wake(&*world, Some(&world.cores[0]), id);
        let other = world.clone();
        let waker = thread::spawn(move || {
            other.write(id);
            wake(&*other, None, id);
        });
        let other = world.clone();
        let thief = thread::spawn(move || {
            other.steal(1, 1);
            while other.turn(1, false).is_some() {}
        });
        waker.join().unwrap();
        thief.join().unwrap();
        // Requests in either inbox are forwarded to where the coroutine is now.
        let mut turns = 0;
        for _ in 0..2 {
            for core in [0, 1] {
                while world.turn(core, true).is_some() {
                    turns += 1;
                }
            }
        }
        assert!(world.turns(id) >= 1 && turns <= 2);
        assert!(world.cores.iter().all(|core| !core.has_work()));
    });
}

/// Two thieves, one after the other or at once: no coroutine runs twice, none is lost.
#[test]
fn thieves_take_turns() {
    check(2, || {
        let world = World::new();
        let ids = [world.waiting(1), world.waiting(1)];
        for id in ids {
            wake(&*world, Some(&world.cores[0]), id);
        }
        let thieves = [1, 2].map(|thief| {
            let world = world.clone();
            thread::spawn(move || {
                world.steal(thief, 1);
                while world.turn(thief, false).is_some() {}
            })
        });
        while world.turn(0, false).is_some() {}
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
        while world.turn(0, false).is_some() {}
        ids.into_iter().for_each(|id| assert_eq!(world.turns(id), 1));
    });
}

/// The owner finds a thief in its gate and stands back; another thief, or the same, then sees what it had done before.
#[test]
fn an_owner_that_stands_back_still_publishes() {
    check(2, || {
        let world = World::new();
        let id = world.waiting(1);
        let other = world.clone();
        let thief = thread::spawn(move || {
            other.steal(1, 1);
            other.steal(1, 1);
            while other.turn(1, false).is_some() {}
        });
        wake(&*world, Some(&world.cores[0]), id);
        // From here on the owner only knocks.
        for _ in 0..2 {
            wake(&*world, Some(&world.cores[0]), id);
        }
        thief.join().unwrap();
        while world.turn(0, false).is_some() {}
        while world.turn(1, false).is_some() {}
        assert!((1..=3).contains(&world.turns(id)));
        assert!(world.cores.iter().all(|core| !core.has_work()));
    });
}

/// A core that leaves for good: every post kicks, and the kick sees that it left.
#[test]
fn leave_against_push() {
    check(3, || {
        let world = World::new();
        let id = world.waiting(1);
        let other = world.clone();
        let waker = thread::spawn(move || wake(&*other, None, id));
        world.prepare_to_expose();
        let told = world.cores[0].inbox().leave();
        waker.join().unwrap();
        assert_eq!(u32::from(told) + world.kicks[0].load(Ordering::Relaxed), 1);
    });
}

/// A core that runs a program: a request that becomes more urgent while it is on its way still kicks.
#[test]
fn a_request_that_becomes_urgent_kicks() {
    check(3, || {
        let world = World::new();
        let id = world.waiting(2);
        let other = world.clone();
        let waker = thread::spawn(move || wake(&*other, None, id));
        let other = world.clone();
        let ranker = thread::spawn(move || set_priority(&*other, None, id, 0));
        world.prepare_to_expose();
        let runs = world.cores[0].expose(1);
        waker.join().unwrap();
        ranker.join().unwrap();
        assert!(!runs || world.kicks[0].load(Ordering::Relaxed) == 1);
    });
}

/// A post against the owner's way into a turn: if that is of the less urgent coroutine, whoever made the other ready
/// was told. (A watch that was set after the pick, and given up when something had come, told nobody of it.)
#[test]
fn a_watched_turn_against_push() {
    check(3, || {
        let world = World::new();
        let (urgent, ready) = (world.waiting(1), world.waiting(2));
        wake(&*world, Some(&world.cores[0]), ready);
        let other = world.clone();
        let waker = thread::spawn(move || wake(&*other, None, urgent));
        world.prepare_to_expose();
        world.cores[0].settle(&*world, false, |_| ());
        let picked = world.cores[0].pick_watched(&*world, |_| ()).unwrap();
        waker.join().unwrap();
        let is_told = world.kicks[0].load(Ordering::Relaxed) == 1;
        assert!(is_told || picked.level == 1);
        assert!(picked.level == 1 || !world.cores[0].inbox().is_empty());
    });
}

/// Posts in the midst of one turn, the second against a thief who has come for the first: it is taken out with that
/// one, or tells again.
#[test]
fn a_thief_in_a_watched_turn_against_push() {
    check(2, || {
        let world = World::new();
        let (first, second) = (world.waiting(1), world.waiting(1));
        world.prepare_to_expose();
        assert!(world.cores[0].inbox.expose(WATCH_KEPT | 2));
        wake(&*world, None, first);
        assert_eq!(world.kicks[0].load(Ordering::Relaxed), 1);
        let other = world.clone();
        let waker = thread::spawn(move || wake(&*other, None, second));
        let heavy = || loom::sync::atomic::fence(Ordering::SeqCst);
        let taken = steal_watched(&*world, &world.cores[1], &world.cores[0], (u64::MAX, 1), || 2, heavy);
        waker.join().unwrap();
        assert_eq!(taken, Some(1));
        assert!(world.cores[0].inbox().is_empty() || world.kicks[0].load(Ordering::Relaxed) == 2);
    });
}

/// The stack of free slots: what one gives, another takes whole.
#[test]
fn batches_are_taken_once() {
    check(3, || {
        let world = World::new();
        let batches = Arc::new(Batches::new());
        for _ in 0..2 {
            let index = world.cores[0].take_slot(&*world).unwrap();
            batches.put(&*world, index);
        }
        let (other, stack) = (world.clone(), batches.clone());
        let taker = thread::spawn(move || {
            let first = stack.take(&*other).unwrap();
            // SAFETY: checked by the model checker: only one has the batch.
            other.cells[first as usize].with_mut(|cell| unsafe { *cell += 1 });
            stack.put(&*other, first);
        });
        let mine = batches.take(&*world).unwrap();
        // SAFETY: as above.
        world.cells[mine as usize].with_mut(|cell| unsafe { *cell += 1 });
        batches.put(&*world, mine);
        taker.join().unwrap();
        let (first, second) = (batches.take(&*world).unwrap(), batches.take(&*world).unwrap());
        assert_ne!(first, second);
        assert!(batches.take(&*world).is_none());
    });
}
