//! The wheel against a sorted map.

use alloc::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::timer_wheel::{Step, TICK_NS, TimerKey, TimerWheel};

/// Everything that is due at a moment, and when there is something to do next.
fn due(wheel: &mut TimerWheel<u32>, now_ns: u64) -> (Vec<u32>, u64) {
    let (mut fired, mut steps) = (Vec::new(), 0);
    loop {
        steps += 1;
        assert!(steps < 1_000_000, "no end");
        match wheel.step(now_ns) {
            Step::Due(value) => fired.push(value),
            Step::Moved => {}
            Step::Idle(next_ns) => return (fired, next_ns),
        }
    }
}

#[test]
fn fires_once_and_never_early() {
    let mut wheel = TimerWheel::new();
    let key = wheel.insert(5000, 1).unwrap();
    assert_eq!(due(&mut wheel, 4999), (vec![], 5 * TICK_NS));
    assert_eq!(due(&mut wheel, 5 * TICK_NS), (vec![1], u64::MAX));
    assert_eq!(wheel.remove(key), None);
}

#[test]
fn a_removed_timer_does_not_fire() {
    let mut wheel = TimerWheel::new();
    let keys = [10_000_000, 10_000_001, 9_999_999].map(|at| wheel.insert(at, at as u32).unwrap());
    assert_eq!(wheel.remove(keys[0]), Some(10_000_000));
    assert_eq!(wheel.remove(keys[0]), None);
    let (mut fired, next) = due(&mut wheel, u64::MAX);
    fired.sort_unstable();
    assert_eq!((fired, next), (vec![9_999_999, 10_000_001], u64::MAX));
}

#[test]
fn the_past_and_the_end_of_time() {
    let mut wheel = TimerWheel::new();
    assert_eq!(due(&mut wheel, 1 << 40).0, []);
    wheel.insert(3, 1).unwrap();
    wheel.insert(u64::MAX, 2).unwrap();
    assert_eq!(wheel.next_ns(), 1 << 40);
    assert_eq!(due(&mut wheel, 1 << 40).0, [1]);
    assert_eq!(due(&mut wheel, u64::MAX - TICK_NS).0, []);
}

#[test]
fn a_full_slot_is_worked_off_step_by_step() {
    let mut wheel = TimerWheel::new();
    for value in 0..1000_u32 {
        wheel.insert(1 << 30 | u64::from(value), value).unwrap();
    }
    let (mut moved, mut fired) = (0, 0);
    loop {
        match wheel.step((1 << 30) + TICK_NS) {
            Step::Due(_) => fired += 1,
            Step::Moved => moved += 1,
            Step::Idle(_) => break,
        }
    }
    // One lies at the start of the slot and is due where it is.
    assert_eq!((fired, moved), (1000, 999));
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64),
    /// One of those that were set.
    Remove(usize),
    Advance(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    // Distances of every size.
    let distance = (0_u32..50, any::<u64>()).prop_map(|(bits, value)| value % (2 << bits));
    prop_oneof![
        4 => distance.clone().prop_map(Operation::Insert),
        1 => any::<usize>().prop_map(Operation::Remove),
        2 => distance.prop_map(Operation::Advance),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_sorted_map(operations in vec(operation(), 1..300)) {
        let (mut wheel, mut model) = (TimerWheel::new(), BTreeMap::<u32, (u64, TimerKey)>::new());
        let (mut now, mut number) = (0_u64, 0);
        for operation in operations {
            match operation {
                Operation::Insert(distance) => {
                    let deadline = now + distance;
                    number += 1;
                    model.insert(number, (deadline, wheel.insert(deadline, number).unwrap()));
                }
                Operation::Remove(which) if !model.is_empty() => {
                    let value = *model.keys().nth(which % model.len()).unwrap();
                    let (_, key) = model.remove(&value).unwrap();
                    prop_assert_eq!(wheel.remove(key), Some(value));
                }
                Operation::Remove(_) => {}
                Operation::Advance(distance) => now += distance,
            }
            let (fired, next) = due(&mut wheel, now);
            for value in fired {
                let (deadline, _) = model.remove(&value).unwrap();
                prop_assert!(deadline <= now, "{deadline} fired at {now}");
            }
            // The remaining timers were due less than a tick ago, or are due later, and the wheel asks to be looked at
            // in time.
            for (deadline, _) in model.values() {
                prop_assert!(*deadline + TICK_NS > now, "{deadline} did not fire at {now}");
                prop_assert!(next <= deadline.next_multiple_of(TICK_NS));
            }
            prop_assert_eq!(next == u64::MAX, model.is_empty());
        }
    }
}
